"""Folders of the disk tier: one below `swap_dir` for each fingerprint, each with one writer.

Everything else that lies there belongs to somebody else and is left alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from octavo.memory.tiers.files import FOLDER_MODE

INDEX_NAME = "index"
ABOUT_NAME = "about.json"
_LOCK_NAME = "lock"
_FOLDER_NAME = re.compile(r"[0-9a-f]{64}")
_OWN_NAME = re.compile(r"index|index\.new|about\.json|lock|segment-[0-9]{6,}\.kv")
_MOST_ABOUT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class FolderSummary:
    """A folder as a listing shows it; `about` says whose pages they are, empty if unknown."""

    path: Path
    bytes: int
    written_seconds: float
    in_use: bool
    about: Mapping[str, str]


def folder_of(root: Path, fingerprint: bytes) -> Path:
    return root / fingerprint.hex()


def make_folder(root: Path, fingerprint: bytes, about: Mapping[str, str]) -> Path:
    """The folder of a fingerprint, made if need be, and for its owner only.

    Raises:
        OSError: it cannot be made.
    """
    folder = folder_of(root, fingerprint)
    root.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    if not (folder / ABOUT_NAME).exists():
        with suppress(OSError):  # only for people
            (folder / ABOUT_NAME).write_text(json.dumps(dict(about), indent=2) + "\n")
    return folder


def lock_folder(folder: Path) -> int | None:
    """Become the one user of a folder: a descriptor to be closed, None if there is another.

    Raises:
        OSError: the folder is gone or cannot be written.
    """
    path = folder / _LOCK_NAME
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever cleared the folder meanwhile took this file away, and others lock a new one.
            if path.exists() and os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except OSError:
            os.close(fd)
            return None
        os.close(fd)


def folders(root: Path) -> list[Path]:
    """The folders of all fingerprints."""
    try:
        return sorted(
            path for path in root.iterdir() if _FOLDER_NAME.fullmatch(path.name) and path.is_dir()
        )
    except OSError:
        return []


def summarise(folder: Path) -> FolderSummary:
    """Describe a folder as well as it lets itself be described."""
    return FolderSummary(
        folder, used_bytes(folder), _written_seconds(folder), is_in_use(folder), _about(folder)
    )


def used_bytes(folder: Path) -> int:
    """Bytes of everything in a folder that is Octavo's."""
    total = 0
    for path in _own_files(folder):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def is_in_use(folder: Path) -> bool:
    try:
        fd = lock_folder(folder)
    except OSError:
        return False
    if fd is None:
        return True
    os.close(fd)
    return False


def clear_folder(folder: Path) -> bool:
    """Remove what is Octavo's in a folder that nobody uses, and the folder if nothing is left."""
    try:
        fd = lock_folder(folder)
        if fd is None:
            return False
        try:
            for path in sorted(_own_files(folder), key=lambda path: path.name == _LOCK_NAME):
                path.unlink()
        finally:
            os.close(fd)
    except OSError:
        return False
    with suppress(OSError):
        folder.rmdir()
    return True


@contextmanager
def growing(root: Path) -> Iterator[None]:
    """Only one process at a time may add to what lies below `root`.

    Raises:
        OSError: the lock cannot be had at all.
    """
    fd = os.open(root / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def make_room(root: Path, own: Path, own_bytes: int, most_bytes: int) -> bool:
    """See that `own_bytes` of a folder and all the others' bytes stay within `most_bytes`.

    Folders that nobody uses have to go, those first that were written longest ago.
    """
    sizes = {folder: used_bytes(folder) for folder in folders(root) if folder != own}
    for folder in sorted(sizes, key=_written_seconds):
        if own_bytes + sum(sizes.values()) <= most_bytes:
            break
        if clear_folder(folder):
            del sizes[folder]
    return own_bytes + sum(sizes.values()) <= most_bytes


def _own_files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if _OWN_NAME.fullmatch(path.name)]
    except OSError:
        return []


def _written_seconds(folder: Path) -> float:
    """When the index was last written, 0 if there is none."""
    try:
        return (folder / INDEX_NAME).stat().st_mtime
    except OSError:
        return 0.0


def _about(folder: Path) -> Mapping[str, str]:
    try:
        with (folder / ABOUT_NAME).open("rb") as stream:
            content = json.loads(stream.read(_MOST_ABOUT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {str(name): str(value) for name, value in content.items()}
