"""Lets an engine rest that lives in its user's process, where nobody else has a loop for it."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.engine import Engine

_LONGEST_WAIT_SECONDS = 60.0
"""The thread looks so often whether its engine is still there, and still at work."""
_BETWEEN_WRITES_SECONDS = 0.01


class IdleRest:
    """A thread that gives memory back once its engine was without work for long enough.

    It starts when the engine first runs out of work, holds `lock` while it uses the engine, and
    does not keep it alive. With a tier below, pages are written down first.
    """

    def __init__(self, engine: Engine, lock: threading.RLock):
        self._engine = weakref.ref(engine)
        self._changed = threading.Condition(lock)
        self._thread: threading.Thread | None = None
        self._ends = False

    def work_ended(self) -> None:
        """The engine has run out of work; to be called with the lock."""
        engine = self._engine()
        if engine is None or engine.seconds_to_rest() is None:
            return
        if self._thread is None and not self._ends:
            self._thread = threading.Thread(target=self._run, name="octavo idle", daemon=True)
            self._thread.start()
        self._changed.notify()

    def close(self) -> None:
        """End the thread; to be called without the lock, safe to call twice."""
        with self._changed:
            self._ends = True
            self._changed.notify()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._ends:
                seconds = self._tend()
                if seconds is None:
                    return
                self._changed.wait(min(seconds, _LONGEST_WAIT_SECONDS))

    def _tend(self) -> float | None:
        """Do what is due; how long to wait for more, None if the engine is gone."""
        engine = self._engine()
        if engine is None:
            return None
        seconds = None if engine.has_work else engine.seconds_to_rest()
        if seconds is None:
            return _LONGEST_WAIT_SECONDS
        if seconds > 0:
            return seconds
        if engine.tend():
            return _BETWEEN_WRITES_SECONDS
        engine.rest()
        return _LONGEST_WAIT_SECONDS
