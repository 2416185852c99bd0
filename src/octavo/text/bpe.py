"""Builds the merge engines of the `tokenizers` library from a checked vocabulary.

Control tokens are left out of every engine: no text, whatever it spells, can reach their ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Engine

from octavo.core.errors import ModelFileError
from octavo.text.pretokenizers import Cut
from octavo.text.vocabulary import (
    BYTE_ALPHABET,
    PREFIX,
    SPACE,
    TokenKind,
    Vocabulary,
    places_of,
)

_OUT_OF_REACH = frozenset({TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.UNUSED})
_WORD_CACHE_ENTRIES = 10_000


def build_byte_level(vocabulary: Vocabulary, cut: Cut) -> Engine:
    """The engine of a byte-level BPE vocabulary (Sennrich et al. 2016, on GPT-2's byte alphabet).

    Raises:
        ModelFileError: a merge is malformed or names a token the file does not have.
    """
    ids = _reachable(vocabulary, vocabulary.tokens)
    alphabet = set(BYTE_ALPHABET.values())
    if not alphabet & ids.keys():
        raise ModelFileError(
            "the tokens are not spelled in the byte alphabet",
            field=PREFIX + "tokens",
            remedy="the file is damaged, or its tokenizer is not byte-level BPE",
        )
    merges = _file_merges(vocabulary, vocabulary.tokens, ids)
    model = models.BPE(
        vocab=ids,
        merges=merges,
        ignore_merges=cut.whole_words,
        cache_capacity=_WORD_CACHE_ENTRIES,
    )
    engine = Engine(model)
    engine.pre_tokenizer = cut.build()
    _add_user_defined(engine, vocabulary, vocabulary.tokens)
    return engine


def build_sentencepiece(vocabulary: Vocabulary) -> Engine:
    """The engine of a SentencePiece BPE vocabulary (Kudo and Richardson 2018), with byte fallback.

    The file gives scores; the best-scored pair merges first, which is a list of merges in falling
    order of score. Gemma's scores do not follow its merges; there the order of ids does.
    """
    spelled = _spelled(vocabulary)
    ids = _reachable(vocabulary, spelled)
    if vocabulary.merges is not None:
        merges = _file_merges(vocabulary, spelled, ids)
    else:
        # Late: numpy is much memory for a frontend, whose other vocabularies do without.
        from octavo.text.merges import derive_merges

        joinable = ids.copy()
        for place in places_of(vocabulary.kinds, TokenKind.BYTE):
            del joinable[spelled[place]]
        merges = derive_merges(joinable, _ranking_scores(vocabulary))
    unknown = vocabulary.unknown_id
    if unknown is not None:
        ids[vocabulary.tokens[unknown]] = unknown
    model = models.BPE(
        vocab=ids,
        merges=merges,
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
        cache_capacity=_WORD_CACHE_ENTRIES,
    )
    engine = Engine(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if vocabulary.add_space_prefix:
        steps.insert(0, normalizers.Prepend(SPACE))
    engine.normalizer = normalizers.Sequence(steps)
    engine.pre_tokenizer = word_cut(spelled)
    _add_user_defined(engine, vocabulary, spelled)
    return engine


def _is_gemma(vocabulary: Vocabulary) -> bool:
    return vocabulary.architecture.startswith("gemma")


def _ranking_scores(vocabulary: Vocabulary) -> Sequence[float] | None:
    return None if _is_gemma(vocabulary) else vocabulary.scores


def _spelled(vocabulary: Vocabulary) -> list[str]:
    """Tokens as SentencePiece spells them: Gemma files write runs of spaces as spaces."""
    tokens = list(vocabulary.tokens)
    if _is_gemma(vocabulary):
        for place in places_of(vocabulary.kinds, TokenKind.USER_DEFINED):
            if tokens[place] and not tokens[place].strip(" "):
                tokens[place] = SPACE * len(tokens[place])
    return tokens


def word_cut(tokens: Iterable[str]) -> pre_tokenizers.PreTokenizer | None:
    """A cut before each word that no merge can bridge, so that words are cached.

    A merge makes a token of the vocabulary. Where no token has a space after character c, cutting
    between c and a space changes no id.
    """
    # Each token on a line of its own, so that nothing is found across two of them.
    bridges = set(re.findall(f"([^\\n]){SPACE}", "\n".join(tokens))) | {SPACE}
    if len(bridges) > 64:  # a vocabulary of phrases: every word may belong to the one before
        return None
    before = "".join(re.escape(character) for character in sorted(bridges))
    return pre_tokenizers.Split(
        Regex(f"(?m).(?:[^{SPACE}]|(?<=[{before}]){SPACE})*"), behavior="isolated"
    )


def _reachable(vocabulary: Vocabulary, spelled: Sequence[str]) -> dict[str, int]:
    ids = dict(zip(spelled, range(len(spelled)), strict=True))
    for place in places_of(vocabulary.kinds, *_OUT_OF_REACH):
        ids.pop(spelled[place], None)
    return ids


def _file_merges(
    vocabulary: Vocabulary, spelled: Sequence[str], ids: dict[str, int]
) -> list[tuple[str, str]]:
    hidden = {vocabulary.tokens[place] for place in places_of(vocabulary.kinds, *_OUT_OF_REACH)}
    merges = []
    for place, line in enumerate(vocabulary.merges or ()):
        left, space, right = line.partition(" ")
        if not (space and left and right and " " not in right):
            raise _bad_merge(place, line, "two tokens with a space between")
        if left not in ids or right not in ids or left + right not in ids:
            if hidden & {left, right, left + right}:
                continue
            raise _bad_merge(place, line, "tokens of the vocabulary, and their join one too")
        # The vocabulary's own strings: as many again would be much memory.
        merges.append((spelled[ids[left]], spelled[ids[right]]))
    return merges


def _bad_merge(place: int, line: str, expected: str) -> ModelFileError:
    return ModelFileError(
        "malformed merge",
        field=f"{PREFIX}merges[{place}]",
        expected=expected,
        found=repr(line[:60]),
    )


def _add_user_defined(engine: Engine, vocabulary: Vocabulary, spelled: Sequence[str]) -> None:
    """User-defined tokens are text that is always taken whole (markup, runs of newlines)."""
    names = (spelled[place] for place in places_of(vocabulary.kinds, TokenKind.USER_DEFINED))
    engine.add_tokens(
        [
            AddedToken(name, normalized=False, special=False)
            for name in names
            if name and SPACE not in name
        ]
    )
