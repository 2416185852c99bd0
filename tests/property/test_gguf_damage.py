"""Damaged and random files: refused or read, never a crash, a hang or a wild allocation."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.compute.models.registry import load_program
from octavo.core.errors import ModelFileError
from octavo.core.gguf import GgufFile
from tiny import make_tiny_gguf

MOST_BYTES = 64 * 2**20
relaxed = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@dataclass(frozen=True)
class Whole:
    """An intact file; its content is kept out of failure reports."""

    content: bytes = field(repr=False)

    @property
    def header_bytes(self) -> int:
        return self.content.index(b"output_norm.weight") + 64


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    path = tmp_path_factory.mktemp("whole") / "model.gguf"
    return Whole(make_tiny_gguf(path, "gemma3").read_bytes())


def _read(path: Path, content: bytes) -> ModelFileError | None:
    """Why a file is refused, or None; any other outcome raises."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with GgufFile.open(path) as file:
            for key in file.metadata:
                file.metadata[key]
            load_program(file)
        return None
    except ModelFileError as error:
        return error
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < MOST_BYTES


def _assert_refused(error: ModelFileError | None) -> None:
    assert error is not None
    assert error.field
    assert error.message


def test_the_whole_file_is_accepted(tmp_path: Path, whole: Whole) -> None:
    assert _read(tmp_path / "a.gguf", whole.content) is None


@relaxed
@given(st.binary(max_size=400), st.booleans())
def test_garbage_is_refused(tmp_path: Path, content: bytes, with_magic: bool) -> None:
    head = b"GGUF\x03\0\0\0" if with_magic else b""
    _assert_refused(_read(tmp_path / "a.gguf", head + content))


@relaxed
@given(data=st.data())
def test_any_truncation_is_refused(tmp_path: Path, whole: Whole, data: st.DataObject) -> None:
    # The last tensor ends with padding, which nobody needs.
    kept = data.draw(st.integers(0, len(whole.content) - 32))
    _assert_refused(_read(tmp_path / "a.gguf", whole.content[:kept]))


@relaxed
@given(data=st.data())
def test_changed_header_bytes_never_crash(
    tmp_path: Path, whole: Whole, data: st.DataObject
) -> None:
    damaged = bytearray(whole.content)
    places = st.integers(0, whole.header_bytes - 1)
    for place, value in data.draw(
        st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)
    ):
        damaged[place] = value
    error = _read(tmp_path / "a.gguf", bytes(damaged))
    if error is not None:
        _assert_refused(error)


@relaxed
@given(data=st.data())
def test_absurd_numbers_anywhere_never_crash(
    tmp_path: Path, whole: Whole, data: st.DataObject
) -> None:
    damaged = bytearray(whole.content)
    place = data.draw(st.integers(8, whole.header_bytes - 8))
    number = data.draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]))
    damaged[place : place + 8] = number.to_bytes(8, "little")
    error = _read(tmp_path / "a.gguf", bytes(damaged))
    if error is not None:
        _assert_refused(error)
