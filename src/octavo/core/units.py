"""Amounts with units as people write them: 64KB, 2GB, 16tok."""

from __future__ import annotations

import re

from octavo.core.errors import SettingsError
from octavo.core.shown import shown

_BYTES_PER_UNIT = {
    "b": 1,
    "kb": 1 << 10,
    "kib": 1 << 10,
    "mb": 1 << 20,
    "mib": 1 << 20,
    "gb": 1 << 30,
    "gib": 1 << 30,
    "tb": 1 << 40,
    "tib": 1 << 40,
}
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)")


def parse_bytes(value: object, field: str) -> int:
    """A positive number of bytes from 65536, "64KB" or "1.5 GiB"; KB and KiB are both 1024 bytes.

    Raises:
        SettingsError: not a number of bytes, or not a whole or positive one.
    """
    number, unit = _split(value, field, example="65536, 64KB or 2GB")
    if unit and unit.lower() not in _BYTES_PER_UNIT:
        raise _wrong(value, field, f"unknown unit {unit!r}", example="B, KB, MB, GB or TB")
    amount = number * _BYTES_PER_UNIT[unit.lower() if unit else "b"]
    if amount < 1 or amount != int(amount):
        raise _wrong(value, field, "must be a positive whole number of bytes", example="64KB")
    return int(amount)


def parse_tokens(value: object, field: str) -> int | None:
    """A positive number of tokens from "16tok", None if the text has another unit."""
    if not isinstance(value, str) or not value.strip().lower().endswith(("tok", "tokens")):
        return None
    number, _ = _split(value, field, example="16tok")
    if number < 1 or number != int(number):
        raise _wrong(value, field, "must be a positive whole number of tokens", example="16tok")
    return int(number)


def format_bytes(amount: int) -> str:
    """The shortest exact form: 65536 is "64KB", 65537 is "65537B"."""
    for unit in ("TB", "GB", "MB", "KB"):
        size = _BYTES_PER_UNIT[unit.lower()]
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return f"{amount}B"


def _split(value: object, field: str, *, example: str) -> tuple[float | int, str]:
    if isinstance(value, int) and not isinstance(value, bool):
        return value, ""
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise _wrong(value, field, "is not an amount", example=example)
    text, unit = match.groups()
    return (float(text) if "." in text else int(text)), unit


def _wrong(value: object, field: str, problem: str, *, example: str) -> SettingsError:
    return SettingsError(
        f"{shown(value)}: {problem}", field=field, remedy=f"write for example {example}"
    )
