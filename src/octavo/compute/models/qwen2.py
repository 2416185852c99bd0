"""The Qwen2 family (Yang et al. 2024), also Qwen2.5: Llama's shape with biases on q, k and v."""

from __future__ import annotations

from octavo.compute.models import blocks
from octavo.compute.models.checkpoint import Checkpoint, read_config
from octavo.compute.program import Program, RopeStyle


def build(checkpoint: Checkpoint) -> Program:
    """The program of one checkpoint; halves of a head rotate together."""
    config = read_config(checkpoint)
    settings = blocks.AttentionSettings(
        rope=blocks.RopeSettings(RopeStyle.HALVES, config.rope_base, config.rope_scale),
        scale=config.head_dim**-0.5,
        window=checkpoint.integer("attention.sliding_window", 0, 2**30, default=0),
        biases=True,
    )
    return blocks.pre_norm_decoder(checkpoint, config, settings)
