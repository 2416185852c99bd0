"""Prompts of the wanted number of tokens, each different from its first words on."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from benchmarks.serving.connection import Clock, Target, ask_json

Prompt = str | list[int]
Tokenize = Callable[[str], Awaitable[list[int]]]
Probe = Callable[[str], Awaitable[int | None]]
"""Asks the server for one token and returns how many tokens it says the prompt had, if it does."""

# One token each in most vocabularies, with the space before it.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea body information back "
    "parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
)
WORDS = _TEXT.split()
_PROBE_WORDS = (24, 120)
_FILLERS = (" a", " .", " x", " 1", "?", "!")


class PromptError(Exception):
    """The server does not say what is needed to make prompts for it."""


def words(seed: int, number: int) -> Iterator[str]:
    """The endless text of one prompt of one run."""
    chance = random.Random(f"prompt {seed} {number}")
    while True:
        yield chance.choice(WORDS)


async def find_tokenize(
    target: Target, model: str | None, file: Path | None, clock: Clock
) -> Tokenize | None:
    """Text to ids without anything added: by `file`, else by the server's /tokenize, else None.

    Raises:
        PromptError: the file is no tokenizer.
    """
    if file is not None:
        encode = open_tokenizer(file)

        async def by_file(text: str) -> list[int]:
            return encode(text)

        return by_file

    async def by_server(text: str) -> list[int]:
        # The names of vLLM, SGLang and Octavo, and those of llama.cpp; each ignores the other's.
        body: dict[str, object] = {
            "prompt": text,
            "content": text,
            "add_special_tokens": False,
            "add_special": False,
        }
        if model is not None:
            body["model"] = model
        status, found = await ask_json(target, "POST", "/tokenize", body, clock=clock)
        tokens = found.get("tokens") if isinstance(found, dict) else None
        if status != 200 or not isinstance(tokens, list):
            raise PromptError(f"/tokenize answered with status {status} and no tokens")
        return tokens

    try:
        await by_server("a word")
    except PromptError:
        return None
    return by_server


def open_tokenizer(file: Path) -> Callable[[str], list[int]]:
    """Text to ids without anything added, by a GGUF file or a tokenizer.json.

    Raises:
        PromptError: the file is no tokenizer.
    """
    if file.suffix == ".gguf":
        from octavo.core.errors import OctavoError
        from octavo.core.gguf import GgufFile
        from octavo.text.tokenizer import Tokenizer

        try:
            with GgufFile.open(file) as opened:
                known = Tokenizer.from_metadata(opened.metadata)
        except OctavoError as error:
            raise PromptError(str(error)) from error
        return lambda text: known.encode(text, add_special=False, parse_special=False)
    import tokenizers

    try:
        loaded = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises the base class itself
        raise PromptError(f"{file} is no tokenizer.json: {error}") from error
    return lambda text: loaded.encode(text, add_special_tokens=False).ids


class PromptMaker:
    """Makes prompts as token ids (`as_ids`, exact) or as text.

    Text is fitted with the tokenizer, and with what the server adds to it (its template, a token
    at the beginning), which one probe tells if the server counts prompt tokens. Without a tokenizer
    two probes tell how many tokens a word has, and lengths are near what is wanted; the report
    shows how near.
    """

    def __init__(self, tokenize: Tokenize | None, probe: Probe, *, as_ids: bool):
        if as_ids and tokenize is None:
            raise PromptError("token ids need a tokenizer: give a file, or send text")
        self.as_ids = as_ids
        self._tokenize = tokenize
        self._probe = probe
        self._added_tokens = 0
        self._tokens_per_word = 1.0

    async def calibrate(self, seed: int) -> None:
        """Ask the server what it adds to a text. Needed once, before the first text prompt."""
        if self.as_ids:
            return
        if self._tokenize is not None:
            text = _text(words(seed, -1), _PROBE_WORDS[0])
            counted = await self._probe(text)
            if counted is not None:
                self._added_tokens = counted - len(await self._tokenize(text))
            return
        few, many = _PROBE_WORDS
        tokens_of_few = await self._probe(_text(words(seed, -1), few))
        tokens_of_many = await self._probe(_text(words(seed, -2), many))
        if tokens_of_few is None or tokens_of_many is None or tokens_of_many <= tokens_of_few:
            raise PromptError("the server counts no prompt tokens: give a tokenizer file")
        self._tokens_per_word = (tokens_of_many - tokens_of_few) / (many - few)
        self._added_tokens = round(tokens_of_few - few * self._tokens_per_word)

    async def make(self, seed: int, number: int, tokens: int) -> Prompt:
        """A prompt of `tokens` tokens as the server counts them.

        Raises:
            PromptError: what the server adds is that long already.
        """
        endless = words(seed, number)
        if self.as_ids:
            return await self._ids(endless, tokens)
        wanted = tokens - self._added_tokens
        if wanted < 1:
            raise PromptError(
                f"a prompt of {tokens} tokens is too short here: the server itself adds "
                f"{self._added_tokens}"
            )
        if self._tokenize is None:
            return _text(endless, max(1, round(wanted / self._tokens_per_word)))
        return await self._fitted(endless, wanted)

    async def _ids(self, endless: Iterator[str], tokens: int) -> list[int]:
        assert self._tokenize is not None
        ids: list[int] = []
        while len(ids) < tokens:
            ids += await self._tokenize(_text(endless, tokens - len(ids) + 8))
        return ids[:tokens]

    async def _fitted(self, endless: Iterator[str], tokens: int) -> str:
        """Cut a text that is long enough at the character that gives it `tokens` tokens, which is
        searched for as a root is: by interpolation, within bounds that close in. Where a merge of
        letters leaves the number out, punctuation fills up."""
        assert self._tokenize is not None
        text = _text(endless, tokens)
        low, high, end = 1, len(text), len(text)
        shorter, shorter_tokens = "", 0
        while low <= high:
            cut = text[:end].rstrip()
            found = len(await self._tokenize(cut))
            if found == tokens:
                return cut
            if found > tokens:
                high = end - 1
            else:
                low = end + 1
                shorter, shorter_tokens = cut, found
            end = min(max(round(end * tokens / found), low), high)
        for filler in _FILLERS:
            filled = shorter + filler * (tokens - shorter_tokens)
            if len(await self._tokenize(filled)) == tokens:
                return filled
        return shorter or text[0]


def _text(endless: Iterator[str], count: int) -> str:
    return " ".join(next(endless) for _ in range(count))
