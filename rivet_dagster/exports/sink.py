"""What encoders write to."""

from __future__ import annotations

from typing import Any

from rivet_dagster.contract import Staged

__all__ = ["Sink"]


class Sink:
    """A staged part, until it is let go: then whatever an encoder still writes leads nowhere.

    Encoders finish what they began when they are collected as garbage, and a Parquet footer makes a cut part look
    whole. On a streaming destination nothing could take it back.
    """

    def __init__(self, staged: Staged) -> None:
        self._staged: Staged | None = staged
        self._written = 0

    @property
    def closed(self) -> bool:
        """Never, for the encoder: the part is closed by whoever finishes it."""
        return False

    def write(self, data: Any, /) -> int:
        """Append to the part; the number of bytes given."""
        size = memoryview(data).nbytes
        if self._staged is not None:
            self._staged.write(data)
        self._written += size
        return size

    def tell(self) -> int:
        """Bytes written so far."""
        return self._written

    def flush(self) -> None:
        """Hand buffered bytes on."""
        if self._staged is not None:
            self._staged.flush()

    def close(self) -> None:
        """Do nothing: see `closed`."""

    def let_go(self) -> None:
        """Forward nothing from here on; may be called again."""
        self._staged = None
