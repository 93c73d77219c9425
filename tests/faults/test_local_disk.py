"""The local destination on a disk that is full, read-only or in the way: one clear error, and nothing lost."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys

import pytest

from rivet_dagster.contract import ABSENT, ANY
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import ConfigError, DestinationError, PreconditionFailed
from tests.contract.kit import MIB, content, md5, staged, write
from tests.servers.process import scratch

HEAD = "orders/manifest.json"
PART = "orders/data/part-1.parquet"


def files(root):
    """Every file by name, hidden ones too, but for the lock."""
    found = (p for p in root.rglob("*") if p.is_file() and p.name != ".rivet.lock")
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in found}


def test_a_full_disk_fails_a_part_and_frees_what_it_took(small_disk):
    """The old object stays whole, the temporary is gone at once, and there is room for the next attempt."""
    destination = LocalDestination(small_disk / "lake")
    old = content(MIB)
    write(destination, PART, old)
    part = destination.stage(PART)
    with pytest.raises(DestinationError, match=r"cannot stage 'orders/data/part-1.parquet': No space left.*free space"):
        part.write(content(2 * MIB))
    assert files(small_disk / "lake") == {PART: old}
    # The encoder closes its writer on the way out: it hears the same, not that something is closed.
    with pytest.raises(DestinationError, match="No space left"):
        part.write(b"footer")
    part.close()
    with pytest.raises(DestinationError, match="No space left"):
        part.open()
    with pytest.raises(DestinationError):
        destination.write(PART, part, md5=part.digests["md5"], expect=ANY)
    part.discard()
    new = content(MIB // 2, "new")
    write(destination, PART, new)
    assert files(small_disk / "lake") == {PART: new}


def test_a_full_disk_fails_a_parquet_writer_with_its_reason(small_disk):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"n": pa.array(range(MIB), pa.int64())})
    part = LocalDestination(small_disk / "lake").stage(PART)

    def encode() -> None:
        with pq.ParquetWriter(part, table.schema, compression="none", use_dictionary=False) as writer:
            writer.write_table(table)

    with pytest.raises(DestinationError, match="No space left"):
        encode()
    part.discard()
    assert files(small_disk / "lake") == {}


@pytest.mark.parametrize("body", [content(3 * MIB), content(3 * MIB, "other")])
def test_a_full_disk_fails_a_copy(small_disk, body):
    destination = LocalDestination(small_disk / "lake")
    version = write(destination, HEAD, b"old").version
    with pytest.raises(DestinationError, match="No space left"):
        write(destination, HEAD, body, version)
    assert files(small_disk / "lake") == {HEAD: b"old"}
    write(destination, HEAD, b"new", version)
    assert files(small_disk / "lake") == {HEAD: b"new"}


def stage_beyond_the_limit(root, talk):
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
    part = LocalDestination(root).stage(PART)
    try:
        part.write(content(2 * MIB))
    except DestinationError as e:
        talk.send(str(e))


def in_a_child(target, *given):
    """What a process of its own, which may give up rights and limits, has to say."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*given, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()
        process.close()
        ours.close()


def test_a_limit_on_file_sizes_is_named(tmp_path):
    said = in_a_child(stage_beyond_the_limit, tmp_path)
    assert "File too large" in said
    assert "max_file_size" in said
    assert files(tmp_path) == {}


def work_without_rights(root, talk):
    destination = LocalDestination(root)
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    said = []
    for act in [
        lambda: destination.stage(PART),
        lambda: write(destination, HEAD, b"new"),
        lambda: write(destination, HEAD, b"new", ABSENT),
        lambda: destination.remove(HEAD),
        lambda: destination.move(HEAD, "orders/elsewhere"),
    ]:
        try:
            act()
            said.append(None)
        except DestinationError as e:
            said.append(str(e))
    talk.send((said, destination.read(HEAD).body))


@pytest.fixture
def public_directory():
    """One that another user gets to, unlike `tmp_path`."""
    with scratch() as directory:
        directory.chmod(0o755)
        yield directory


def test_a_directory_without_rights_is_named(public_directory):
    write(LocalDestination(public_directory), HEAD, b"old")
    orders = public_directory / "orders"
    (orders / "manifest.json").chmod(0o644)
    (orders / ".rivet.lock").chmod(0o444)
    orders.chmod(0o555)
    said, body = in_a_child(work_without_rights, public_directory)
    orders.chmod(0o755)
    assert body == b"old"
    assert all(one and "Permission denied; give this user the rights" in one for one in said)
    assert files(public_directory) == {HEAD: b"old"}


def test_an_object_in_place_of_a_directory_is_named(tmp_path):
    destination = LocalDestination(tmp_path)
    write(destination, "orders", b"an object")
    for act in (
        lambda: destination.stage(PART),
        lambda: write(destination, HEAD, b"x"),
        destination.hold("orders/").__enter__,
    ):
        with pytest.raises(DestinationError, match="move away what stands"):
            act()
    assert files(tmp_path) == {"orders": b"an object"}


