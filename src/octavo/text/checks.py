"""Text that came from outside is checked once, where it enters."""

from __future__ import annotations

from octavo.core.errors import InvalidRequest


def check_text(text: object, field: str) -> str:
    """Return `text` if it is a string that UTF-8 can carry.

    Half of a surrogate pair is the one thing a Python string can hold and UTF-8 cannot; JSON's
    escapes let it in.

    Raises:
        InvalidRequest: not a string, or a lone surrogate, whose position is named.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"must be text, not {type(text).__name__}", field=field)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"half of a surrogate pair (U+{ord(text[error.start]):04X}) at character {error.start}",
            field=field,
            remedy="send both halves, or U+FFFD in its place",
        ) from None
    return text
