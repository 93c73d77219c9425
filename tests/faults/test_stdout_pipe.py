"""Standard output of a real process: in order, to the last byte, and with a clean end when nobody reads."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rivet_dagster.contract import ANY
from rivet_dagster.destinations.stdout import StdoutDestination
from rivet_dagster.errors import ConfigError, DestinationError
from tests.contract.kit import MIB, content, md5, write

HEAD = f"""
import hashlib, sys
sys.path[:0] = {[p for p in sys.path if p]!r}
from rivet_dagster.contract import ANY
from rivet_dagster.destinations.stdout import StdoutDestination
from rivet_dagster.errors import DestinationError
destination = StdoutDestination()
body = hashlib.shake_128(b"content").digest({4 * MIB})
def export():
    part = destination.stage("part-1")
    for start in range(0, len(body), 1000):
        part.write(body[start : start + 1000])
    part.close()
    destination.write("part-1", part, md5=part.digests["md5"], expect=ANY)
"""
REPORT = """
try:
    export()
except DestinationError as e:
    print(e, file=sys.stderr)
    sys.exit(3)
"""


@pytest.fixture(params=["buffered", "unbuffered"])
def run(request):
    """Start a script that exports to its standard output, which Python buffers or does not."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if request.param == "unbuffered":
        environment["PYTHONUNBUFFERED"] = "1"

    def start(script, **streams):
        command = [sys.executable, "-c", HEAD + script]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, **streams)

    return start


def test_all_bytes_come_out_between_what_is_printed_before_and_after(run):
    process = run("print('before')\nexport()\nprint('after')", stdout=subprocess.PIPE)
    out, err = process.communicate()
    assert out == b"before\n" + content(4 * MIB) + b"after\n"
    assert (process.returncode, err) == (0, b"")


def test_a_reader_that_leaves_early_is_one_clean_error(run):
    """As `| head` does: no traceback, and no complaint of the interpreter at its end."""
    process = run(REPORT, stdout=subprocess.PIPE)
    assert process.stdout.read(10) == content(4 * MIB)[:10]
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 3
    assert err == ("stdout: cannot send 'part-1': Broken pipe; keep the reader of the stream alive until its end\n")


def test_a_full_device_is_one_clean_error(run):
    with Path("/dev/full").open("wb") as full:
        process = run(REPORT, stdout=full)
        err = process.communicate()[1].decode()
    assert process.returncode != 0
    assert err.splitlines()[0] == (
        "stdout: cannot send 'part-1': No space left on device; free space there, or choose another place"
    )


def test_a_small_export_to_a_reader_that_has_left_is_one_clean_error(run):
    """Nothing but the last flush tells."""
    reader, writer = os.pipe()
    os.close(reader)
    with io.FileIO(writer, "wb") as stream:
        process = run("body = body[:100]" + REPORT, stdout=stream)
        err = process.communicate()[1].decode()
    assert process.returncode == 3
    assert err == "stdout: cannot send 'part-1': Broken pipe; keep the reader of the stream alive until its end\n"


def test_what_was_written_is_out_when_the_write_returns():
    """Not held back by the stream's own buffer."""
    reader, writer = os.pipe()
    with io.FileIO(reader, "rb") as end, io.BufferedWriter(io.FileIO(writer, "wb")) as stream:
        destination = StdoutDestination(stream)
        part = destination.stage("part-1")
        part.write(b"rows")
        part.close()
        destination.write("part-1", part, md5=part.digests["md5"], expect=ANY)
        os.set_blocking(reader, False)
        assert end.read() == b"rows"
        write(destination, "part-2", b"more")
        assert end.read() == b"more"


def test_a_closed_stream_is_one_clean_error():
    stream = io.BytesIO()
    destination = StdoutDestination(stream)
    part = destination.stage("part-1")
    part.write(b"rows")
    stream.close()
    with pytest.raises(DestinationError, match="the stream is closed"):
        part.write(b"rows")
    with pytest.raises(DestinationError, match="the stream is closed"):
        part.close()
    with pytest.raises(DestinationError, match="the stream is closed"):
        destination.write("part-1", part, md5=part.digests["md5"], expect=ANY)
    part.discard()
    with pytest.raises(DestinationError, match="the stream is closed"):
        write(destination, "part-1", b"rows")


def test_a_failed_part_stays_failed():
    """An encoder that is closed on the way out of the error neither hides it nor sends its footer."""

    class FailsOnce(io.BytesIO):
        failed = False

        def write(self, data):
            if not self.failed:
                self.failed = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    stream = FailsOnce()
    part = StdoutDestination(stream).stage("part-1")
    for _ in range(2):
        with pytest.raises(DestinationError, match="No space left"):
            part.write(b"rows")
    with pytest.raises(DestinationError, match="No space left"):
        part.close()
    assert stream.getvalue() == b""


class Slow(io.RawIOBase):
    """Takes three bytes at a time, then nothing."""

    def __init__(self, room):
        self.taken = b""
        self.room = room

    def writable(self):
        return True

    def write(self, data):
        count = min(3, len(data), self.room - len(self.taken))
        self.taken += bytes(data[:count])
        return count or None


def test_a_stream_that_takes_little_at_a_time_gets_all():
    stream = Slow(room=100)
    outcome = write(StdoutDestination(stream), "part-1", b"0123456789")
    assert stream.taken == b"0123456789"
    assert (outcome.size_bytes, outcome.version, outcome.checksum) == (10, None, None)


def test_a_stream_that_takes_nothing_is_an_error_and_no_endless_loop():
    stream = Slow(room=4)
    with pytest.raises(DestinationError, match="takes no bytes now"):
        write(StdoutDestination(stream), "part-1", b"0123456789")
    assert stream.taken == b"0123"


def test_what_stands_for_standard_output_is_looked_up_at_each_part(monkeypatch):
    destination = StdoutDestination()
    for number in range(2):
        replaced = io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr(sys, "stdout", replaced)
        replaced.write("printed\n")
        write(destination, "part", b"%d" % number)
        assert replaced.buffer.getvalue() == b"printed\n%d" % number


def test_a_replacement_that_takes_no_bytes_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(ConfigError, match="takes no bytes"):
        StdoutDestination().stage("part")


def test_the_stream_stays_open():
    stream = io.BytesIO()
    destination = StdoutDestination(stream)
    destination.write("a", b"a", md5=md5(b"a"), expect=ANY)
    assert not stream.closed
    assert destination.uri("a") == "stdout:"
