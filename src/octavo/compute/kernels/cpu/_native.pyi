from typing import Any

import numpy as np
from numpy.typing import NDArray

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

def philox4x32_10(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]: ...
def __getattr__(name: str) -> Any: ...
