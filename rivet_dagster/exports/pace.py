"""How fast rows may leave a database: all that read for one export share it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Pace"]

# How long a wait is at most before it is looked at again: clocks of machines that slept are wrong by hours.
_LONGEST_S = 1.0


class Pace:
    """A bucket that rows are paid from, filled at a fixed rate and never saved up: no pause allows a burst later."""

    def __init__(self, rows_per_second: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with an empty bucket.

        Args:
            rows_per_second: how many there may be; `None` for any number.
            clock: seconds that only rise.
        """
        self._rate = rows_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._paid = clock()

    def keep(self, rows: int, stopped_within: Callable[[float], bool]) -> None:
        """Wait until so many rows more have had their time; from any thread.

        Args:
            rows: that have come.
            stopped_within: waits for so many seconds; True, at once, when nobody wants the rows any more.
        """
        if self._rate is None:
            return
        with self._lock:
            self._paid = due = max(self._paid, self._clock()) + rows / self._rate
        while (left := due - self._clock()) > 0:
            if stopped_within(min(left, _LONGEST_S)):
                return
