"""Random models of a few hundred kilobytes, with a tokenizer, for tests that need no real one.

They are whole GGUF files: every family, format and switch of a real file can be had in
milliseconds. Weights are random but scaled so that logits are finite and spread out.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path

import gguf
import numpy as np

FAMILIES = ("llama", "qwen2", "gemma3")
MIXED = ("Q8_0", "Q5_0", "Q4_1", "F16", "Q4_0", "Q5_1")
TEXT = (
    "the cat sat on the mat and then the other cat came in from the cold rain to sit there too "
    "one two three four five six seven eight nine ten hello world what is the answer to this "
    "question please write a short story about an old man and the sea in plain words"
)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinySizes:
    """Sizes in elements, `window` in tokens (gemma3 only)."""

    layers: int = 2
    hidden: int = 64
    feed_forward: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    window: int = 24


SIZES = {
    "llama": TinySizes(),
    "qwen2": TinySizes(layers=3, heads=6, kv_heads=2, feed_forward=96, hidden=96),
    "gemma3": TinySizes(layers=6, kv_heads=1, head_dim=32),
}


def make_tiny_gguf(
    path: Path,
    family: str = "llama",
    seed: int = 0,
    quant: str = "Q8_0",
    vocabulary: int = 512,
    context: int = 512,
    sizes: TinySizes | None = None,
    tied: bool | None = None,
    drop: frozenset[str] = frozenset(),
    override: dict[str, object] | None = None,
) -> Path:
    """Write a model to `path` and return it.

    `quant` is a format the gguf package can quantise to (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1,
    Q8_0) or "mixed", which takes the formats of `MIXED` in turn. `vocabulary` is at least 320.
    `drop` leaves tensors or keys out, and `override` sets keys: with these, tests make damaged
    files.
    """
    sizes = sizes or SIZES[family]
    writer = gguf.GGUFWriter(path, family)
    keys = {**_config(family, sizes, context), **_tokenizer(family, vocabulary), **(override or {})}
    for key, value in keys.items():
        if key not in drop:
            _add(writer, key, value)
    tied = family != "qwen2" if tied is None else tied
    formats = cycle(MIXED if quant == "mixed" else (quant,))
    rng = np.random.default_rng(seed)
    for name, shape in _tensors(family, sizes, vocabulary, tied).items():
        values = _values(rng, name, shape)
        form = gguf.GGMLQuantizationType[next(formats)] if len(shape) == 2 else None
        if name in drop:
            continue
        if form is None or form is gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if key == "general.architecture":
        writer.kv_data[0].pop(key, None)
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _config(family: str, sizes: TinySizes, context: int) -> dict[str, object]:
    config: dict[str, object] = {
        "block_count": sizes.layers,
        "context_length": context,
        "embedding_length": sizes.hidden,
        "feed_forward_length": sizes.feed_forward,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10_000.0 if family == "llama" else 1_000_000.0,
    }
    if family == "gemma3":
        config["attention.sliding_window"] = sizes.window
    return {"general.name": f"tiny {family}"} | {f"{family}.{k}": v for k, v in config.items()}


def _tensors(
    family: str, sizes: TinySizes, vocabulary: int, tied: bool
) -> dict[str, tuple[int, ...]]:
    hidden, inner = sizes.hidden, sizes.feed_forward
    query, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, hidden)}
    for layer in range(sizes.layers):
        block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (hidden,),
            "attn_q.weight": (query, hidden),
            "attn_k.weight": (kv, hidden),
            "attn_v.weight": (kv, hidden),
            "attn_output.weight": (hidden, query),
            "ffn_norm.weight": (hidden,),
            "ffn_gate.weight": (inner, hidden),
            "ffn_up.weight": (inner, hidden),
            "ffn_down.weight": (hidden, inner),
        }
        if family == "qwen2":
            block |= {"attn_q.bias": (query,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
        if family == "gemma3":
            block |= {"attn_q_norm.weight": (sizes.head_dim,)}
            block |= {"attn_k_norm.weight": (sizes.head_dim,)}
            block |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    shapes["output_norm.weight"] = (hidden,)
    if not tied:
        shapes["output.weight"] = (vocabulary, hidden)
    return shapes


def _values(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("norm.weight"):
        return 1.0 + np.float32(0.1) * values
    if name.endswith(".bias"):
        return np.float32(0.2) * values
    if name in ("token_embd.weight", "output.weight"):
        return np.float32(0.35) * values
    return values / np.float32(math.sqrt(shape[1]))


def _tokenizer(family: str, vocabulary: int) -> dict[str, object]:
    if vocabulary < 320:
        raise ValueError("a tiny vocabulary has at least 320 tokens: bytes, specials and letters")
    return _spm(vocabulary) if family == "gemma3" else _bpe(family, vocabulary)


def _train(words: list[list[str]], count: int) -> list[tuple[str, str]]:
    """Plain byte-pair training (Sennrich et al. 2016): the commonest pair first."""
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = [_merge(word, best) for word in words]
    return merges


def _merge(word: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for piece in word:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def _bpe(family: str, vocabulary: int) -> dict[str, object]:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = list(_byte_letters().values())
    words = [list(("Ġ" if number else "") + word) for number, word in enumerate(TEXT.split())]
    merges = _train(words, vocabulary - len(specials) - len(letters))
    joined = list(dict.fromkeys(left + right for left, right in merges))
    tokens = specials + letters + joined
    kinds = [3] * len(specials) + [1] * (len(tokens) - len(specials))
    unused = vocabulary - len(tokens)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2" if family == "qwen2" else "gpt-2",
        "tokenizer.ggml.tokens": tokens + [f"[PAD{number}]" for number in range(unused)],
        "tokenizer.ggml.token_type": kinds + [5] * unused,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": CHATML,
    }


def _spm(vocabulary: int) -> dict[str, object]:
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    kinds = [3, 3, 3, 2, 3, 3]
    tokens = [*specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds += [6] * 256
    scores = [0.0] * len(tokens)
    letters = sorted({letter for letter in TEXT if letter != " "} | {"▁", "\n", "."})
    words = [list("▁" + word) for word in TEXT.split()]
    merges = _train(words, vocabulary - len(tokens) - len(letters))
    pieces = list(dict.fromkeys(left + right for left, right in merges))
    # A piece's score ranks its merge; letters come after all merges, as in trained models.
    tokens += pieces + letters
    scores += [-float(rank) for rank in range(len(pieces) + len(letters))]
    kinds += [1] * (len(pieces) + len(letters))
    unused = vocabulary - len(tokens)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens + [f"<unused{number}>" for number in range(unused)],
        "tokenizer.ggml.scores": scores + [-1000.0] * unused,
        "tokenizer.ggml.token_type": kinds + [5] * unused,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": GEMMA,
    }


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte, in the order of its vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain}
    return letters | {byte: chr(256 + number) for number, byte in enumerate(hidden)}
