"""From a program's named activations to numbered slots and the operation records of native code."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from octavo.compute.program import (
    Add,
    Attention,
    Embedding,
    GeluMul,
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


class Opcode(IntEnum):
    """Mirrors `Opcode` of csrc/octavo/program.h, which says what each record holds."""

    EMBEDDING = 0
    RMS_NORM = 1
    PREPARE = 2
    LINEAR = 3
    ROPE = 4
    KV_WRITE = 5
    ATTENTION = 6
    SILU_MUL = 7
    GELU_MUL = 8
    ADD = 9
    LOGITS = 10


INTEGERS = 6
"""Opcode and arguments of a record."""

FLOATS = 2


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rope settings that operators share: angle of pair i at position p = p * frequencies[i]."""

    dims: int
    style: RopeStyle
    base: float
    scale: float
    factors: str | None

    def frequencies(self, factors: NDArray[np.float32] | None) -> NDArray[np.float64]:
        """Radians per position of each pair [dims / 2], `factors` being the tensor of that name."""
        pairs = np.arange(0, self.dims, 2, dtype=np.float64)
        frequencies = self.base ** (-pairs / self.dims) * self.scale
        return frequencies if factors is None else frequencies / factors.astype(np.float64)


@dataclass(slots=True)
class Lowered:
    """Records [n, INTEGERS] and [n, FLOATS]; indices refer to the lists of names here."""

    integers: NDArray[np.int32]
    floats: NDArray[np.float32]
    matrices: list[str]
    vectors: list[str]
    rotations: list[Rotation]
    slots: int


def lower(program: Program) -> Lowered:
    """Number weights and activations; activations whose lives do not overlap share a slot.

    Each distinct input of Linear operators is prepared (quantised) once.
    """
    lowering = _Lowering(_lives(program))
    for operator in program.operators:
        lowering.take(operator)
    return lowering.result()


def _reads(operator: Operator) -> tuple[str, ...]:
    match operator:
        case Embedding():
            return ()
        case RmsNorm() | Linear() | Rope() | Logits():
            return (operator.x,)
        case KvWrite():
            return (operator.k, operator.v)
        case Attention():
            return (operator.q,)
        case SiluMul() | GeluMul():
            return (operator.gate, operator.up)
        case Add():
            return (operator.a, operator.b)


def _writes(operator: Operator) -> str | None:
    return None if isinstance(operator, (KvWrite, Logits)) else operator.out


def _lives(program: Program) -> list[tuple[set[str], bool]]:
    """For each operator: which names it reads for the last time, and whether its output is read."""
    wanted: set[str] = set()
    lives: list[tuple[set[str], bool]] = []
    for operator in reversed(program.operators):
        out = _writes(operator)
        used = out is None or out in wanted
        if out is not None:
            wanted.discard(out)
        reads = set(_reads(operator))
        lives.append((reads - wanted, used))
        wanted |= reads
    if wanted:
        raise ValueError(f"activations are read before they are written: {sorted(wanted)}")
    lives.reverse()
    return lives


@dataclass(slots=True)
class _Lowering:
    lives: list[tuple[set[str], bool]]
    slot_of: dict[str, int] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    slots: int = 0
    matrices: dict[str, int] = field(default_factory=dict)
    vectors: dict[str, int] = field(default_factory=dict)
    rotations: dict[Rotation, int] = field(default_factory=dict)
    prepared: int | None = None
    index: int = 0
    integers: list[list[int]] = field(default_factory=list)
    floats: list[list[float]] = field(default_factory=list)

    def take(self, operator: Operator) -> None:
        ending, used = self.lives[self.index]
        self.index += 1
        inputs = {name: self.slot_of[name] for name in _reads(operator)}
        out = _writes(operator)
        target = -1 if out is None else self._target(operator, out, inputs, ending)
        self._emit_operator(operator, inputs, target)
        for name in ending:
            if self.slot_of.get(name) == inputs[name] and name != out:
                del self.slot_of[name]
            if inputs[name] != target:
                self.free.append(inputs[name])
        if out is not None and not used:
            self.free.append(self.slot_of.pop(out))

    def result(self) -> Lowered:
        return Lowered(
            np.asarray(self.integers, dtype=np.int32),
            np.asarray(self.floats, dtype=np.float32),
            list(self.matrices),
            list(self.vectors),
            list(self.rotations),
            self.slots,
        )

    def _target(
        self, operator: Operator, out: str, inputs: dict[str, int], ending: set[str]
    ) -> int:
        """Slot of the output; operators that work in place take over an input that ends here."""
        target = -1
        if isinstance(operator, (RmsNorm, Rope, SiluMul, GeluMul, Add)):
            target = next((inputs[name] for name in _reads(operator) if name in ending), -1)
        if target < 0:
            if self.free:
                target = self.free.pop()
            else:
                target = self.slots
                self.slots += 1
        self.slot_of[out] = target
        if target == self.prepared:
            self.prepared = None
        return target

    def _emit(self, code: Opcode, integers: list[int], floats: list[float]) -> None:
        self.integers.append([int(code), *integers, *[0] * (INTEGERS - 1 - len(integers))])
        self.floats.append([*floats, *[0.0] * (FLOATS - len(floats))])

    def _emit_operator(self, operator: Operator, inputs: dict[str, int], out: int) -> None:
        match operator:
            case Embedding():
                self._emit(Opcode.EMBEDDING, [out, self._matrix(operator.weight)], [operator.scale])
            case RmsNorm():
                vector = _number(self.vectors, operator.weight)
                self._emit(
                    Opcode.RMS_NORM,
                    [out, inputs[operator.x], vector, operator.heads],
                    [operator.eps],
                )
            case Linear():
                self._linear(operator, inputs[operator.x], out)
            case Rope():
                rotation = Rotation(
                    operator.dims, operator.style, operator.base, operator.scale, operator.factors
                )
                number = self.rotations.setdefault(rotation, len(self.rotations))
                self._emit(Opcode.ROPE, [out, inputs[operator.x], number, operator.heads], [])
            case KvWrite():
                self._emit(
                    Opcode.KV_WRITE, [inputs[operator.k], inputs[operator.v], operator.layer], []
                )
            case Attention():
                self._emit(
                    Opcode.ATTENTION,
                    [out, inputs[operator.q], operator.layer, operator.heads, operator.window],
                    [operator.scale, operator.softcap],
                )
            case SiluMul() | GeluMul():
                code = Opcode.SILU_MUL if isinstance(operator, SiluMul) else Opcode.GELU_MUL
                self._emit(code, [out, inputs[operator.gate], inputs[operator.up]], [])
            case Add():
                self._emit(Opcode.ADD, [out, inputs[operator.a], inputs[operator.b]], [])
            case Logits():
                self._emit(
                    Opcode.LOGITS,
                    [inputs[operator.x], self._matrix(operator.weight)],
                    [operator.softcap],
                )

    def _linear(self, operator: Linear, x: int, out: int) -> None:
        if self.prepared != x:
            self._emit(Opcode.PREPARE, [x], [])
            self.prepared = x
        bias = -1 if operator.bias is None else _number(self.vectors, operator.bias)
        self._emit(Opcode.LINEAR, [out, x, self._matrix(operator.weight), bias], [])

    def _matrix(self, name: str) -> int:
        return _number(self.matrices, name)


def _number(numbers: dict[str, int], name: str) -> int:
    return numbers.setdefault(name, len(numbers))
