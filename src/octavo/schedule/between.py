"""What passes between steps: it is time too, and no step is computed in it."""

from __future__ import annotations

_LEARNING = 0.1
_LONGEST_SECONDS = 0.02


class Between:
    """The usual time from the end of one step's computation to the next one's beginning.

    Learned where one step follows the other (exponential smoothing); 0 at first. A longer time is
    not the scheduler's.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._result_seconds: float | None = None

    def since_last(self, now: float) -> float | None:
        """Seconds since the result of the step before; None if the engine has rested since."""
        return None if self._result_seconds is None else now - self._result_seconds

    def note(self, began: float, now: float, *, goes_on: bool) -> None:
        """The result is there of a step whose computation `began` at that time."""
        passed = self.since_last(began)
        if passed is not None and 0 <= passed < _LONGEST_SECONDS:
            self.seconds += _LEARNING * (passed - self.seconds)
        self._result_seconds = now if goes_on else None
