"""What a client tells about its calls; the base class listens to nothing."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.observe.stats import EngineStats


class CallObserver:
    """Override what is of interest. Every method is called in the client's event loop."""

    def submitted(self, service_class: str, prompt_tokens: int) -> None:
        """A call was handed to the engine."""

    def refused(self, service_class: str, reason: str) -> None:
        """The engine did not take a call: it is overloaded."""

    def started(self, service_class: str, queue_seconds: float) -> None:
        """A request of a call got its first row."""

    def first_token(self, service_class: str, seconds: float) -> None:
        """The first token of a call came, this long after its arrival."""

    def tokens(self, service_class: str, count: int, gap_seconds: float | None) -> None:
        """Tokens of one choice came, this long after its last ones (None: they are the first)."""

    def delivered(
        self, service_class: str, first_token_seconds: float, token_seconds: float | None
    ) -> None:
        """A whole answer came in the class that it was sent to.

        `token_seconds` is the mean time between tokens, of the slowest choice; None if none has two
        tokens. An answer without tokens counts as if the end were its first.
        """

    def ended(
        self, service_class: str, outcomes: Sequence[str], cached_tokens: int, seconds: float
    ) -> None:
        """A call ended; one outcome a choice: a finish reason, or the code of an error."""

    def engine_stats(self, stats: EngineStats) -> None:
        """The engine told its numbers."""
