from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo.core.ids import RequestId

_Output = TypeVar("_Output")
_Numbers = NDArray[np.int64]

class LeastSquares:
    def __init__(
        self, theta: Sequence[float], ridge: Sequence[float], forgetting: float, sweeps: int
    ) -> None: ...
    def observe(self, features: Sequence[float], target: float) -> None: ...
    @property
    def theta(self) -> tuple[float, float, float, float, float]: ...

class RowColumns:
    def __init__(self, rows: int, page_tokens: int) -> None: ...
    @property
    def lane(self) -> _Numbers: ...
    @property
    def computed(self) -> _Numbers: ...
    @property
    def room(self) -> _Numbers: ...
    @property
    def plain(self) -> NDArray[np.uint8]: ...
    @property
    def served_step(self) -> _Numbers: ...
    @property
    def token_seconds(self) -> NDArray[np.float64]: ...
    def seat(
        self,
        row: int,
        computed: int,
        end_tokens: int,
        cached_tokens: int,
        token_seconds: float,
        stop_ids: Iterable[int],
    ) -> None: ...
    def set_decoding(
        self, row: int, rank: int, last_token: int, is_plain: bool, gap_seconds: float
    ) -> None: ...
    def decoding(self, rank: int) -> tuple[_Numbers, int]: ...
    def past(self, rows: _Numbers) -> int: ...
    def count_unserved_since(self, rows: _Numbers, seconds: float) -> int: ...
    def without_room(self, rows: _Numbers) -> list[int]: ...
    def run_within(
        self, rows: _Numbers, each: float, per_past: float, seconds: float
    ) -> tuple[int, int, float]: ...
    def decodes(
        self,
        chosen: list[_Numbers],
        out: set[int],
        request_ids: list[RequestId],
        wanted: list[int],
    ) -> tuple[_Numbers, tuple[RequestId, ...], _Numbers, _Numbers, _Numbers, list[int]]: ...
    def take(
        self,
        rows: _Numbers,
        starts: _Numbers,
        request_ids: tuple[RequestId, ...],
        tokens: Sequence[int],
        logprobs: Sequence[object],
        step: int,
        now_seconds: float,
        classes: int,
        make: Callable[..., _Output],
    ) -> tuple[list[_Output], list[int], list[int], list[int], list[int]]: ...
    def fetch(self, row: int, first: int) -> list[int]: ...
