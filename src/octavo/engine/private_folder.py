"""The folder of an engine's socket, which nobody else may enter."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from octavo.core.errors import EngineError

MAX_SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket (sun_path of Linux, without its final zero)."""
SOCKET_NAME = "engine.sock"


def new_private_folder() -> Path:
    """Make a folder of mode 0700: in the user's runtime folder if there is one, else a temporary.

    Raises:
        EngineError: no such folder has a path short enough for a socket.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    for parent in (runtime, tempfile.gettempdir(), "/tmp"):
        if parent and os.path.isabs(parent) and os.access(parent, os.W_OK | os.X_OK):
            path = Path(tempfile.mkdtemp(prefix="octavo-", dir=parent))
            if len(os.fsencode(path / SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES:
                return path
            path.rmdir()
    raise EngineError(
        "there is no folder for the socket of the engine",
        remedy="set TMPDIR to a folder that can be written and has a short path",
    )


def check_private(folder: Path) -> Path:
    """Refuse a folder that others may enter, or whose path is too long for a socket.

    Raises:
        EngineError: it is not such a folder.
    """
    try:
        status = folder.stat()
    except OSError as error:
        raise EngineError(f"cannot use the folder {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise EngineError(
            f"{folder} is not a folder that only this user may enter",
            remedy=f"chmod 700 {folder}",
        )
    if len(os.fsencode(folder / SOCKET_NAME)) > MAX_SOCKET_PATH_BYTES:
        raise EngineError(f"the path of {folder} is too long for a socket")
    return folder
