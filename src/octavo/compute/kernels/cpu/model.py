"""Runs programs with the C++ kernels: one native call a step, without the interpreter lock."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from octavo.compute.batch import (
    Batch,
    ByteRows,
    Draw,
    ElasticBuffers,
    Float32Array,
    Int32Array,
    Score,
    StepOutput,
)
from octavo.compute.kernels.cpu import _native
from octavo.compute.kernels.cpu.lower import Lowered, lower
from octavo.compute.kernels.cpu.profile import StepPart, step_parts
from octavo.compute.kernels.cpu.rows import NativeRows
from octavo.compute.kernels.cpu.threads import threads_and_reason
from octavo.compute.kernels.cpu.tuning import (
    DEFAULT,
    Tuning,
    read_tuning,
    shape_key,
    tuning_path,
    values,
)
from octavo.compute.load.source import WeightSource
from octavo.compute.program import Program, RopeStyle
from octavo.compute.quant.dequantise import dequantise
from octavo.compute.sample.params import pack_jobs
from octavo.core.cache_groups import CacheGroups, one_group
from octavo.core.errors import CapacityError, EngineError, ModelFileError, SettingsError

ActivationMode = Literal["int8", "int8x2", "fp32"]
KvFormat = Literal["fp16", "int8", "fp32"]

TIER_VARIABLE = "OCTAVO_CPU_TIER"
"""Environment variable that names the instruction-set tier when no setting does."""

MAX_THREADS = 1024
MAX_BATCH_TOKENS = 2**20


class CpuModel:
    """A program on this machine's processors, weights packed from the stored blocks.

    `tier` is the instruction set in use (avx512-vnni, avx2 or scalar), `threads_reason` says where
    the number of threads comes from, `workspace_bytes` is the memory of a step of
    `max_batch_tokens` tokens. `tuning` is how products are cut up, which changes no bit; None: what
    `octavo tune kernels` has found for this machine. Without `fused` each operator runs by itself.
    A request's logits have the same bits in any batch, chunking, page size and number of threads,
    fused or not.

    Raises:
        SettingsError: an option is unknown or does not fit this machine.
        ModelFileError: a tensor has a shape or format that the kernels do not take.
    """

    def __init__(
        self,
        program: Program,
        weights: WeightSource,
        *,
        threads: int | None = None,
        activations: str = "int8",
        kv_format: str = "fp16",
        max_batch_tokens: int = 2048,
        tier: str | None = None,
        tuning: Tuning | None = None,
        fused: bool = True,
    ) -> None:
        _check_choice(activations, get_args(ActivationMode), "compute.activations")
        _check_choice(kv_format, get_args(KvFormat), "memory.kv_format")
        _check_range(max_batch_tokens, MAX_BATCH_TOKENS, "compute.max_batch_tokens")
        if threads is None:
            threads, self.threads_reason = threads_and_reason()
        else:
            _check_range(threads, MAX_THREADS, "compute.threads")
            self.threads_reason = "set by compute.threads"
        self.program = program
        self.threads = threads
        self.tier = choose_tier(tier)
        self.max_batch_tokens = max_batch_tokens
        if tuning is None:
            tuning = read_tuning(tuning_path(self.tier, threads))
        self._native: _native.Model | None = self._build(
            program,
            weights,
            activations=activations,
            kv_format=kv_format,
            tuning=tuning,
            fused=fused,
        )
        self._pages = 0
        self.weight_bytes: int = self._native.weight_bytes
        self.workspace_bytes: int = self._native.workspace_bytes

    def page_bytes(self, page_tokens: int) -> int:
        """Bytes of one KV page of `page_tokens` tokens, all layers."""
        return self._model().page_bytes(page_tokens)

    def allocate_kv(self, pages: int, page_tokens: int, groups: CacheGroups | None = None) -> None:
        """(Re)allocate the cache; contents are lost. Memory is taken when a page is first used."""
        groups = groups or one_group(self.program.kv.layers)
        places = np.array(groups.places, dtype=np.int32)
        self._model().allocate_kv(pages, page_tokens, places, groups.window_tokens)
        self._pages = pages

    def kv_pages(self) -> ByteRows:
        """The cache as bytes [pages, bytes of a page], not a copy."""
        return self._model().cache_bytes().reshape(self._pages, -1)

    def elastic(self) -> ElasticBuffers:
        """The buffers of the native model."""
        return self._model()

    def logits(self, batch: Batch, wanted: Sequence[int]) -> Float32Array:
        """Run a step; return logits [len(wanted), vocabulary] of the batch tokens in `wanted`.

        Raises:
            ValueError: the batch does not fit the model, its cache or `max_batch_tokens`.
        """
        rows = np.asarray(wanted, dtype=np.int32)
        out = np.empty((len(rows), self.program.vocabulary_size), dtype=np.float32)
        self._model().logits(*_arrays(batch), rows, out)
        return out

    def step(self, batch: Batch, draws: Sequence[Draw], scores: Sequence[Score]) -> StepOutput:
        """Run a step, draw and score; `native_seconds` is the time spent in native code.

        Raises:
            ValueError: as `logits`, or a draw or score is out of its domain.
        """
        packed = pack_jobs(draws, scores, self.program.vocabulary_size)
        seconds = self._model().step(*_arrays(batch), packed.wanted, *packed.arrays())
        output = packed.output()
        output.native_seconds = seconds
        return output

    def step_rows(self, max_rows: int, table_width: int) -> NativeRows:
        """Rows that are kept in native code."""
        rows = _native.StepRows(max_rows, table_width, self.program.vocabulary_size)
        return NativeRows(self._model, rows)

    def enable_profile(self, enabled: bool = True) -> None:
        """Book the time of each kind of operation from now on, from zero; off at first."""
        self._model().enable_profile(enabled)

    def profile(self) -> tuple[StepPart, ...]:
        """Time of the steps since the profile was enabled, by kind of operation."""
        return step_parts(self._model().profile())

    def close(self) -> None:
        """Free weights and cache."""
        self._native = None

    def _model(self) -> _native.Model:
        if self._native is None:
            raise EngineError("the model is closed", remedy="load it again")
        return self._native

    def _build(
        self,
        program: Program,
        weights: WeightSource,
        *,
        activations: str,
        kv_format: str,
        tuning: Tuning,
        fused: bool,
    ) -> _native.Model:
        layout = program.kv
        try:
            native = _native.Model(
                tier=self.tier,
                threads=self.threads,
                activations=activations,
                kv_format=kv_format,
                max_tokens=self.max_batch_tokens,
                layers=layout.layers,
                kv_heads=layout.kv_heads,
                head_dim=layout.head_dim,
            )
        except ValueError as error:
            raise ModelFileError(f"the kernels do not take this model: {error}") from error
        except RuntimeError as error:  # std::system_error of the thread pool
            raise CapacityError(
                f"{self.threads} threads cannot be started: {error}",
                field="compute.threads",
                remedy="use fewer, or auto",
            ) from error
        lowered = lower(program, fused=fused)
        _load_weights(native, lowered, weights, tuning)
        try:
            native.set_program(lowered.integers, lowered.floats)
        except ValueError as error:
            raise ModelFileError(f"the model does not fit together: {error}") from error
        return native


def choose_tier(setting: str | None) -> str:
    """The tier that `setting`, the environment or the processor selects, in this order.

    Raises:
        SettingsError: it is unknown or this processor cannot run it.
    """
    variable = os.environ.get(TIER_VARIABLE, "")
    name = setting if setting is not None else variable
    field = TIER_VARIABLE if setting is None and variable else "compute.cpu_tier"
    if setting is not None and not setting:
        raise SettingsError("must not be empty", field=field)
    try:
        return _native.tier(name)
    except ValueError as error:
        raise SettingsError(str(error), field=field) from error


def _load_weights(
    native: _native.Model, lowered: Lowered, weights: WeightSource, tuning: Tuning
) -> None:
    for name in lowered.matrices:
        tensor = weights.raw(name)
        if len(tensor.shape) != 2:
            raise ModelFileError(
                "wrong number of dimensions", field=name, expected="2", found=str(len(tensor.shape))
            )
        try:
            matrix = native.add_matrix(tensor.data, int(tensor.ggml_type), *tensor.shape)
        except ValueError as error:
            raise ModelFileError(
                f"{tensor.ggml_type.name} {tensor.shape}: {error}", field=name
            ) from error
        key = shape_key(tensor.shape, tensor.ggml_type.name)
        native.set_knobs(matrix, *values(tuning.get(key, DEFAULT)))
        weights.release(name)
    for name in lowered.vectors:
        native.add_vector(_vector(weights, name))
    for rotation in lowered.rotations:
        factors = None if rotation.factors is None else _vector(weights, rotation.factors)
        native.add_rotation(
            rotation.dims,
            rotation.style is RopeStyle.INTERLEAVED,
            np.ascontiguousarray(rotation.frequencies(factors)),
        )


def _vector(weights: WeightSource, name: str) -> NDArray[np.float32]:
    return np.ascontiguousarray(dequantise(*weights.raw(name)).reshape(-1))


def _arrays(batch: Batch) -> tuple[Int32Array, Int32Array, Int32Array, Int32Array]:
    return (
        np.ascontiguousarray(batch.tokens, dtype=np.int32),
        np.ascontiguousarray(batch.row_starts, dtype=np.int32),
        np.ascontiguousarray(batch.past, dtype=np.int32),
        np.ascontiguousarray(batch.tables, dtype=np.int32),
    )


def _check_choice(value: str, choices: tuple[str, ...], field: str) -> None:
    if value not in choices:
        raise SettingsError(f"unknown: {value!r}", field=field, remedy=f"use {', '.join(choices)}")


def _check_range(value: int, most: int, field: str) -> None:
    if not 1 <= value <= most:
        raise SettingsError(f"must be from 1 to {most}, not {value}", field=field)
