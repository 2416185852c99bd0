"""Time is passed in, so that tests and the simulator can own it."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds from an arbitrary origin; never goes backwards."""

monotonic: Clock = time.monotonic
