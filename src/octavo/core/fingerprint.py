"""What must be equal for two KV caches to be interchangeable, as 32 bytes."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from octavo.core.errors import ModelFileError

_READ_BYTES = 1 << 22


def content_digest(path: Path, *, cache_file: Path | None = None) -> str:
    """256-bit BLAKE2b (RFC 7693) of a file's bytes, in hexadecimal.

    `cache_file` remembers digests by path, size and modification time, because reading a large
    model takes longer than opening it. A cache that cannot be read or written is not an error.

    Raises:
        ModelFileError: the file cannot be read.
    """
    try:
        status = path.stat()
        key = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
        known = _read_cache(cache_file)
        if key in known:
            return known[key]
        digest = hashlib.blake2b(digest_size=32)
        with path.open("rb") as stream:
            while block := stream.read(_READ_BYTES):
                digest.update(block)
    except OSError as error:
        raise ModelFileError(
            f"cannot read {path}: {error.strerror}", remedy="check the path and its permissions"
        ) from error
    if cache_file is not None:
        _write_cache(cache_file, {**known, key: digest.hexdigest()})
    return digest.hexdigest()


def fingerprint(facts: Mapping[str, str]) -> bytes:
    """32 bytes that differ whenever any fact differs; the order of the mapping does not matter."""
    digest = hashlib.blake2b(digest_size=32)
    for name in sorted(facts):
        for part in (name.encode(), facts[name].encode()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.digest()


def _read_cache(cache_file: Path | None) -> dict[str, str]:
    if cache_file is None:
        return {}
    try:
        content = json.loads(cache_file.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {
        key: value for key, value in content.items() if isinstance(value, str) and len(value) == 64
    }


def _write_cache(cache_file: Path, digests: Mapping[str, str]) -> None:
    try:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=cache_file.parent, prefix=cache_file.name)
        with os.fdopen(handle, "w") as stream:
            json.dump(dict(digests), stream)
        os.replace(name, cache_file)
    except OSError:
        return
