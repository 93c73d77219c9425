"""The lock of a directory: who it keeps out, and that a file system without working locks is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from datetime import timedelta

import pytest

from rivet_dagster.contract import ABSENT, ANY
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import ConfigError, DestinationError, PreconditionFailed
from rivet_dagster.testing import ScriptedBody
from tests.contract.children import halt_while_holding, halt_while_writing, halted
from tests.contract.kit import LARGE, content, md5, staged, write
from tests.harnesses import LocalHarness

HEAD = "orders/manifest.json"
PART = "orders/data/part-run-1-00001.parquet"
SOON = timedelta(milliseconds=200)


@pytest.fixture
def lake(tmp_path):
    """A harness with a destination whose head is written."""
    harness = LocalHarness(tmp_path)
    write(harness.fresh(), HEAD, b"old")
    return harness


def impatient(lake):
    """Another destination, which does not wait long."""
    return LocalDestination(lake.root, lock_patience=SOON)


def test_a_holder_keeps_conditional_writes_of_other_processes_out(lake):
    """They fail in bounded time with the lock's name, change nothing, and pass when the holder is gone."""
    version = lake.again().head(HEAD).version
    with halted(halt_while_holding, lake.recipe(), "orders/"):
        for act in [
            lambda: write(impatient(lake), HEAD, b"new", version),
            lambda: impatient(lake).write(HEAD, ScriptedBody(b"new"), md5=md5(b"new"), expect=version),
            lambda: impatient(lake).write(HEAD, ScriptedBody(b"new"), md5=md5(b"new"), expect=ANY),
            lambda: write(impatient(lake), "orders/_SUCCESS", b"new", ABSENT),
            lambda: impatient(lake).remove(HEAD),
            lambda: impatient(lake).hold("orders/").__enter__(),
        ]:
            with pytest.raises(DestinationError, match=r"\.rivet\.lock: expected to get the lock within 0\.2 s"):
                act()
        # Parts do not need it, and neither does looking.
        with staged(impatient(lake), PART, b"rows") as part:
            impatient(lake).write(PART, part, md5=md5(b"rows"), expect=ABSENT)
        assert impatient(lake).read(HEAD).body == b"old"
    write(impatient(lake), HEAD, b"new", version)
    assert lake.raw() == {HEAD: b"new", PART: b"rows"}


def test_a_holder_waits_for_its_turn(lake):
    """A second thread gets the lock when the first is done, and finds what that wrote."""
    destination = lake.again()
    order = []
    inside = threading.Event()

    def second():
        inside.wait(60)
        with lake.again().hold("orders/"):
            order.append(destination.read(HEAD).body)

    thread = threading.Thread(target=second)
    thread.start()
    with destination.hold("orders/"):
        inside.set()
        order.append("first")
        write(destination, HEAD, b"new")
    thread.join(60)
    assert order == ["first", b"new"]


def test_a_lock_is_of_one_directory(lake):
    with halted(halt_while_holding, lake.recipe(), "orders/"):
        write(impatient(lake), "customers/manifest.json", b"head", ABSENT)
        with impatient(lake).hold("orders/data/"):
            pass


def test_a_slow_body_keeps_nobody_out(lake):
    """Only the last step is under the lock, not the reading of what is written."""
    with halted(halt_while_writing, lake.recipe(), "orders/large", content(LARGE)):
        write(impatient(lake), HEAD, b"new", impatient(lake).head(HEAD).version)
    assert lake.again().read(HEAD).body == b"new"


def test_a_removed_lock_does_not_let_two_in(lake, monkeypatch):
    """Whoever gets a lock that is no longer the directory's takes the one that is."""
    lock = lake.root / "orders" / ".rivet.lock"
    real = fcntl.flock
    removed = []

    def removed_before_it_is_got(fd, how):
        real(fd, how)
        if not removed:
            removed.append(lock.stat().st_ino)
            lock.unlink()

    monkeypatch.setattr(fcntl, "flock", removed_before_it_is_got)
    with lake.again().hold("orders/"):
        monkeypatch.undo()
        assert lock.exists()
        with pytest.raises(DestinationError, match="expected to get the lock"):
            impatient(lake).hold("orders/").__enter__()


def test_a_child_that_inherited_a_lock_does_not_keep_it(lake):
    """As a forked process does; a started program does not even inherit it."""
    destination = lake.again()
    with destination.hold("orders/"):
        (fd,) = destination._locks._mine.held.values()
        assert not os.get_inheritable(fd)
        sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[fd])
    with impatient(lake).hold("orders/"):
        pass
    sleeper.communicate(b"\n")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused(lake, monkeypatch, code):
    def refuse(_fd, _how):
        raise OSError(code, os.strerror(code))

    version = lake.again().head(HEAD).version
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match=r"refuses locks.*unsafe_unfenced_commits=True"):
        write(lake.again(), HEAD, b"new", version)
    assert lake.raw() == {HEAD: b"old"}


