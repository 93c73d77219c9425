"""The steps of a commit at which a run is stopped: each known by the request that the store sees."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rivet_dagster.contract import ObjectDestination
from tests.faults.kit import FaultyStore

OLD, DEAD, VICTIM, NEXT = "01d01d01", "deaddead", "victim", "next"
"""The runs: a delivery that is there, one that died before, the one that is stopped, and the one after it.

The first two are how the ids of those runs begin, where Dagster wants an id to be a UUID.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failpoint:
    """A request, and the side of its effect on which the run is stopped.

    Attributes:
        operation: of the destination; `None`: none, the run has come to its end.
        key: a regular expression to be found in the key.
        nth: the first such request, from 1.
        before: stopped before its effect, else after.
        holding: what a control object that is written has to hold.
    """

    operation: str | None
    key: str = ""
    nth: int = 1
    before: bool = False
    holding: bytes = b""


# The run that is stopped is any other than those before it.
_ANY = rf"(?!{OLD}|{DEAD})"


def _side(run: str) -> str:
    return rf"/manifest-{run}[^/]*\.json$"


def _part(run: str) -> str:
    return rf"/data/part-{run}[^/]*$"


FAILPOINTS = {
    "side record created": Failpoint(operation="write", key=_side(_ANY)),
    "probe done": Failpoint(operation="write", key=_side(_ANY), nth=3),
    "takeover swapped": Failpoint(operation="write", key=_side(DEAD), holding=b'"interrupted"'),
    "adopted part checked": Failpoint(operation="read", key=_part(DEAD)),
    "part staged": Failpoint(operation="write", key=_part(_ANY), before=True),
    "part written": Failpoint(operation="write", key=_part(_ANY)),
    # Parts are read back here.
    "part verified": Failpoint(operation="read", key=_part(_ANY)),
    "side record final": Failpoint(operation="write", key=_side(_ANY), holding=b'"status": "success"'),
    "head swapped": Failpoint(operation="write", key=r"/manifest\.json$"),
    "marker swapped": Failpoint(operation="write", key=r"/_SUCCESS$"),
    "symlink written": Failpoint(operation="write", key=r"/_symlink_format_manifest/manifest$"),
    "superseded part removed": Failpoint(operation="remove", key=_part(OLD)),
    "superseded record removed": Failpoint(operation="remove", key=_side(OLD)),
    "receipt returned": Failpoint(operation=None),
}
"""In the order of a commit."""

COMMITTED = [*FAILPOINTS][[*FAILPOINTS].index("marker swapped") :]
"""Where readers have the new rows."""

UNSENT = [*FAILPOINTS][: [*FAILPOINTS].index("side record final")]
"""Where a run that can still act takes all back that it has written."""


class Stopping(FaultyStore):
    """A store at which a run is stopped: `stop` is called there, once, in whichever thread asks."""

    def __init__(self, inner: ObjectDestination, point: Failpoint, stop: Callable[[], None]) -> None:
        super().__init__(inner)
        self._point, self._stop, self._came, self._lock = point, stop, 0, threading.Lock()

    def write(self, key: str, body: Any, *, md5: bytes, expect: Any) -> Any:
        holds = self._point.holding in (body if isinstance(body, bytes) else b"")
        return self._passing(
            "write", key, holds, lambda: super(Stopping, self).write(key, body, md5=md5, expect=expect)
        )

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> Any:
        return self._passing("read", key, True, lambda: super(Stopping, self).read(key, start=start, length=length))

    def remove(self, key: str) -> None:
        self._passing("remove", key, True, lambda: super(Stopping, self).remove(key))

    def _passing(self, operation: str, key: str, holds: bool, act: Callable[[], Any]) -> Any:
        here = operation == self._point.operation and holds and re.search(self._point.key, key) is not None
        if here:
            with self._lock:
                self._came += 1
                here = self._came == self._point.nth
        if here and self._point.before:
            self._stop()
        try:
            return act()
        finally:
            if here and not self._point.before:
                self._stop()
