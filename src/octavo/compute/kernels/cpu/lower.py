"""From a program's named activations to numbered slots and the operation records of native code."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from octavo.compute.kernels.cpu.fuse import Fused, Life, LinearAdd, fuse, lives, reads, writes
from octavo.compute.program import (
    Add,
    Attention,
    Embedding,
    GeluMul,
    KvWrite,
    Linear,
    Logits,
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


INTEGERS = 7
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


def lower(program: Program, *, fused: bool = True) -> Lowered:
    """Number weights and activations; activations whose lives do not overlap share a slot.

    Each distinct input of Linear operators is prepared (quantised) once: by the norm, gate or
    attention that makes it, where that stands right before, and an Add behind a Linear becomes part
    of it. Without `fused` every operator stays alone; the bits are the same.
    """
    operators: list[Fused] = fuse(program.operators) if fused else [*program.operators]
    lowering = _Lowering(operators, lives(operators), fused)
    for operator in operators:
        lowering.take(operator)
    return lowering.result()


@dataclass(slots=True)
class _Lowering:
    operators: list[Fused]
    lives: list[Life]
    fused: bool
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

    def take(self, operator: Fused) -> None:
        ending, used = self.lives[self.index]
        self.index += 1
        inputs = {name: self.slot_of[name] for name in reads(operator)}
        out = writes(operator)
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
        self, operator: Fused, out: str, inputs: dict[str, int], ending: frozenset[str]
    ) -> int:
        """Slot of the output; operators that work in place take over an input that ends here."""
        target = -1
        if isinstance(operator, (RmsNorm, Rope, SiluMul, GeluMul, Add)):
            target = next((inputs[name] for name in reads(operator) if name in ending), -1)
        elif isinstance(operator, LinearAdd) and operator.residual in ending:
            target = inputs[operator.residual]
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

    def _prepares(self, out: int) -> int:
        """1 if the operator at hand also prepares its output for a Linear that comes next."""
        following = self.operators[self.index] if self.index < len(self.operators) else None
        if not self.fused or not isinstance(following, (Linear, LinearAdd)):
            return 0
        if self.slot_of[following.x] != out:
            return 0
        self.prepared = out
        return 1

    def _emit_operator(self, operator: Fused, inputs: dict[str, int], out: int) -> None:
        match operator:
            case Embedding():
                self._emit(Opcode.EMBEDDING, [out, self._matrix(operator.weight)], [operator.scale])
            case RmsNorm():
                vector = _number(self.vectors, operator.weight)
                self._emit(
                    Opcode.RMS_NORM,
                    [out, inputs[operator.x], vector, operator.heads, self._prepares(out)],
                    [operator.eps],
                )
            case Linear():
                self._linear(operator, inputs[operator.x], out, -1)
            case LinearAdd():
                self._linear(operator, inputs[operator.x], out, inputs[operator.residual])
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
                integers = [out, inputs[operator.q], operator.layer, operator.heads]
                integers += [operator.window, self._prepares(out)]
                self._emit(Opcode.ATTENTION, integers, [operator.scale, operator.softcap])
            case SiluMul() | GeluMul():
                code = Opcode.SILU_MUL if isinstance(operator, SiluMul) else Opcode.GELU_MUL
                integers = [out, inputs[operator.gate], inputs[operator.up], self._prepares(out)]
                self._emit(code, integers, [])
            case Add():
                self._emit(Opcode.ADD, [out, inputs[operator.a], inputs[operator.b]], [])
            case Logits():
                self._emit(
                    Opcode.LOGITS,
                    [inputs[operator.x], self._matrix(operator.weight)],
                    [operator.softcap],
                )

    def _linear(self, operator: Linear | LinearAdd, x: int, out: int, residual: int) -> None:
        if self.prepared != x:
            self._emit(Opcode.PREPARE, [x], [])
            self.prepared = x
        bias = -1 if operator.bias is None else _number(self.vectors, operator.bias)
        self._emit(Opcode.LINEAR, [out, x, self._matrix(operator.weight), bias, residual], [])

    def _matrix(self, name: str) -> int:
        return _number(self.matrices, name)


def _number(numbers: dict[str, int], name: str) -> int:
    return numbers.setdefault(name, len(numbers))