def test_locks_that_lock_nobody_out_are_refused(lake, monkeypatch):
    """A second descriptor must be refused while the first holds."""
    version = lake.again().head(HEAD).version
    monkeypatch.setattr(fcntl, "flock", lambda _fd, _how: None)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"two holders at once.*unsafe_unfenced_commits=True"):
            write(lake.again(), HEAD, b"new", version)
    assert lake.raw() == {HEAD: b"old"}


def test_without_fences_it_is_said_and_done(lake, monkeypatch):
    """Conditions are still compared; nothing locks between comparing and writing, and nothing is swept."""
    (lake.root / "orders" / ".rivet.lock").unlink()
    monkeypatch.setattr(fcntl, "flock", None)
    destination = LocalDestination(lake.root, unsafe_unfenced_commits=True)
    version = destination.head(HEAD).version
    with destination.hold("orders/"):
        write(destination, HEAD, b"new", version)
    with pytest.raises(PreconditionFailed):
        write(destination, HEAD, b"newer", version)
    with pytest.raises(PreconditionFailed):
        write(destination, HEAD, b"newer", ABSENT)
    destination.remove(HEAD)
    write(destination, HEAD, b"again", ABSENT)
    assert lake.raw() == {HEAD: b"again"}
    assert not (lake.root / "orders" / ".rivet.lock").exists()


def test_a_lock_that_cannot_be_opened_is_named(lake):
    lock = lake.root / "orders" / ".rivet.lock"
    lock.unlink()
    lock.symlink_to(lake.root / "elsewhere")
    with pytest.raises(DestinationError, match="cannot open the lock"):
        write(lake.again(), HEAD, b"new")
    assert not (lake.root / "elsewhere").exists()


def test_a_killed_writers_bytes_are_swept_by_the_next_one_of_the_same_name(lake):
    """Nobody alive has such a temporary while another holds the lock; all others are left alone."""
    orders = lake.root / "orders"
    dead = orders / ".manifest.json.1.0123456789abcdef.bytes.tmp"
    kept = [
        orders / ".manifest.json.1.0123456789abcdef.tmp",
        orders / ".manifest.json.bak.1.0123456789abcdef.bytes.tmp",
        orders / ".manifest-1.json.1.0123456789abcdef.bytes.tmp",
        orders / ".swp.tmp",
    ]
    for path in [dead, *kept]:
        path.write_bytes(b"left")
    write(lake.again(), HEAD, b"new", lake.again().head(HEAD).version)
    assert not dead.exists()
    assert all(path.exists() for path in kept)


def test_two_attempts_of_one_name_never_meet(lake):
    """Each has a temporary of its own (G36), and the one that comes second is told (G37)."""
    one, other = lake.again(), lake.again()
    with staged(one, PART, b"one") as first, staged(other, PART, b"other") as second:
        assert first.path != second.path
        assert {first.path.parent, second.path.parent} == {lake.root / "orders" / "data"}
        one.write(PART, first, md5=md5(b"one"), expect=ABSENT)
        with pytest.raises(PreconditionFailed):
            other.write(PART, second, md5=md5(b"other"), expect=ABSENT)
    assert lake.raw() == {HEAD: b"old", PART: b"one"}


def test_readers_see_the_old_or_the_new_head_and_nothing_else(lake):
    """While it is swapped a hundred times."""
    destination, reader = lake.again(), lake.again()
    bodies = {b"old", *(content(70_000, str(n)) for n in range(100))}
    seen = set()
    done = threading.Event()

    def look():
        while not done.is_set():
            found = reader.read(HEAD)
            assert found is not None
            seen.add(found.body)
            assert found.meta.size_bytes == len(found.body)

    thread = threading.Thread(target=look)
    thread.start()
    version = destination.head(HEAD).version
    for number in range(100):
        version = write(destination, HEAD, content(70_000, str(number)), version).version
    done.set()
    thread.join(60)
    assert seen
    assert seen <= bodies


def test_a_large_objects_version_tells_replacements_apart(lake):
    """Its content is not read for that: it is another file."""
    destination = lake.again()
    first = write(destination, PART, content(LARGE, "a"), ANY).version
    second = write(destination, PART, content(LARGE, "b"), ANY).version
    assert first != second
    with pytest.raises(PreconditionFailed):
        write(destination, PART, b"x", first)
    write(destination, PART, b"x", second)
