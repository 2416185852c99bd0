"""When Python's cycle collector runs in an engine's process: hardly ever while there is work.

A collection stops everybody, the longer the more requests there are. Steps leave no cycles behind,
so next to nothing waits for it.
"""

from __future__ import annotations

import gc

_YOUNG_OBJECTS = 50_000
_PARTS = 20


def settle() -> None:
    """Leave out what is there for good, and collect seldom; to be called once all is set up."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _PARTS, _PARTS)
