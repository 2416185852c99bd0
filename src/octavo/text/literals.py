"""Keeps the caller's text literal while a template and the special tokens work around it.

A control token counts only where the template wrote its first character. Before rendering, the
characters of the caller's text that could open one are exchanged for private characters, one for
one, so that lengths, slices and trims stay what they were; the rendered text is searched for
control tokens in that state, and the characters are exchanged back before it is encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from octavo.core.errors import InvalidRequest

MAX_DEPTH = 64
_PRIVATE = range(0xF0000, 0x10FFFE)
_MARKUP = re.compile(r"</?[A-Za-z_][\w-]{0,40}>")


def compile_words(words: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds the longest of `words` at each place, in one walk down a prefix tree."""
    ordered = sorted({word for word in words if word})
    if not ordered:
        return re.compile(r"(?!)")
    try:
        return re.compile(_tree(ordered))
    except RecursionError:  # thousands of words, each a beginning of the next
        longest_first = sorted(ordered, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)))


def _tree(ordered: list[str]) -> str:
    groups: dict[str, list[str]] = {}
    for word in ordered:
        groups.setdefault(word[:1], []).append(word)
    optional = "" in groups
    groups.pop("", None)
    branches = []
    for group in groups.values():
        shared = _shared_beginning(group[0], group[-1])
        rest = [word[len(shared) :] for word in group]
        branches.append(re.escape(shared) + (_tree(rest) if len(rest) > 1 else ""))
    if len(branches) == 1 and not optional:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if optional else ''}"


def _shared_beginning(first: str, last: str) -> str:
    """What a sorted group has in common is what its first and its last have."""
    length = 0
    while first[length : length + 1] == last[length : length + 1] != "":
        length += 1
    return first[:length]


@dataclass(frozen=True, slots=True)
class Mask:
    """A one-for-one exchange of characters, and the way back."""

    hide: Callable[[str], str]
    reveal_table: Mapping[int, str]

    def reveal(self, text: str) -> str:
        return text.translate(self.reveal_table)

    def apply(self, value: object) -> object:
        """A copy of JSON-like `value` with every string in it, keys too, hidden."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {self.apply(key): self.apply(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.apply(item) for item in value]
        return value

    def apply_to_object(self, value: Mapping[str, object]) -> dict[str, object]:
        """A hidden copy of an object."""
        return {self.hide(key): self.apply(item) for key, item in value.items()}


class Masker:
    """Makes masks for one set of control tokens and one template.

    Markup that the template itself mentions, as in `content.split('</think>')`, stays readable to
    it, unless it is a control token.
    """

    def __init__(self, control_names: Collection[str], template: str):
        self._openers = sorted({name[0] for name in control_names if name})
        symbols = [c for c in self._openers if not c.isalnum()]
        markup = sorted(set(_MARKUP.findall(template)) - set(control_names))
        kept = f"(?!{compile_words(markup).pattern})" if markup else ""
        # A letter opens too many words to hide it everywhere; there, only whole names are hidden.
        lettered = compile_words(name for name in control_names if name[:1].isalnum())
        anywhere = f"{kept}[{re.escape(''.join(symbols))}]" if symbols else "(?!)"
        self._pattern = re.compile(f"{anywhere}|(?={lettered.pattern})(?s:.)")
        self._template_private = _private_characters(template)

    def mask(self, value: object) -> Mask:
        """A mask whose private characters stand neither in `value` nor in the template."""
        taken = set(self._template_private)
        for text in strings_in(value):
            taken |= _private_characters(text)
        free = (chr(code) for code in _PRIVATE if chr(code) not in taken)
        table = {opener: next(free) for opener in self._openers}
        return Mask(
            hide=lambda text: self._pattern.sub(lambda match: table[match.group()], text),
            reveal_table={ord(private): opener for opener, private in table.items()},
        )


def strings_in(value: object, *, depth: int = 0) -> Iterable[str]:
    """All strings in JSON-like `value`, keys too.

    Raises:
        InvalidRequest: nested deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"nested deeper than {MAX_DEPTH} levels", field="messages")
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings_in(key, depth=depth + 1)
            yield from strings_in(item, depth=depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item, depth=depth + 1)


def _private_characters(text: str) -> set[str]:
    return set() if text.isascii() else {c for c in set(text) if ord(c) in _PRIVATE}
