"""Ids of the real models equal those of the reference tokenizers (three minutes on free cores).

The reference is transformers' own tokenizer, loaded from the same file. Its conversion knows no
pre-tokenizer "smollm" and falls back to GPT-2's; SmolLM2's published tokenizer.json separates
digits first, so the reference gets that step here.
"""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from octavo.core.gguf import GgufFile
from octavo.text.detokenize import IncrementalDecoder
from octavo.text.templates import ChatTemplate, encode_chat
from octavo.text.tokenizer import Tokenizer

MODELS = ("smollm2", "gemma3", "qwen")
LANGUAGES = ("ar", "en", "hi", "ru", "th", "zh")
SOURCE_FILES = (
    "argparse.py",
    "inspect.py",
    "typing.py",
    "json/decoder.py",
    "tarfile.py",
    "html/entities.py",
)


@pytest.fixture(scope="module", params=MODELS)
def loaded(request: pytest.FixtureRequest) -> tuple[str, Path, Tokenizer, Any]:
    path: Path = request.getfixturevalue(f"{request.param}_path")
    metadata = GgufFile.open(path).metadata
    return request.param, path, Tokenizer.from_metadata(metadata), metadata


@pytest.fixture(scope="module")
def reference(loaded: tuple[str, Path, Tokenizer, Any]) -> Any:
    from transformers import AutoTokenizer

    name, path, _, _ = loaded
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    if name == "smollm2":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    return tokenizer


