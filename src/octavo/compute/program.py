"""A model as a plain value: a list of plain operators over named tensors.

No tensor library, no device. Interpreters run it (`compute.kernels.reference` with numpy,
`compute.kernels.cpu` in C++); each may lower it in a pass of its own. Activations are float32
matrices [tokens, width]; weights are named as in the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from octavo.core.cache_groups import CacheGroups, group_layers


class RopeStyle(Enum):
    """Which elements rotate together: neighbours (2i, 2i+1) or halves (i, i + n/2)."""

    INTERLEAVED = "interleaved"
    HALVES = "halves"


@dataclass(frozen=True, slots=True)
class Embedding:
    """out[t] = weight[token[t]] * scale."""

    out: str
    weight: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Per token, and per head where `heads` > 1 (the weight then has width/heads elements).

    out = x / sqrt(mean(x²) + eps) * weight
    """

    out: str
    x: str
    weight: str
    eps: float
    heads: int = 1


@dataclass(frozen=True, slots=True)
class Linear:
    """out = x · weightᵀ (+ bias); weight [out width, in width]."""

    out: str
    x: str
    weight: str
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021) on the first `dims` of each head.

    Angle of pair i at position p: p * base^(-2i/dims) * scale / factor[i]; `factors` names an
    optional float32 tensor [dims/2] of the checkpoint.
    """

    out: str
    x: str
    heads: int
    head_dim: int
    dims: int
    base: float
    style: RopeStyle
    scale: float = 1.0
    factors: str | None = None


@dataclass(frozen=True, slots=True)
class KvWrite:
    """Store k and v [tokens, kv_heads * head_dim] of `layer` in the format of the cache."""

    k: str
    v: str
    layer: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal attention of q [tokens, heads * head_dim] over the cache of `layer`.

    `window` = 0 sees all earlier tokens; otherwise only the last `window` tokens, itself included.
    K and V are read as stored, also those of this step. `softcap` c > 0: s = c * tanh(s / c).
    """

    out: str
    q: str
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class SiluMul:
    """out = gate * sigmoid(gate) * up."""

    out: str
    gate: str
    up: str


@dataclass(frozen=True, slots=True)
class GeluMul:
    """out = gelu(gate) * up with the tanh approximation of gelu."""

    out: str
    gate: str
    up: str


@dataclass(frozen=True, slots=True)
class Add:
    """out = a + b; `out` may name `a` again (the residual stream)."""

    out: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Logits:
    """Head: x · weightᵀ for the tokens whose logits are wanted; the last operator of a program.

    `norm` is applied before it in the program as its own operator. `softcap` as in Attention.
    """

    x: str
    weight: str
    softcap: float = 0.0


Operator = (
    Embedding | RmsNorm | Linear | Rope | KvWrite | Attention | SiluMul | GeluMul | Add | Logits
)


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Shape of the KV cache: every layer has equal heads and head size."""

    layers: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Program:
    """A model family's computation for one checkpoint.

    `widths` gives the width of every activation named by an operator.
    """

    family: str
    operators: tuple[Operator, ...]
    widths: dict[str, int]
    kv: KvLayout
    vocabulary_size: int
    context_tokens: int
    hidden_size: int

    def cache_groups(self) -> CacheGroups:
        """Groups in which layers with a window need not keep what they do not see."""
        windows = [0] * self.kv.layers
        for operator in self.operators:
            if isinstance(operator, Attention):
                windows[operator.layer] = operator.window
        return group_layers(windows)
