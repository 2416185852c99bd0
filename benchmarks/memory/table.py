"""Figures as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[dict[str, str | int | float]]


def show(rows: Rows) -> str:
    """Columns in the order of the first row's names."""
    names = list(rows[0])
    lines = [names, *([_text(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _text(value: str | float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
