"""The system calls of the disk tier, in one place so that tests can make them fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

FOLDER_MODE = 0o700
"""Pages are what users wrote, in another form: nobody else may read them."""
_FILE_MODE = 0o600


class Files:
    """Plain files, at most briefly in the memory that the system keeps of them."""

    def open(self, path: Path, *, create: bool) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(path, flags | (os.O_CREAT if create else 0), _FILE_MODE)

    def allocate(self, fd: int, size_bytes: int) -> None:
        """Give a file its size and its place on the disk, so that a full disk shows at once."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size_bytes)
        else:
            os.ftruncate(fd, size_bytes)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Bytes that were read, which may be fewer than there is room for."""
        return os.preadv(fd, buffers, offset)

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Bytes that were written, which may be fewer than there are."""
        return os.pwritev(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        """Wait until the file's data are on the disk."""
        (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(fd)

    def forget(self, fd: int, offset: int, size_bytes: int) -> None:
        """Ask the system to keep no copy in memory; a copy that is not on disk yet stays."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def close(self, fd: int) -> None:
        os.close(fd)


def write_whole(files: Files, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Write all of `buffers`.

    Raises:
        OSError: the system refused, or wrote less.
    """
    wanted = sum(len(buffer) for buffer in buffers)
    written = files.write(fd, buffers, offset)
    if written != wanted:
        raise OSError(errno.ENOSPC, f"{written} of {wanted} bytes were written")
