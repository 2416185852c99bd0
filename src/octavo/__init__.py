"""Octavo: an inference engine for people who run language models themselves.

`from octavo import LLM, SamplingParams` is the Python interface; both names load lazily, so that
`import octavo` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from octavo.core.sampling import SamplingParams
    from octavo.engine.llm import LLM


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from octavo.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from octavo.core.sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
