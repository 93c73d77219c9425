"""What threads give to another thread, a bounded amount at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from rivet_dagster.errors import SourceError

__all__ = ["STOPPED", "Handoff"]

# What ends whoever goes on with an export that is closed.
STOPPED = "reading was stopped: the export is closed"

_T = TypeVar("_T")
_IDLE_S = 1.0


class Handoff(Generic[_T]):
    """A bounded queue from some givers to one taker. It ends when every giver has, and never otherwise looks so.

    The first error of a giver reaches the taker at once, before what was given earlier. `close` lets everybody go,
    from any thread.
    """

    def __init__(self, *, givers: int, most: int) -> None:
        """Begin empty.

        Args:
            givers: how many will call `end`.
            most: what the items that wait may weigh together; a single one may weigh more.
        """
        self._most = most
        self._givers = givers
        self._items: deque[tuple[_T, int]] = deque()
        self._held = 0
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()

    def give(self, item: _T, *, weight: int = 1) -> bool:
        """Wait for room, then hand an item over; False if it was not taken over, since nobody wants any more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over() or not self._items or self._held + weight <= self._most,
            )
            if self._is_over():
                return False
            self._items.append((item, weight))
            self._held += weight
            self._changed.notify_all()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """Say that a giver is done, or why it cannot go on."""
        with self._changed:
            self._givers -= 1
            # Whoever is closed while it works may fail of that; the first to say something is right.
            if not self._closed:
                self._error = self._error or error
            self._changed.notify_all()

    def items(self, *, idle: Callable[[], None] = lambda: None) -> Iterator[_T]:
        """Take what is given, in order; `idle` is called about every second while there is nothing.

        Raises:
            SourceError: it was closed.
            BaseException: what a giver has ended with.
        """
        while True:
            with self._changed:
                while not self._is_over() and not self._items and self._givers:
                    if not self._changed.wait(_IDLE_S):
                        break
                taken = self._take()
            if taken:
                yield taken.pop()
            elif taken is None:
                return
            else:
                idle()

    def closed_within(self, seconds: float) -> bool:
        """Wait for so long, unless nobody wants anything any more: True then, at once."""
        with self._changed:
            return self._changed.wait_for(self._is_over, seconds)

    def close(self) -> list[_T]:
        """Take and give nothing more; what was given and not taken."""
        with self._changed:
            self._closed = True
            left = [item for item, _ in self._items]
            self._items.clear()
            self._held = 0
            self._changed.notify_all()
            return left

    def _take(self) -> list[_T] | None:
        """The next item alone; none where there is none yet; `None` at the end."""
        if self._error is not None:
            raise self._error
        if self._closed:
            raise SourceError(STOPPED)
        if not self._items:
            return [] if self._givers else None
        item, weight = self._items.popleft()
        self._held -= weight
        self._changed.notify_all()
        return [item]

    def _is_over(self) -> bool:
        return self._closed or self._error is not None
