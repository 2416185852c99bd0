"""File digests and the fingerprint of interchangeable caches."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from octavo.core.errors import ModelFileError
from octavo.core.fingerprint import content_digest, fingerprint


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"weights")
    assert content_digest(file) == hashlib.blake2b(b"weights", digest_size=32).hexdigest()


def test_cached_digest_follows_size_and_time(tmp_path: Path) -> None:
    file, cache = tmp_path / "model", tmp_path / "cache" / "digests.json"
    file.write_bytes(b"aaaa")
    first = content_digest(file, cache_file=cache)
    (key,) = json.loads(cache.read_text())
    cache.write_text(json.dumps({key: "f" * 64}))
    assert content_digest(file, cache_file=cache) == "f" * 64, "the cache was not used"
    file.write_bytes(b"bbbb")
    os.utime(file, ns=(1, 1))
    changed = content_digest(file, cache_file=cache)
    assert changed == content_digest(file)
    assert changed != first


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 3}'])
def test_damaged_cache_is_ignored(tmp_path: Path, content: str) -> None:
    file, cache = tmp_path / "model", tmp_path / "digests.json"
    file.write_bytes(b"aaaa")
    cache.write_text(content)
    assert content_digest(file, cache_file=cache) == content_digest(file)


def test_missing_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot read"):
        content_digest(tmp_path / "nothing")


def test_fingerprint_separates_every_fact() -> None:
    base = {"a": "1", "b": "23"}
    assert fingerprint(base) == fingerprint({"b": "23", "a": "1"})
    others = [{"a": "12", "b": "3"}, {"a1": "", "b": "23"}, {"a": "1"}, {**base, "c": ""}]
    assert len({fingerprint(base), *map(fingerprint, others)}) == 5
    assert len(fingerprint(base)) == 32
