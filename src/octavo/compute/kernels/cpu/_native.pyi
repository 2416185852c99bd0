from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

class Model:
    def __init__(
        self,
        tier: str,
        threads: int,
        activations: str,
        kv_format: str,
        max_tokens: int,
        layers: int,
        kv_heads: int,
        head_dim: int,
    ) -> None: ...
    def add_matrix(
        self, rows: NDArray[np.uint8], ggml_type: int, channels: int, width: int
    ) -> int: ...
    def set_knobs(
        self,
        matrix: int,
        tile_rows: int,
        block_rows: int,
        spread_rows: int,
        chunks_per_thread: int,
        prefetch_bytes: int,
    ) -> None: ...
    def add_vector(self, values: NDArray[np.float32]) -> int: ...
    def add_rotation(
        self, dims: int, interleaved: bool, frequencies: NDArray[np.float64]
    ) -> int: ...
    def set_program(self, integers: NDArray[np.int32], floats: NDArray[np.float32]) -> None: ...
    def page_bytes(self, page_tokens: int) -> int: ...
    def allocate_kv(
        self, pages: int, page_tokens: int, places: NDArray[np.int32], window_tokens: int
    ) -> None: ...
    def discard_kv(self, first: int, count: int) -> int: ...
    def populate_kv(self, first: int, count: int) -> None: ...
    def discard_workspace(self) -> int: ...
    def logits(
        self,
        tokens: NDArray[np.int32],
        row_starts: NDArray[np.int32],
        past: NDArray[np.int32],
        tables: NDArray[np.int32],
        wanted: NDArray[np.int32],
        out: NDArray[np.float32],
    ) -> float: ...
    def step(
        self,
        tokens: NDArray[np.int32],
        row_starts: NDArray[np.int32],
        past: NDArray[np.int32],
        tables: NDArray[np.int32],
        wanted: NDArray[np.int32],
        jobs: NDArray[np.uint8],
        ids: NDArray[np.int32],
        bias_values: NDArray[np.float32],
        results: NDArray[np.uint8],
        top_ids: NDArray[np.int32],
        top_logprobs: NDArray[np.float64],
    ) -> float: ...
    def enable_profile(self, enabled: bool) -> None: ...
    def profile(self) -> list[tuple[int, float]]: ...
    def cache_bytes(self) -> NDArray[np.uint8]: ...
    @property
    def tier(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...

Answer = tuple[bool, bool, int, float, int, list[int], list[float]]

class StepRows:
    def __init__(self, rows: int, table_width: int, vocabulary: int) -> None: ...
    def seat(
        self,
        row: int,
        job: bytes,
        bias_ids: Sequence[int],
        bias_values: Sequence[float],
        stop_ids: Sequence[int],
        prompt: Sequence[int],
        output: Sequence[int],
        prompt_tokens: int,
        min_tokens: int,
    ) -> None: ...
    def vacate(self, row: int) -> None: ...
    def append(self, row: int, start: int, pages: Sequence[int]) -> None: ...
    def run(
        self,
        model: Model,
        rows: list[int],
        starts: list[int],
        tokens: list[int],
        chunks: Sequence[tuple[int, int, Sequence[int], bool, Sequence[int], int]],
    ) -> tuple[float, list[int], bool]: ...
    def answers(self) -> list[Answer]: ...

def tier(name: str = "") -> str: ...

class Sampler:
    def __init__(self, vocabulary: int, threads: int) -> None: ...
    def sample(
        self,
        logits: NDArray[np.float32],
        jobs: NDArray[np.uint8],
        ids: NDArray[np.int32],
        bias_values: NDArray[np.float32],
        results: NDArray[np.uint8],
        top_ids: NDArray[np.int32],
        top_logprobs: NDArray[np.float64],
    ) -> None: ...

class LinearTimer:
    def __init__(
        self,
        tier: str,
        threads: int,
        rows: NDArray[np.uint8],
        ggml_type: int,
        channels: int,
        width: int,
        copies: int,
    ) -> None: ...
    def set_knobs(
        self,
        tile_rows: int,
        block_rows: int,
        spread_rows: int,
        chunks_per_thread: int,
        prefetch_bytes: int,
    ) -> None: ...
    def run(self, x: NDArray[np.float32], calls: int) -> list[float]: ...
    @property
    def bytes(self) -> int: ...

class LimitMeter:
    def __init__(self, tier: str, threads: int) -> None: ...
    def measure(self, kind: str, seconds: float) -> float: ...

def knobs_are_valid(
    tile_rows: int,
    block_rows: int,
    spread_rows: int,
    chunks_per_thread: int,
    prefetch_bytes: int,
) -> bool: ...
def philox4x32_10(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]: ...
def __getattr__(name: str) -> Any: ...
