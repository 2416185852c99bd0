"""Writes the list of modules in architecture.md: each one's first sentence, as its file says it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "architecture.md"
HEADING = "## Every module\n"
PATTERNS = ("csrc/**/*.h", "csrc/**/*.cpp", "src/octavo/**/*.py")


def page() -> str:
    """The whole page with the list as it should be."""
    before, heading, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
    return before + heading + listing()


def listing() -> str:
    """A table a folder, a row a module; a C++ source file stands behind its header.

    Raises:
        ValueError: a module does not say what it is.
    """
    rooms: dict[Path, list[str]] = {}
    for path in sorted(path for pattern in PATTERNS for path in REPOSITORY.glob(pattern)):
        if path.name == "__init__.py" or (path.suffix == ".cpp" and _header(path).exists()):
            continue
        row = f"| `{path.name}` | {purpose(path)} |"
        rooms.setdefault(path.parent.relative_to(REPOSITORY), []).append(row)
    return "".join(
        f"\n### {room}\n\n| module | what |\n|---|---|\n" + "\n".join(rows) + "\n"
        for room, rows in rooms.items()
    )


def purpose(path: Path) -> str:
    """First sentence of a module's docstring or of the comment at its head."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        head = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    else:
        head = _head_comment(text)
    head = " ".join(head.split())
    # A sentence ends at a full stop, but not after an abbreviation.
    found = re.match(r"(.+?(?<!et al)(?<!e\.g))\.(\s|$)", head)
    sentence = found.group(1) if found else head.rstrip(".:")
    if not sentence:
        raise ValueError(f"{path.relative_to(REPOSITORY)} does not say what it is")
    return sentence.replace("|", "\\|")


def _header(path: Path) -> Path:
    return path.with_suffix(".h")


def _head_comment(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("//") or line == "//":
            break
        lines.append(line.removeprefix("//").strip())
    return " ".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
