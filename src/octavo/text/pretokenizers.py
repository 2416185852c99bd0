"""How text is cut before merges apply, by the names of `tokenizer.ggml.pre`.

Byte-level vocabularies are trained on text cut by a regular expression; with another cut the ids
are wrong although the text comes back. The definitions are those published in the models' own
`tokenizer.json`; each `Cut` says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, pre_tokenizers

from octavo.core.errors import ModelFileError

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ENGLISH}|{_WORD}|\p{{N}}|{_REST}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CASED_UPPER = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_TEKKEN = rf"{_CASED}|{_CASED_UPPER}|\p{{N}}|{_CASED_REST}"
_GPT4O = rf"{_CASED}{_ENGLISH}?|{_CASED_UPPER}{_ENGLISH}?|\p{{N}}{{1,3}}|{_CASED_REST}"
_CJK = r"[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    r"Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤ"
    r"Ⳬ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
_DEEPSEEK_MARKS = r"\s?[!-/:-~！-／：-～‘-‟　-。]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to cut text.

    `patterns` apply one after the other, each to the pieces of the last; what a pattern does not
    match is a piece too. `whole_words` takes a piece that is a token as it is, without merges.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        steps = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in self.patterns]
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*steps, spell])


class FalconCut(Cut):
    """Falcon looks for digits after it spelled the bytes, where some bytes look like digits."""

    def build(self) -> pre_tokenizers.PreTokenizer:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Punctuation(behavior="contiguous"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
                pre_tokenizers.Digits(individual_digits=False),
                pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"),
            ]
        )


_PLAIN = Cut((_GPT2,))
_DIGITS = Cut((r"\p{N}", _GPT2))
_LLAMA3_CUT = Cut((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN2_CUT = Cut((_QWEN2,))
_GPT4O_CUT = Cut((_GPT4O,))
_FALCON = FalconCut((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"))

CUTS: Final[dict[str, Cut]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "mellum"), _PLAIN),
    **dict.fromkeys(("jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v2-code"), _PLAIN),
    **dict.fromkeys(("modern-bert", "roberta-bpe", "a.x-4.0"), _PLAIN),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1"), _LLAMA3_CUT),
    **dict.fromkeys(("pixtral", "midm-2.0", "lfm2", "jina-v5-nano"), _LLAMA3_CUT),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), Cut((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan"), _QWEN2_CUT),
    **dict.fromkeys(("megrez", "kormo", "f2llmv2"), _QWEN2_CUT),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O_CUT),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), Cut((_BLOOM,))),
    "viking": Cut((_BLOOM, r"\p{N}")),
    "tekken": Cut((_TEKKEN,), whole_words=True, add_bos=True),
    "falcon": _FALCON,
    "deepseek-llm": Cut((r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_MARKS, r"\s+$", _CJK, r"\p{N}")),
    "deepseek-coder": Cut((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-v3": Cut((r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK3)),
}


def find_cut(name: str | None) -> Cut:
    """The cut of that name.

    Raises:
        ModelFileError: the file names none, or one that is not known.
    """
    if name is not None and name in CUTS:
        return CUTS[name]
    what = "the file does not name one" if name is None else f"unknown: {name!r}"
    raise ModelFileError(
        f"pre-tokenizer: {what}",
        field="tokenizer.ggml.pre",
        remedy=f"set pre_tokenizer to the right one of: {', '.join(sorted(CUTS))}",
    )
