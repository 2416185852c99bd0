"""The Gemma 3 family (Gemma Team 2025), text part.

Two facts are missing in most files of this family and stand here as constants: every sixth layer
sees the whole context, the others a sliding window; and those others use a rope base of their own.
Norm weights in GGUF already contain the family's "+ 1".
"""

from __future__ import annotations

import numpy as np

from octavo.compute.models import blocks
from octavo.compute.models.checkpoint import EMBEDDING, Checkpoint, Config, read_config
from octavo.compute.program import Embedding, GeluMul, Operator, Program, RopeStyle
from octavo.core.errors import ModelFileError

LAYERS_PER_FULL_ATTENTION = 6
LOCAL_ROPE_BASE = 10_000.0
LARGEST_MODEL_LAYERS = 62
"""The 27B model alone scales attention by its hidden size per head instead of its head size."""


def build(checkpoint: Checkpoint) -> Program:
    """The program of one checkpoint."""
    config = read_config(checkpoint)
    # The published models round the factor to the weights' format; float32 keeps all of it.
    scale = float(np.sqrt(np.float32(config.hidden)))
    operators: list[Operator] = [Embedding(blocks.RESIDUAL, EMBEDDING, scale)]
    for layer in range(config.layers):
        operators += _layer(checkpoint, config, layer)
    operators += blocks.head(
        checkpoint, config, checkpoint.number("final_logit_softcapping", 0.0, 1e6, default=0.0)
    )
    return blocks.program(checkpoint, config, operators)


def _layer(checkpoint: Checkpoint, config: Config, layer: int) -> list[Operator]:
    prefix = f"blk.{layer}."

    def norm(name: str, out: str, x: str) -> Operator:
        return blocks.norm(checkpoint, config, f"{prefix}{name}.weight", out, x)

    return [
        norm("attn_norm", blocks.NORMED, blocks.RESIDUAL),
        *blocks.attention(checkpoint, config, layer, _attention(checkpoint, config, layer)),
        norm("post_attention_norm", blocks.BRANCH, blocks.BRANCH),
        blocks.add_branch(),
        norm("ffn_norm", blocks.NORMED, blocks.RESIDUAL),
        *blocks.feed_forward(checkpoint, config, layer, GeluMul),
        norm("post_ffw_norm", blocks.BRANCH, blocks.BRANCH),
        blocks.add_branch(),
    ]


def _attention(checkpoint: Checkpoint, config: Config, layer: int) -> blocks.AttentionSettings:
    sees_all = _sees_all(checkpoint, config, layer)
    if sees_all:
        rope = blocks.RopeSettings(RopeStyle.HALVES, config.rope_base, config.rope_scale)
        window = 0
    else:
        base = checkpoint.number("rope.freq_base_swa", 1.0, 1e12, default=LOCAL_ROPE_BASE)
        rope = blocks.RopeSettings(RopeStyle.HALVES, base)
        window = checkpoint.integer("attention.sliding_window", 1, 2**30)
    size = config.head_dim
    if config.layers == LARGEST_MODEL_LAYERS:
        size = config.hidden // config.heads
    return blocks.AttentionSettings(
        rope=rope,
        scale=checkpoint.number("attention.scale", 1e-6, 1e6, default=size**-0.5),
        window=window,
        softcap=checkpoint.number("attn_logit_softcapping", 0.0, 1e6, default=0.0),
        head_norms=True,
    )


def _sees_all(checkpoint: Checkpoint, config: Config, layer: int) -> bool:
    """Whether a layer has no window: by period, or by a list of "has a window" for each layer."""
    name = "attention.sliding_window_pattern"
    key = checkpoint.key(name)
    if not checkpoint.has(name) or checkpoint.file.metadata.array_length(key) is None:
        period = checkpoint.integer(name, 1, 2**16, default=LAYERS_PER_FULL_ATTENTION)
        return (layer + 1) % period == 0
    pattern = checkpoint.file.array(key)
    if len(pattern) != config.layers:
        raise ModelFileError(
            "bad list of layers with a window",
            field=key,
            expected=f"{config.layers} entries",
            found=f"{len(pattern)}",
        )
    return not pattern[layer]
