"""Parts that families share, as lists of operators.

Activations: "residual" runs through the model; "normed" is the input of a branch; "branch" its
output; "q", "k", "v" and "gate", "up" are rewritten in place by norms, rope and the activation.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.compute.models.checkpoint import EMBEDDING, HEAD, HEAD_NORM, Checkpoint, Config
from octavo.compute.program import (
    Add,
    Attention,
    Embedding,
    GeluMul,
    KvLayout,
    KvWrite,
    Linear,
    Logits,
    Operator,
    Program,
    RmsNorm,
    Rope,
    RopeStyle,
    SiluMul,
)

RESIDUAL = "residual"
NORMED = "normed"
BRANCH = "branch"


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """How a layer rotates queries and keys; see `program.Rope`."""

    style: RopeStyle
    base: float
    scale: float = 1.0
    factors: str | None = None


@dataclass(frozen=True, slots=True)
class AttentionSettings:
    """What differs between families (and layers) in attention; `window` in tokens, 0 is none."""

    rope: RopeSettings
    scale: float
    window: int = 0
    softcap: float = 0.0
    head_norms: bool = False
    biases: bool = False
    """Biases of q, k and v must be there; otherwise they are used where the file has them."""


def norm(checkpoint: Checkpoint, config: Config, name: str, out: str, x: str) -> RmsNorm:
    """RMS norm over the hidden size."""
    return RmsNorm(out, x, checkpoint.require(name, config.hidden), config.eps)


def attention(
    checkpoint: Checkpoint, config: Config, layer: int, settings: AttentionSettings
) -> list[Operator]:
    """From "normed" to "branch": projections, rope, cache, attention, output projection."""
    prefix = f"blk.{layer}."
    operators: list[Operator] = []
    for out, width in (("q", config.query_width), ("k", config.kv_width), ("v", config.kv_width)):
        name = f"{prefix}attn_{out}"
        bias = (
            checkpoint.require(f"{name}.bias", width)
            if settings.biases
            else checkpoint.optional(f"{name}.bias", width)
        )
        weight = checkpoint.require(f"{name}.weight", width, config.hidden)
        operators.append(Linear(out, NORMED, weight, bias))
    for out, heads in (("q", config.heads), ("k", config.kv_heads)):
        if settings.head_norms:
            weight = checkpoint.require(f"{prefix}attn_{out}_norm.weight", config.head_dim)
            operators.append(RmsNorm(out, out, weight, config.eps, heads))
        operators.append(_rope(config, settings.rope, out, heads))
    output = checkpoint.require(f"{prefix}attn_output.weight", config.hidden, config.query_width)
    operators += [
        KvWrite("k", "v", layer),
        Attention(
            "attended",
            "q",
            layer,
            config.heads,
            config.kv_heads,
            config.head_dim,
            settings.scale,
            settings.window,
            settings.softcap,
        ),
        Linear(
            BRANCH,
            "attended",
            output,
            checkpoint.optional(f"{prefix}attn_output.bias", config.hidden),
        ),
    ]
    return operators


def feed_forward(
    checkpoint: Checkpoint, config: Config, layer: int, activation: type[SiluMul] | type[GeluMul]
) -> list[Operator]:
    """From "normed" to "branch": the gated feed-forward part (Shazeer 2020)."""
    prefix = f"blk.{layer}.ffn_"
    inner, hidden = config.feed_forward, config.hidden

    def linear(out: str, x: str, part: str, rows: int, columns: int) -> Linear:
        weight = checkpoint.require(f"{prefix}{part}.weight", rows, columns)
        return Linear(out, x, weight, checkpoint.optional(f"{prefix}{part}.bias", rows))

    return [
        linear("gate", NORMED, "gate", inner, hidden),
        linear("up", NORMED, "up", inner, hidden),
        activation("gate", "gate", "up"),
        linear(BRANCH, "gate", "down", hidden, inner),
    ]


def add_branch() -> Add:
    """Add the branch to the residual stream."""
    return Add(RESIDUAL, RESIDUAL, BRANCH)


def head(checkpoint: Checkpoint, config: Config, softcap: float = 0.0) -> list[Operator]:
    """Final norm and logits; without an own matrix the head is the embedding's."""
    weight = checkpoint.optional(HEAD, config.vocabulary, config.hidden) or EMBEDDING
    return [
        norm(checkpoint, config, HEAD_NORM, NORMED, RESIDUAL),
        Logits(NORMED, weight, softcap),
    ]


def program(checkpoint: Checkpoint, config: Config, operators: list[Operator]) -> Program:
    """Close a family's list of operators into a program, once no tensor is left over."""
    checkpoint.refuse_unused()
    return Program(
        family=checkpoint.family,
        operators=tuple(operators),
        widths={
            RESIDUAL: config.hidden,
            NORMED: config.hidden,
            BRANCH: config.hidden,
            "q": config.query_width,
            "k": config.kv_width,
            "v": config.kv_width,
            "attended": config.query_width,
            "gate": config.feed_forward,
            "up": config.feed_forward,
        },
        kv=KvLayout(config.layers, config.kv_heads, config.head_dim),
        vocabulary_size=config.vocabulary,
        context_tokens=config.context,
        hidden_size=config.hidden,
    )


def pre_norm_decoder(
    checkpoint: Checkpoint, config: Config, settings: AttentionSettings
) -> Program:
    """The whole program of families with one norm before each branch and a SiLU gate."""
    operators: list[Operator] = [Embedding(RESIDUAL, EMBEDDING)]
    for layer in range(config.layers):
        prefix = f"blk.{layer}."
        operators += [
            norm(checkpoint, config, f"{prefix}attn_norm.weight", NORMED, RESIDUAL),
            *attention(checkpoint, config, layer, settings),
            add_branch(),
            norm(checkpoint, config, f"{prefix}ffn_norm.weight", NORMED, RESIDUAL),
            *feed_forward(checkpoint, config, layer, SiluMul),
            add_branch(),
        ]
    operators += head(checkpoint, config)
    return program(checkpoint, config, operators)


def _rope(config: Config, settings: RopeSettings, name: str, heads: int) -> Rope:
    return Rope(
        name,
        name,
        heads,
        config.head_dim,
        config.rope_dims,
        settings.base,
        settings.style,
        settings.scale,
        settings.factors,
    )
