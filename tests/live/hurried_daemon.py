"""`dagster-daemon`, but its minutes are short: a schedule's finest grain is a minute, which no test waits for.

Its clock runs faster, and what it waits for comes sooner by as much. Code servers and runs are processes of their own,
with a clock like everybody's.
"""

import sys
import threading
import time
from datetime import datetime, timezone

import dagster._time
from dagster._daemon.cli import main

RATE = 20
_BEGAN = time.time()
_wait = threading.Event.wait


def _now() -> float:
    return _BEGAN + (time.time() - _BEGAN) * RATE


def _wait_less(event: threading.Event, timeout: float | None = None) -> bool:
    return _wait(event, None if timeout is None else timeout / RATE)


dagster._time._mockable_get_current_timestamp = _now
dagster._time._mockable_get_current_datetime = lambda: datetime.fromtimestamp(_now(), tz=timezone.utc)
threading.Event.wait = _wait_less
sys.exit(main())
