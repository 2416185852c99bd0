"""The Qwen2 family (Yang et al. 2024), also Qwen2.5: Llama's shape with biases on q, k and v."""

from __future__ import annotations

from octavo.compute.models import blocks
from octavo.compute.models.checkpoint import EMBEDDING, Checkpoint, read_config
from octavo.compute.program import Embedding, Operator, Program, RopeStyle, SiluMul


def build(checkpoint: Checkpoint) -> Program:
    """The program of one checkpoint; halves of a head rotate together."""
    config = read_config(checkpoint)
    settings = blocks.AttentionSettings(
        rope=blocks.RopeSettings(RopeStyle.HALVES, config.rope_base, config.rope_scale),
        scale=config.head_dim**-0.5,
        window=checkpoint.integer("attention.sliding_window", 0, 2**30, default=0),
        biases=True,
    )
    operators: list[Operator] = [Embedding(blocks.RESIDUAL, EMBEDDING)]
    for layer in range(config.layers):
        prefix = f"blk.{layer}."
        operators += [
            blocks.norm(
                checkpoint, config, f"{prefix}attn_norm.weight", blocks.NORMED, blocks.RESIDUAL
            ),
            *blocks.attention(checkpoint, config, layer, settings),
            blocks.add_branch(),
            blocks.norm(
                checkpoint, config, f"{prefix}ffn_norm.weight", blocks.NORMED, blocks.RESIDUAL
            ),
            *blocks.feed_forward(checkpoint, config, layer, SiluMul),
            blocks.add_branch(),
        ]
    operators += blocks.head(checkpoint, config)
    return blocks.program(checkpoint, config, operators)
