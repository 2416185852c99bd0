"""Joins operators that the kernels run as one, and tells how long activations live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.compute.program import (
    Add,
    Attention,
    Embedding,
    GeluMul,
    KvWrite,
    Linear,
    Logits,
    Operator,
    RmsNorm,
    Rope,
    SiluMul,
)


@dataclass(frozen=True, slots=True)
class LinearAdd:
    """out = residual + (x · weightᵀ (+ bias)): a Linear and the Add behind it, with their bits."""

    out: str
    x: str
    weight: str
    bias: str | None
    residual: str


Fused = Operator | LinearAdd
Life = tuple[frozenset[str], bool]
"""Names that an operator reads for the last time, and whether anybody reads its output."""


def fuse(operators: Sequence[Operator]) -> list[Fused]:
    """The operators with each Linear joined to an Add that is the only reader of its output."""
    fused: list[Fused] = []
    for operator, (ending, _) in zip(operators, lives(operators), strict=True):
        before = fused[-1] if fused else None
        if isinstance(operator, Add) and isinstance(before, Linear) and before.out in ending:
            others = [name for name in (operator.a, operator.b) if name != before.out]
            if len(others) == 1 and before.x != operator.out:
                fused[-1] = LinearAdd(operator.out, before.x, before.weight, before.bias, others[0])
                continue
        fused.append(operator)
    return fused


def reads(operator: Fused) -> tuple[str, ...]:
    match operator:
        case Embedding():
            return ()
        case RmsNorm() | Linear() | Rope() | Logits():
            return (operator.x,)
        case LinearAdd():
            return (operator.x, operator.residual)
        case KvWrite():
            return (operator.k, operator.v)
        case Attention():
            return (operator.q,)
        case SiluMul() | GeluMul():
            return (operator.gate, operator.up)
        case Add():
            return (operator.a, operator.b)


def writes(operator: Fused) -> str | None:
    return None if isinstance(operator, (KvWrite, Logits)) else operator.out


def lives(operators: Sequence[Fused]) -> list[Life]:
    """The life of each operator's activations.

    Raises:
        ValueError: an activation is read before it is written.
    """
    wanted: set[str] = set()
    found: list[Life] = []
    for operator in reversed(operators):
        out = writes(operator)
        used = out is None or out in wanted
        if out is not None:
            wanted.discard(out)
        read = set(reads(operator))
        found.append((frozenset(read - wanted), used))
        wanted |= read
    if wanted:
        raise ValueError(f"activations are read before they are written: {sorted(wanted)}")
    found.reverse()
    return found
