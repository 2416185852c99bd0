"""The Llama family (Touvron et al. 2023): Llama 2 and 3, Mistral, SmolLM, Yi and their kin."""

from __future__ import annotations

from octavo.compute.models import blocks
from octavo.compute.models.checkpoint import ROPE_FACTORS, Checkpoint, read_config
from octavo.compute.program import Program, RopeStyle


def build(checkpoint: Checkpoint) -> Program:
    """The program of one checkpoint.

    GGUF files of this family have the rows of q and k reordered, so that neighbours rotate
    together. Llama 3.1's position scaling comes as a tensor of factors.
    """
    config = read_config(checkpoint)
    factors = checkpoint.optional(ROPE_FACTORS, config.rope_dims // 2)
    settings = blocks.AttentionSettings(
        rope=blocks.RopeSettings(
            RopeStyle.INTERLEAVED, config.rope_base, config.rope_scale, factors
        ),
        scale=checkpoint.number("attention.scale", 1e-6, 1e6, default=config.head_dim**-0.5),
        window=checkpoint.integer("attention.sliding_window", 0, 2**30, default=0),
    )
    return blocks.pre_norm_decoder(checkpoint, config, settings)
