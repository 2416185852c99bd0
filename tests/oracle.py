"""Logits of transformers in float32 on a GGUF file's weights, and how well a model agrees.

The oracle shares nothing with Octavo: transformers reads the file, dequantises it with the `gguf`
package, undoes the reordering of q and k and runs its own model code. Only its final hidden states
and its head are kept; logits are made a block of tokens at a time, for a whole text of a large
vocabulary would take gigabytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np
import torch
import transformers

from octavo.compute.batch import Batch, StepModel
from octavo.compute.kernels.cpu.model import CpuModel
from octavo.compute.kernels.reference.model import ReferenceModel
from octavo.compute.load.source import GgufWeights
from octavo.compute.models.registry import load_program
from octavo.core.gguf import GgufFile
from octavo.text.tokenizer import Tokenizer

WINDOW_TOKENS = 1024
"""Twice gemma3's sliding window, so that masking by window is part of the comparison."""

BLOCK_TOKENS = 128
PAGE_TOKENS = 32

Windows = list[list[int]]


@dataclass(frozen=True)
class Agreement:
    """Share of tokens with the same most likely successor, and mean KL(oracle || model) in nats."""

    tokens: int
    top1: float
    mean_kl: float


@dataclass(frozen=True)
class Oracle:
    """Final hidden states [tokens, hidden] of each window of each text, and the head's matrix."""

    texts: Mapping[str, Windows]
    hidden: Mapping[str, list[torch.Tensor]]
    head: torch.Tensor
    config: transformers.PretrainedConfig


def open_cpu(
    path: Path, activations: str, kv_format: str = "fp16", tier: str | None = None
) -> CpuModel:
    with GgufFile.open(path) as file:
        return CpuModel(
            load_program(file),
            GgufWeights(file),
            activations=activations,
            kv_format=kv_format,
            tier=tier,
        )


def open_numpy(path: Path) -> ReferenceModel:
    with GgufFile.open(path) as file:
        return ReferenceModel(load_program(file), GgufWeights(file))


def english(data_dir: Path) -> str:
    """Encyclopedia articles."""
    return (data_dir / "wikitext-2" / "test.txt").read_text(encoding="utf-8")[:24_000]


def chinese(data_dir: Path) -> str:
    """Paragraphs on many subjects."""
    articles = json.loads((data_dir / "xquad" / "xquad.zh.json").read_text(encoding="utf-8"))
    paragraphs = [part["context"] for item in articles["data"] for part in item["paragraphs"]]
    return "\n\n".join(paragraphs)[:8_000]


def sample_texts(path: Path, data_dir: Path) -> dict[str, Windows]:
    """2,048 tokens of English and 1,024 of Chinese in the tokens of a model."""
    with GgufFile.open(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    return {
        "english": _windows(tokenizer, english(data_dir), 2),
        "chinese": _windows(tokenizer, chinese(data_dir), 1),
    }


def _windows(tokenizer: Tokenizer, text: str, count: int) -> Windows:
    """The first `count` windows of a text, each with the BOS that the file asks for."""
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    cut = WINDOW_TOKENS - int(tokenizer.add_bos)
    found = [tokenizer.with_bos(ids[at : at + cut]) for at in range(0, count * cut, cut)]
    if any(len(window) != WINDOW_TOKENS for window in found):
        raise ValueError(f"the text has fewer than {count * WINDOW_TOKENS} tokens")
    return found


@torch.inference_mode()
def consult(path: Path, texts: Mapping[str, Windows]) -> Oracle:
    """Run transformers once over all windows; takes about a minute, most of it loading."""
    transformers.utils.logging.disable_progress_bar()
    with _remembering(gguf, "GGUFReader", "get_tensor_name_map"):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    config = model.config
    if config.model_type == "gemma3_text":
        _check_gemma3(config)
    hidden = {
        name: [model.model(torch.tensor([ids])).last_hidden_state[0] for ids in text]
        for name, text in texts.items()
    }
    return Oracle(texts, hidden, model.lm_head.weight.detach(), config)


@contextmanager
def _remembering(module: ModuleType, *names: str) -> Iterator[None]:
    """Answer equal calls once: transformers parses the file twice and maps names for each module.

    This halves the time of loading and changes nothing else.
    """
    before = {name: getattr(module, name) for name in names}
    for name, function in before.items():
        setattr(module, name, cache(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def _check_gemma3(config: transformers.PretrainedConfig) -> None:
    """The file lacks these facts; transformers fills them in, and a wrong filling must show."""
    full = [number for number, kind in enumerate(config.layer_types) if kind == "full_attention"]
    rope = config.rope_parameters
    facts = (full, config.sliding_window, rope["sliding_attention"]["rope_theta"])
    if facts != ([5, 11, 17], 512, 10_000.0) or config.final_logit_softcapping is not None:
        raise AssertionError(f"transformers reads the gemma3 file differently: {facts}")


def model_logits(model: StepModel, ids: Sequence[int]) -> Iterator[np.ndarray]:
    """Logits [up to BLOCK_TOKENS, vocabulary] of a window, prefilled block by block."""
    pages = -(-len(ids) // PAGE_TOKENS)
    model.allocate_kv(pages, PAGE_TOKENS)
    table = np.arange(pages, dtype=np.int32)[::-1].reshape(1, -1).copy()
    for start in range(0, len(ids), BLOCK_TOKENS):
        tokens = np.array(ids[start : start + BLOCK_TOKENS], dtype=np.int32)
        starts = np.array([0, len(tokens)], dtype=np.int32)
        batch = Batch(tokens, starts, np.array([start], dtype=np.int32), table)
        yield model.logits(batch, range(len(tokens)))


@torch.inference_mode()
def compare(
    oracle: Oracle, models: Mapping[str, StepModel], name: str, limit: int | None = None
) -> dict[str, Agreement]:
    """Agreement of each model on one text (or its first `limit` tokens).

    The models go through the text side by side, so that the oracle's logits are made once.
    """
    same = dict.fromkeys(models, 0)
    divergence = dict.fromkeys(models, 0.0)
    tokens = 0
    for ids, hidden in zip(oracle.texts[name], oracle.hidden[name], strict=True):
        kept = ids[: None if limit is None else max(0, limit - tokens)]
        runs = {key: model_logits(model, kept) for key, model in models.items()}
        for start in range(0, len(kept), BLOCK_TOKENS):
            states = hidden[start : min(start + BLOCK_TOKENS, len(kept))]
            expected = torch.log_softmax(states @ oracle.head.T, dim=-1)
            likely = expected.exp()
            tokens += len(states)
            for key, run in runs.items():
                found = torch.log_softmax(torch.from_numpy(next(run)), dim=-1)
                same[key] += int((expected.argmax(-1) == found.argmax(-1)).sum())
                loss = likely * (expected - found)
                divergence[key] += float(loss.sum(dtype=torch.float64))
    return {key: Agreement(tokens, same[key] / tokens, divergence[key] / tokens) for key in models}
