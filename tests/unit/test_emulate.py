"""What an emulated machine is given: an archive that Linux unpacks, and what tests import."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import emulate


def unpack(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Mode and content of each entry of a cpio archive, in order."""
    found: dict[str, tuple[int, bytes]] = {}
    at = 0
    while at < len(data):
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name = data[at + 110 : at + 110 + fields[11] - 1].decode()
        at += -(-(110 + fields[11]) // 4) * 4
        found[name] = (fields[1], data[at : at + fields[6]])
        at += -(-fields[6] // 4) * 4
    return found


def test_an_archive_holds_folders_before_their_files() -> None:
    out = io.BytesIO()
    archive = emulate.Archive(out)
    archive.add(Path("/a/b/one"), b"12345")
    archive.add(Path("/a/two"), b"")
    archive.add(Path("/a/two"), b"a second time")
    archive.close()
    found = unpack(out.getvalue())
    assert list(found) == ["a", "a/b", "a/b/one", "a/two", "TRAILER!!!"]
    assert found["a"] == found["a/b"] == (emulate.FOLDER, b"")
    assert found["a/b/one"] == (emulate.FILE, b"12345")
    assert found["a/two"] == (emulate.FILE, b"")


def test_packages_come_with_what_they_require(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {path.name for path in emulate.package_files(["hypothesis"])}
    assert {"strategies.py", "sortedset.py"} <= names
    assert not any(name.endswith(".pyc") for name in names)
    monkeypatch.setattr(emulate, "PACKAGES", ("no-such-package",))
    with pytest.raises(SystemExit, match="make test"):
        list(emulate.package_files(emulate.PACKAGES))


def test_python_comes_with_its_library_and_the_libraries_it_is_linked_with() -> None:
    python = Path(sys.executable).resolve()
    files = set(emulate.python_files())
    assert python in files
    assert any(path.match("encodings/utf_8.py") for path in files)
    assert any(path.name.startswith("libc.so") for path in emulate.libraries([python]))


def test_the_console_is_shown_and_its_result_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, says: str) -> int | None:
        folder = tmp_path / name
        (folder / "bochs").mkdir(parents=True)
        program = folder / "bochs" / "bochs"
        program.write_text(f"#!/bin/sh\nprintf '{says}' > '{folder}/console'\n")
        program.chmod(0o755)
        return emulate.run_machine(folder, folder / "bochs", folder / "disc.iso", 64)

    assert run("done", f"2 failed\\r\\n{emulate.RESULT} 1\\r\\n") == 1
    assert capsys.readouterr().out == f"2 failed\n{emulate.RESULT} 1\n"
    assert run("broken", "Kernel panic") is None


def test_the_first_process_is_a_program() -> None:
    text = emulate.FIRST_PROCESS.format(
        python=sys.executable, environment={"A": "b"}, arguments=["-q"], folder="/", result="x"
    )
    compile(text, "init", "exec")
    assert text.startswith(f"#!{sys.executable}\n")
