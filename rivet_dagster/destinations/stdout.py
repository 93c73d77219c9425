"""Standard output, or any other stream of bytes: they leave as they come, and nothing can be looked at afterwards."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO, ClassVar

from rivet_dagster.contract import (
    Body,
    Destination,
    DestinationCapabilities,
    Expect,
    WriteCommitProtocol,
    WriteOutcome,
)
from rivet_dagster.destinations.bodies import as_body, checked
from rivet_dagster.destinations.keys import key_segments
from rivet_dagster.destinations.staging import Digests, os_failure
from rivet_dagster.errors import ConfigError, DestinationError, IntegrityError

__all__ = ["StdoutDestination"]

_WAIT = "give it a stream whose writes wait for the reader"


class StdoutDestination(Destination):
    """For previews and pipes. A key names a part in messages only; whoever reads the stream sees bytes alone.

    One writer at a time: parts follow each other without a boundary.
    """

    capabilities: ClassVar[DestinationCapabilities] = DestinationCapabilities(
        commit_protocol=WriteCommitProtocol.STREAMING,
        idempotent_overwrite=False,
        retry_safe=False,
        partial_write_risk=True,
    )
    kind: ClassVar[str] = "stdout"

    def __init__(self, stream: BinaryIO | None = None) -> None:
        """Write to `stream`, which stays open; to standard output, looked up at each part, where there is none."""
        self._stream = stream

    def uri(self, key: str = "") -> str:
        """`stdout:`, whatever the key."""
        del key
        return "stdout:"

    def stage(self, key: str) -> _Passing:
        """Open a part whose bytes leave as they are written: there is no way back."""
        key_segments(key)
        return _Passing(key, self._out())

    def write(self, key: str, body: Body | bytes, *, md5: bytes, expect: Expect) -> WriteOutcome:
        """Flush a part of `stage`, which has left already; send and flush any other body.

        `expect` always holds, since nothing is ever there.

        Raises:
            IntegrityError: the body was not what was declared; its bytes have left, all or but for the last piece.
            DestinationError: the reader is gone or the body was cut short; any number of its bytes have left.
        """
        del expect
        key_segments(key)
        passed = body if isinstance(body, _Passing) else self._send(key, as_body(body), md5)
        passed.close()
        found = passed.digests["md5"]
        if found != md5:
            msg = (
                f"{key}: expected to send bytes with MD5 {md5.hex()}, sent some with {found.hex()}; discard the output"
            )
            raise IntegrityError(msg)
        return WriteOutcome(size_bytes=passed.size_bytes, version=None)

    def _send(self, key: str, body: Body, md5: bytes) -> _Passing:
        passing = _Passing(key, self._out())
        for piece in checked(key, body, md5=md5):
            passing.write(piece)
        return passing

    def _out(self) -> BinaryIO:
        if self._stream is not None:
            return self._stream
        found = getattr(sys.stdout, "buffer", None)
        if found is None:
            msg = "standard output was replaced by one that takes no bytes; give StdoutDestination a stream"
            raise ConfigError(msg)
        # What was printed before must not come out after the first bytes.
        sys.stdout.flush()
        return found  # type: ignore[no-any-return]


class _Passing:
    """A part on its way out: `contract.Staged`, hashed as it passes."""

    def __init__(self, key: str, out: BinaryIO) -> None:
        self._key = key
        self._out = out
        self._digests = Digests()
        self._size_bytes = 0
        self._closed = False
        self._failure: DestinationError | None = None

    @property
    def key(self) -> str:
        return self._key

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def digests(self) -> Mapping[str, bytes]:
        return self._digests.by_kind()

    @property
    def closed(self) -> bool:
        return self._closed

    def writable(self) -> bool:
        return not self._closed

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def write(self, data: Any, /) -> int:
        """Send all of `data`.

        Raises:
            ValueError: encoding has ended.
            DestinationError: the reader is gone, now or before; an unknown number of bytes have left.
        """
        if self._failure is not None:
            # A writer that is closed on the way out must not hide why.
            raise self._failure
        if self._closed:
            msg = f"{self._key}: write after close"
            raise ValueError(msg)
        with memoryview(data) as given, given.cast("B") as view:
            done = 0
            while done < len(view):
                # An unbuffered stream may take less than it is given; one that does not block may take nothing.
                sent = self._failing(self._out.write, view[done:])
                if not sent:
                    self._failure = DestinationError(
                        f"stdout: cannot send {self._key!r}: it takes no bytes now; {_WAIT}"
                    )
                    raise self._failure
                done += sent
            self._digests.update(view)
            self._size_bytes += done
            return done

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        """Push what the stream holds back to its reader."""
        if self._failure is None:
            self._failing(self._out.flush)

    def close(self) -> None:
        """End encoding: the digests and the size are final. The stream stays open.

        Raises:
            DestinationError: the reader is gone.
        """
        if not self._closed:
            self._closed = True
            self.flush()
        if self._failure is not None:
            raise self._failure

    def open(self) -> BinaryIO:
        msg = f"{self._key}: its bytes have left and cannot be read again"
        raise DestinationError(msg)

    def discard(self) -> None:
        """Nothing can be taken back."""
        self._closed = True

    def _failing(self, send: Any, *args: Any) -> int | None:
        try:
            return send(*args)  # type: ignore[no-any-return]
        except OSError as e:
            cause: Exception = e
            if e.errno == errno.EPIPE:
                _silence(self._out)
            self._failure = os_failure(e, doing=f"send {self._key!r}", where="stdout")
        except ValueError as e:
            cause = e
            msg = f"stdout: cannot send {self._key!r}: the stream is closed; keep it open until the export's end"
            self._failure = DestinationError(msg)
        raise self._failure from cause


def _silence(out: BinaryIO) -> None:
    """Let the interpreter's last flush of a broken standard output go nowhere, instead of failing at exit."""
    if out is not getattr(sys.stdout, "buffer", None):
        return
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, out.fileno())
        os.close(nowhere)