def test_a_directory_in_place_of_an_object_is_named(tmp_path):
    """It is no object that a precondition could be about."""
    destination = LocalDestination(tmp_path)
    write(destination, PART, b"rows")
    for expect in (ABSENT, ANY):
        with pytest.raises(DestinationError, match="directory") as caught:
            write(destination, "orders/data", b"x", expect)
        assert not isinstance(caught.value, PreconditionFailed)
    with pytest.raises(DestinationError, match="directory"):
        destination.move(PART, "orders/data")
    assert destination.head("orders/data") is None
    destination.remove("orders/data")
    assert files(tmp_path) == {PART: b"rows"}


def test_a_name_that_is_too_long_is_named(tmp_path):
    destination = LocalDestination(tmp_path)
    with pytest.raises(DestinationError, match="choose a shorter name"):
        destination.stage(f"data/{'n' * 250}")
    with pytest.raises(DestinationError, match="choose a shorter name"):
        destination.head(f"data/{'n' * 300}")
    assert files(tmp_path) == {}


def test_what_is_no_regular_file_is_no_object(tmp_path):
    """A pipe would wait for ever, a link may lead anywhere."""
    destination = LocalDestination(tmp_path / "lake")
    write(destination, "a", b"object")
    (tmp_path / "secret").write_bytes(b"secret")
    os.mkfifo(tmp_path / "lake" / "pipe")
    (tmp_path / "lake" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "lake" / "inner").symlink_to(tmp_path / "lake" / "a")
    for key in ("pipe", "link", "inner"):
        for look in (destination.head, destination.read, lambda key: destination.move(key, "b")):
            with pytest.raises(DestinationError, match=r"expected .* to be a regular file"):
                look(key)
    assert [found.key for found in destination.list("")] == ["a"]
    # Writing and removing are about the name, never about where a link leads.
    with pytest.raises(PreconditionFailed):
        write(destination, "link", b"x", ABSENT)
    write(destination, "link", b"x")
    destination.remove("inner")
    assert (tmp_path / "secret").read_bytes() == b"secret"
    assert destination.read("link").body == b"x"
    assert destination.read("a").body == b"object"


def test_a_linked_directory_never_leads_out(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs").write_bytes(b"theirs")
    base = tmp_path / "lake"
    base.mkdir()
    (base / "out").symlink_to(outside)
    (base / "up").symlink_to("..")
    (base / "round").symlink_to("round")
    destination = LocalDestination(base)
    for directory in ("out", "up", "up/outside", "out/deeper"):
        for act in (
            destination.stage,
            lambda key: write(destination, key, b"x"),
            destination.head,
            destination.read,
            destination.remove,
            lambda key: destination.move("a", key),
            lambda key: destination.move(key, "a"),
            lambda key: list(destination.list(key[: key.rfind("/") + 1])),
            lambda key: destination.hold(key[: key.rfind("/") + 1]),
            lambda key: list(destination.unfinished(key)),
            destination.discard_unfinished,
        ):
            with pytest.raises(DestinationError, match="leads out of"):
                act(f"{directory}/theirs")
    with pytest.raises(DestinationError, match="move away what stands"):
        destination.stage("round/a")
    # A walk from above does not follow them either.
    (outside / ".theirs.1.0123456789abcdef.tmp").write_bytes(b"theirs")
    assert list(destination.unfinished("")) == []
    destination.discard_unfinished("")
    assert sorted(p.name for p in outside.iterdir()) == [".theirs.1.0123456789abcdef.tmp", "theirs"]
    assert (outside / "theirs").read_bytes() == b"theirs"


def test_links_inside_of_the_base_and_to_the_base_are_followed(tmp_path):
    real = tmp_path / "real"
    (real / "big-disk").mkdir(parents=True)
    (real / "orders").symlink_to("big-disk")
    base = tmp_path / "base"
    base.symlink_to(real)
    destination = LocalDestination(base)
    with staged(destination, "orders/part", b"rows") as part:
        destination.write("orders/part", part, md5=md5(b"rows"), expect=ABSENT)
    assert (real / "big-disk" / "part").read_bytes() == b"rows"
    assert [found.key for found in destination.list("orders/")] == ["orders/part"]
    version = write(destination, "orders/manifest.json", b"1").version
    with destination.hold("orders/"):
        write(destination, "big-disk/manifest.json", b"2", version)
    assert destination.read("orders/manifest.json").body == b"2"


def test_a_relative_base_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    destination = LocalDestination("lake")
    monkeypatch.chdir("/")
    write(destination, "a", b"x")
    assert files(tmp_path) == {"lake/a": b"x"}
    assert destination.uri("a") == f"{tmp_path.as_uri()}/lake/a"
    assert destination.uri("orders/") == f"{tmp_path.as_uri()}/lake/orders/"


def test_nothing_is_touched_before_the_first_write(tmp_path):
    destination = LocalDestination(tmp_path / "lake")
    assert destination.head("a") is None
    assert destination.read("a") is None
    assert list(destination.list("")) == []
    assert list(destination.unfinished("")) == []
    destination.remove("a")
    destination.discard_unfinished("")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_work_is_refused_at_once(monkeypatch):
    with pytest.raises(ConfigError, match="empty"):
        LocalDestination("")
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match="POSIX"):
        LocalDestination("lake")
