"""Cuts before merges: against another regular-expression engine, and against published ids.

The vocabularies behind most published vectors are not at hand. Still the ids say something about
the cut: equal pieces must have equal ids everywhere, and a piece's ids are at most its bytes. A cut
under which no such assignment exists is wrong.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
import regex

from octavo.core.errors import ModelFileError
from octavo.text.pretokenizers import CUTS, find_cut
from octavo.text.vocabulary import BYTE_ALPHABET

BYTES = {character: byte for byte, character in BYTE_ALPHABET.items()}
ALPHABET = list("aZ\u00e9\u0416\u597d\ud55c\u0e2a\u0e31\u0301\U0001f999\u3002\u3000\u00a0")
ALPHABET += list(" 1\u00bd\u0663\t\n\r'sS.,!$<|_/")
TEXTS = [
    "Hello, y'all! How are you?  I'LL be\n\n  there\t\r\n at 12345.67 o'clock\n ",
    "\u6211\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 C\u1eeda Vi\u1ec7t \u00bd \u2163",
    "def f(x):\n    return x**2  # $x^2 = <y>|z~`\n\n\n\tend",
    "HTTPServer2Go camelCase ALLCAPS \u01c5 e\u0301 it's IT'S we'Ve",
]
VECTORS = {
    "gpt-2": "gpt-2",
    "starcoder": "starcoder",
    "refact": "refact",
    "command-r": "command-r",
    "falcon": "falcon",
    "mpt": "mpt",
    "llama-bpe": "llama-bpe",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
    "deepseek-llm": "deepseek-llm",
    "deepseek-coder": "deepseek-coder",
}


def pieces(name: str, text: str) -> list[str]:
    cut = find_cut(name).build().pre_tokenize_str(text)
    return [bytes(BYTES[c] for c in piece).decode("utf-8", "surrogateescape") for piece, _ in cut]


def split_with_regex(patterns: tuple[str, ...], text: str) -> list[str]:
    """What matches is a piece, and what lies between two matches too; one pattern after another."""
    parts = [text]
    for pattern in patterns:
        # Onigmo's $ also stands before the end of each line, and \x{...} is \u... here.
        pattern = regex.sub(r"\\x\{([0-9A-F]{4})\}", r"\\u\1", pattern)
        pattern = f"(?m){pattern}" if pattern.endswith("$") else pattern
        cut: list[str] = []
        for part in parts:
            done = 0
            for match in regex.finditer(pattern, part):
                cut += [part[done : match.start()], match.group()]
                done = match.end()
            cut.append(part[done:])
        parts = [part for part in cut if part]
    return parts


@pytest.mark.parametrize("name", sorted(set(CUTS) - {"falcon"}))
def test_cuts_equal_those_of_another_engine(name: str) -> None:
    chance = random.Random(name)
    random_texts = ["".join(chance.choices(ALPHABET, k=30)) for _ in range(150)]
    for text in [*TEXTS, *random_texts]:
        expected = split_with_regex(find_cut(name).patterns, text)
        assert pieces(name, text) == expected, text


def test_falcon_cuts_plain_text_like_its_regular_expressions() -> None:
    # Elsewhere it also cuts inside characters, at bytes whose spelling looks like a digit.
    for text in TEXTS[::2]:
        assert pieces("falcon", text) == split_with_regex(find_cut("falcon").patterns, text)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "a  1234's", ["a", " ", " 1234", "'s"]),
        ("smollm", "a  12 b", ["a", "  ", "1", "2", " b"]),
        ("llama-bpe", "12345 'LL .x", ["123", "45", " '", "LL", " .", "x"]),
        ("qwen2", "123\n\n x", ["1", "2", "3", "\n\n", " x"]),
        ("tekken", "HTTPServer1", ["HTTPServer", "1"]),
        ("deepseek-v3", "1234.foo", ["123", "4", ".foo"]),
        ("falcon", "a==1234", ["a", "==", "123", "4"]),
    ],
)
def test_cuts_worked_out_by_hand(name: str, text: str, expected: list[str]) -> None:
    assert pieces(name, text) == expected


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    for name in (None, "default", "gpt-5"):
        with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.pre: .*qwen2") as caught:
            find_cut(name)
        assert "set pre_tokenizer" in str(caught.value)


def vectors(folder: Path, name: str) -> list[tuple[str, tuple[int, ...]]]:
    base = folder / "tokenizer-vectors" / f"ggml-vocab-{name}.gguf"
    texts = base.with_suffix(".gguf.inp").read_text(encoding="utf-8")
    lines = base.with_suffix(".gguf.out").read_text(encoding="utf-8").split("\n")
    pairs = zip(texts.split("\n__ggml_vocab_test__\n"), lines, strict=True)
    return [(text, tuple(map(int, line.split()))) for text, line in pairs if text]


def assignment_exists(cases: list[tuple[list[str], tuple[int, ...]]]) -> bool:
    """Whether each piece can be given ids so that every text's ids are those of its pieces.

    Narrows the candidates of each piece until nothing changes; necessary for a right cut.
    """
    candidates: dict[str, set[tuple[int, ...]]] = {}
    while True:
        before = {piece: len(found) for piece, found in candidates.items()}
        for parts, ids in cases:
            possible = readings(tuple(parts), ids, candidates)
            if not possible:
                return False
            for piece, found in possible.items():
                candidates[piece] = candidates.get(piece, found) & found
                if not candidates[piece]:
                    return False
        if before == {piece: len(found) for piece, found in candidates.items()}:
            return True


def readings(
    parts: tuple[str, ...], ids: tuple[int, ...], candidates: dict[str, set[tuple[int, ...]]]
) -> dict[str, set[tuple[int, ...]]]:
    """Ids each piece can have in some division of `ids` among `parts`; empty if there is none."""

    def lengths(piece: str, at: int) -> list[int]:
        most = min(len(piece.encode("utf-8", "surrogateescape")), len(ids) - at)
        known = candidates.get(piece)
        return [n for n in range(1, most + 1) if known is None or ids[at : at + n] in known]

    @cache
    def fits(place: int, at: int) -> bool:
        if place == len(parts):
            return at == len(ids)
        return any(fits(place + 1, at + n) for n in lengths(parts[place], at))

    if not fits(0, 0):
        return {}
    found: dict[str, set[tuple[int, ...]]] = {}
    reached = {0}
    for place, piece in enumerate(parts):
        following = set()
        here: set[tuple[int, ...]] = set()
        for at in reached:
            for n in lengths(piece, at):
                if fits(place + 1, at + n):
                    here.add(ids[at : at + n])
                    following.add(at + n)
        found[piece] = found.get(piece, here) & here
        reached = following
    return found


@pytest.mark.parametrize("family", sorted(VECTORS))
def test_published_ids_can_come_from_the_cut(family: str, data_dir: Path) -> None:
    # MPT keeps runs of spaces whole as user-defined tokens, which are taken before the cut.
    whole = "( {2,24})" if family == "mpt" else "(?!)"
    cases = [
        ([p for part in regex.split(whole, text) for p in pieces(VECTORS[family], part)], ids)
        for text, ids in vectors(data_dir, family)
    ]
    assert assignment_exists(cases)


@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        ("llama-bpe", "qwen2"),
        ("gpt-2", "starcoder"),
        ("falcon", "smollm"),
        ("starcoder", "llama-bpe"),
    ],
)
def test_a_wrong_cut_is_told_from_the_ids(family: str, wrong: str, data_dir: Path) -> None:
    cases = [(pieces(wrong, text), ids) for text, ids in vectors(data_dir, family)]
    assert not assignment_exists(cases)
