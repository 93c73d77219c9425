"""How many rows a query has, as the database counts them: one statement, which an interruption stops."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["count_sql", "counted"]


def count_sql(text: str) -> str:
    """A statement that gives the number of rows of another one as `n`."""
    # On lines of its own, so that a comment at its end swallows nothing; not every database knows AS there.
    return f"SELECT COUNT(*) AS n FROM (\n{text}\n) counted"


def counted(count: Callable[[], Any], *, cancel: Callable[[], object]) -> int:
    """Run a statement that counts, in a thread of its own: drivers hear no signal while they wait for an answer.

    Args:
        count: runs it.
        cancel: stops it, from another thread.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="count") as thread:
        running = thread.submit(count)
        try:
            return int(running.result())
        except BaseException:
            if not running.done():
                cancel()
            raise