def strings_of(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_of(item)


def corpus(name: str, folder: Path) -> list[str]:
    if name == "wikitext":
        text = (folder / "wikitext-2/test.txt").read_text(encoding="utf-8")
        return [text[:100_000], *text.splitlines(keepends=True)]
    if name.startswith("xquad-"):
        path = next((folder / "xquad").glob(f"xquad.{name[6:]}*.json"))
        return list(strings_of(json.loads(path.read_text(encoding="utf-8"))))
    if name == "naughty":
        return list(json.loads((folder / "naughty-strings/blns.json").read_text(encoding="utf-8")))
    if name == "gsm8k":
        lines = (folder / "gsm8k/test.jsonl").read_text(encoding="utf-8").splitlines()
        return [text for line in lines for text in strings_of(json.loads(line))]
    if name == "tools":
        texts = [
            path.read_text(encoding="utf-8") for path in sorted((folder / "bfcl-v4").glob("*.json"))
        ]
        texts = [line for text in texts for line in text.splitlines()]
        glaive = folder / "glaive-toolcall/glaive_toolcall_en_demo.head127.json"
        return [*texts, *strings_of(json.loads(glaive.read_text(encoding="utf-8")))]
    library = Path(sysconfig.get_path("stdlib"))
    return [(library / file).read_text(encoding="utf-8") for file in SOURCE_FILES]


XQUAD = tuple(f"xquad-{code}" for code in LANGUAGES)
CORPORA = ("wikitext", *XQUAD, "naughty", "gsm8k", "tools", "code")


@pytest.mark.parametrize("name", CORPORA)
def test_ids_equal_the_reference_and_text_comes_back(
    name: str, loaded: tuple[str, Path, Tokenizer, Any], reference: Any, data_dir: Path
) -> None:
    model, _, tokenizer, _ = loaded
    texts = corpus(name, data_dir)
    assert len(texts) >= 5
    assert sum(map(len, texts)) > 10_000
    expected = reference(texts, add_special_tokens=False)["input_ids"]
    for text, ids in zip(texts, expected, strict=True):
        found = tokenizer.encode(text, add_special=False, parse_special=True)
        assert found == ids, text[:200]
        # Bytes that SmolLM2 has no token for are dropped, by the reference too; SentencePiece
        # reads its own mark for a space as a space.
        kept = text.encode("utf-8").translate(None, bytes(tokenizer.missing_bytes))
        kept = kept.replace("\u2581".encode(), b" ") if model == "gemma3" else kept
        literal = (
            tokenizer.encode(text, add_special=False, parse_special=False)
            if tokenizer.find_controls(text)
            else found
        )
        assert tokenizer.decode(literal) == kept.decode("utf-8", "replace")


def test_qwen_passes_the_published_vectors(qwen_path: Path, data_dir: Path) -> None:
    tokenizer = Tokenizer.from_metadata(GgufFile.open(qwen_path).metadata)
    for family in ("qwen2", "deepseek-r1-qwen"):
        base = data_dir / "tokenizer-vectors" / f"ggml-vocab-{family}.gguf"
        cases = base.with_suffix(".gguf.inp").read_text(encoding="utf-8")
        texts = cases.split("\n__ggml_vocab_test__\n")
        lines = base.with_suffix(".gguf.out").read_text(encoding="utf-8").split("\n")
        assert len(texts) == len(lines) == 47
        for text, line in zip(texts, lines, strict=True):
            ids = tokenizer.encode(text, add_special=False, parse_special=False)
            assert ids == [int(number) for number in line.split()], repr(text)


def test_names_of_control_tokens_stay_text_when_users_type_them(
    loaded: tuple[str, Path, Tokenizer, Any],
) -> None:
    model, _, tokenizer, metadata = loaded
    names = list(tokenizer.control_ids)
    chance = random.Random(1)
    if len(names) > 300:
        names = [*names[:20], *chance.sample(names, 280)]
    sources = {
        "smollm2": metadata.get("tokenizer.chat_template"),
        "qwen": metadata.get("tokenizer.chat_template"),
        "gemma3": "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n"
        "{{ m.content | trim }}<end_of_turn>\n{% endfor %}",
    }
    template = ChatTemplate(
        sources[model], control_names=tokenizer.control_ids, bos_token="<bos>", eos_token="<eos>"
    )
    clean = encode_chat(tokenizer, template, [{"role": "user", "content": "hello"}])
    marks = [token for token in clean if tokenizer.is_control(token)]
    assert marks
    for name in names:
        for text in (name, f"a{name}b {name}", f"<{name}", name[:-1], name[1:], f"{name}\n{name}"):
            ids = tokenizer.encode(text, add_special=False, parse_special=False)
            assert not [token for token in ids if tokenizer.is_control(token)], text
            assert tokenizer.decode(ids) == text
            chat = encode_chat(tokenizer, template, [{"role": "user", "content": text}])
            assert [token for token in chat if tokenizer.is_control(token)] == marks, text
            assert text.strip() in tokenizer.decode(chat)


def test_chat_ids_equal_the_rendered_text_encoded_whole(
    loaded: tuple[str, Path, Tokenizer, Any], data_dir: Path
) -> None:
    _, _, tokenizer, metadata = loaded
    source = metadata.get("tokenizer.chat_template") or (
        "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}"
        "<end_of_turn>\n{% endfor %}"
    )
    template = ChatTemplate(
        str(source), control_names=tokenizer.control_ids, bos_token="<bos>", eos_token="<eos>"
    )
    texts = [t for t in corpus("naughty", data_dir) if not tokenizer.find_controls(t)]
    for text in [*texts, "\n", " ", "\n\nx\n", " x ", ""]:
        messages = [{"role": "user", "content": text}]
        whole = template.render(messages).text
        ids = tokenizer.encode(whole, add_special=True, parse_special=True)
        assert encode_chat(tokenizer, template, messages) == ids


def test_pieces_join_to_the_whole_for_random_ids(
    loaded: tuple[str, Path, Tokenizer, Any],
) -> None:
    _, _, tokenizer, _ = loaded
    chance = random.Random(7)
    fragments = [i for i in range(1000) if len(tokenizer.token_bytes(i)) == 1]
    for round_number in range(300):
        pool = fragments if round_number % 2 else range(tokenizer.vocabulary_size)
        ids = [chance.choice(pool) for _ in range(chance.randrange(60))]
        for skip in (True, False):
            decoder = IncrementalDecoder(tokenizer, skip_special=skip)
            pieces = [decoder.push([token]) for token in ids]
            pieces.append(decoder.flush())
            assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip)
