"""The steps of a local write survive a crash: their order, a failing device, a kill between any two of them."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rivet_dagster.contract import ABSENT, ANY
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import DestinationError, PreconditionFailed
from tests.contract.kit import content, md5, staged, write

HEAD = "orders/manifest.json"
PART = "orders/data/part-run-1-00001.parquet"
BODY = content(3_000_000)


def files(root):
    """Every file by name, hidden ones too, but for the lock."""
    found = (p for p in root.rglob("*") if p.is_file() and p.name != ".rivet.lock")
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in found}


def write_a_part(destination):
    """As the seam does: staged, then created."""
    with staged(destination, PART, BODY) as part:
        return destination.write(PART, part, md5=md5(BODY), expect=ABSENT)


def write_a_head(destination):
    """As the seam does: bytes in place of the version that was seen."""
    found = destination.head(HEAD)
    return write(destination, HEAD, b"new", ABSENT if found is None else found.version)


WRITES = {"part": (write_a_part, PART, BODY), "head": (write_a_head, HEAD, b"new")}


@pytest.fixture(params=list(WRITES))
def step(request):
    """What to write, where it goes, and its bytes."""
    return WRITES[request.param]


@pytest.fixture
def destination(tmp_path):
    """With a head in place, and all directories made."""
    found = LocalDestination(tmp_path)
    write(found, HEAD, b"old")
    (tmp_path / "orders" / "data").mkdir()
    return found


@pytest.fixture
def steps(monkeypatch):
    """What was asked of the operating system, in order: a verb and the name it was about."""
    seen = []

    def name_of(fd):
        return re.sub(r"\.\d+\.[0-9a-f]{16}", "", Path(f"/proc/self/fd/{fd}").readlink().name)

    def record(module, name, describe):
        real = getattr(module, name)

        def recorded(*args, **kwargs):
            seen.append((name, describe(*args)))
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, recorded)

    record(os, "fsync", name_of)
    record(os, "link", lambda _source, target: Path(target).name)
    record(os, "replace", lambda _source, target: Path(target).name)
    return seen


def test_bytes_are_durable_before_their_name_and_the_name_before_the_return(destination, steps):
    write_a_part(destination)
    part = Path(PART).name
    assert steps == [("fsync", f".{part}.tmp"), ("link", part), ("fsync", "data")]
    steps.clear()
    write_a_head(destination)
    assert steps == [("fsync", ".manifest.json.bytes.tmp"), ("replace", "manifest.json"), ("fsync", "orders")]


def test_a_new_directory_is_durable_in_its_parent(tmp_path, steps):
    write_a_part(LocalDestination(tmp_path / "lake"))
    assert steps[:3] == [("fsync", tmp_path.name), ("fsync", "lake"), ("fsync", "orders")]


def test_a_removal_and_a_move_are_durable(destination, steps):
    write_a_part(destination)
    steps.clear()
    destination.move(PART, "orders/_quarantine/run-1/part")
    assert steps[-3:] == [("link", "part"), ("fsync", "run-1"), ("fsync", "data")]
    steps.clear()
    destination.remove("orders/_quarantine/run-1/part")
    assert steps == [("fsync", "run-1")]


def test_a_failed_sync_of_bytes_is_final(destination, tmp_path, monkeypatch):
    """A second fsync that succeeds proves nothing, so there is none: the part must be encoded again."""
    calls = []

    def fails_once(fd):
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    part = destination.stage(PART)
    part.write(BODY)
    part.close()
    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(DestinationError, match="Input/output error; check the device"):
        destination.write(PART, part, md5=md5(BODY), expect=ABSENT)
    with pytest.raises(DestinationError, match="discarded"):
        destination.write(PART, part, md5=md5(BODY), expect=ABSENT)
    assert len(calls) == 1
    assert files(tmp_path) == {HEAD: b"old"}
    monkeypatch.undo()
    write_a_part(destination)
    assert files(tmp_path) == {HEAD: b"old", PART: BODY}


def test_a_failed_sync_of_a_directory_is_told(destination, tmp_path, monkeypatch, step):
    """All bytes are there and may be gone after a power cut: no success is reported."""
    act, key, body = step
    real = os.fsync

    def fails_for_directories(fd):
        if Path(f"/proc/self/fd/{fd}").is_dir():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fsync", fails_for_directories)
    with pytest.raises(DestinationError, match="all of its bytes are in place"):
        act(destination)
    assert files(tmp_path)[key] == body
    assert [name for name in files(tmp_path) if name.endswith(".tmp")] == []


def test_a_file_system_that_cannot_sync_directories_is_taken_at_its_word(destination, tmp_path, monkeypatch, step):
    act, key, body = step
    real = os.fsync

    def refuses_directories(fd):
        if Path(f"/proc/self/fd/{fd}").is_dir():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(fd)

    monkeypatch.setattr(os, "fsync", refuses_directories)
    act(destination)
    assert files(tmp_path)[key] == body


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_still_creates_once(destination, tmp_path, monkeypatch, code):
    def refuse(*_args, **_kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    write_a_part(destination)
    with pytest.raises(PreconditionFailed):
        write_a_part(destination)
    with staged(destination, PART, b"other") as part, pytest.raises(PreconditionFailed):
        destination.write(PART, part, md5=md5(b"other"), expect=ABSENT)
    destination.move(PART, "orders/elsewhere")
    with pytest.raises(PreconditionFailed):
        destination.move(HEAD, "orders/elsewhere")
    assert files(tmp_path) == {HEAD: b"old", "orders/elsewhere": BODY}


def test_a_write_that_was_cut_off_after_its_link_is_finished_by_the_next(destination, tmp_path, monkeypatch):
    """The temporary's own second name is no other object."""
    unlink = Path.unlink

    def fails(path, *, missing_ok=False):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    part = destination.stage(PART)
    part.write(BODY)
    part.close()
    monkeypatch.setattr(Path, "unlink", fails)
    with pytest.raises(DestinationError):
        destination.write(PART, part, md5=md5(BODY), expect=ABSENT)
    monkeypatch.setattr(Path, "unlink", unlink)
    destination.write(PART, part, md5=md5(BODY), expect=ABSENT)
    part.discard()
    assert files(tmp_path) == {HEAD: b"old", PART: BODY}


def test_a_move_that_was_cut_off_after_its_link_is_finished_by_the_next(destination, tmp_path):
    write_a_part(destination)
    os.link(tmp_path / PART, tmp_path / "orders/elsewhere")
    destination.move(PART, "orders/elsewhere")
    assert files(tmp_path) == {HEAD: b"old", "orders/elsewhere": BODY}


def test_a_staged_file_that_someone_cut_is_found_out(destination, tmp_path):
    part = destination.stage(PART)
    part.write(BODY)
    part.close()
    os.truncate(part.path, 10)
    with pytest.raises(DestinationError, match="staged 3000000 bytes, the file holds 10"):
        destination.write(PART, part, md5=md5(BODY), expect=ABSENT)
    part.discard()
    assert files(tmp_path) == {HEAD: b"old"}


def test_a_part_that_is_still_being_encoded_is_not_published(destination, tmp_path):
    part = destination.stage(PART)
    part.write(BODY)
    with pytest.raises(DestinationError, match="expected a part whose encoding has ended"):
        destination.write(PART, part, md5=md5(BODY), expect=ABSENT)
    part.discard()
    assert files(tmp_path) == {HEAD: b"old"}


def test_a_part_that_was_staged_elsewhere_is_copied(destination, tmp_path):
    """Whatever staged it: the temporary beside the target is another one."""
    with staged(destination, "elsewhere/part", BODY) as part:
        destination.write(PART, part, md5=md5(BODY), expect=ANY)
        assert part.path.read_bytes() == BODY
    assert files(tmp_path) == {HEAD: b"old", PART: BODY}


SCRIPT = """
import sys
sys.path[:0] = {path!r}
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import DestinationError
from tests.faults.test_local_durable import WRITES
destination = LocalDestination(sys.argv[1])
try:
    WRITES[sys.argv[2]][0](destination)
except DestinationError as e:
    print(e)
"""


@pytest.fixture
def traced(tmp_path):
    """Write in another process under strace; give its exit status, what it said and the calls it made, in order."""
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-qq", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("strace is not installed or may not trace; install it with: apt-get install -y strace")

    def run(root, what, *options):
        log = tmp_path.parent / f"{tmp_path.name}.strace"
        calls = "trace=fsync,fdatasync,link,linkat,rename,renameat,renameat2,write"
        script = SCRIPT.format(path=[p for p in sys.path if p])
        ran = subprocess.run(
            [strace, "-y", "-o", log, "-e", calls, *options, sys.executable, "-c", script, root, what],
            check=False,
            capture_output=True,
            text=True,
        )
        lines = [line for line in log.read_text().splitlines() if str(root) in line or "+++" in line]
        return ran.returncode, ran.stdout + ran.stderr, lines

    return run


def order_of(calls, root):
    """The verbs, repeats joined, that were about the directory of the object."""
    verbs = []
    for call in calls:
        verb = call.partition("(")[0]
        about_directory = re.search(rf"\(\d+<{re.escape(str(root))}[^>]*/(orders|data)>\)", call)
        verb = f"{verb} directory" if about_directory else verb
        if "+++" not in call and (not verbs or verbs[-1] != verb):
            verbs.append(verb)
    return verbs


def test_the_kernel_sees_write_sync_name_sync(destination, tmp_path, traced):
    status, said, calls = traced(tmp_path, "part")
    assert (status, said) == (0, "")
    assert order_of(calls, tmp_path) == ["write", "fsync", "linkat", "fsync directory"]
    status, said, calls = traced(tmp_path, "head")
    assert (status, said) == (0, "")
    assert order_of(calls, tmp_path) == ["write", "fsync", "rename", "fsync directory"]


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        ("part", "fsync:error=EIO:when=1"),
        ("part", "linkat:error=EXDEV"),
        ("part", "linkat:error=EIO"),
        ("part", "write:error=EIO:when=2"),
        ("head", "fsync:error=EIO:when=1"),
        ("head", "rename:error=EXDEV"),
        ("head", "rename:error=EIO"),
    ],
)
def test_a_failing_call_fails_the_write_and_leaves_the_old(destination, tmp_path, traced, what, fault):
    status, said, calls = traced(tmp_path, what, "-e", f"inject={fault}")
    assert any("INJECTED" in call for call in calls)
    assert status == 0
    assert "cannot" in said
    assert str(tmp_path) in said
    assert "Traceback" not in said
    assert files(tmp_path) == {HEAD: b"old"}


@pytest.mark.parametrize(
    ("what", "call"), [("part", "fsync"), ("part", "linkat"), ("head", "fsync"), ("head", "rename")]
)
def test_a_killed_write_leaves_the_old_and_a_temporary_that_is_found(destination, tmp_path, traced, what, call):
    """Killed at the call that would have made it durable, or given it its name."""
    _act, key, body = WRITES[what]
    status, _said, calls = traced(tmp_path, what, "-e", f"inject={call}:error=EIO:signal=KILL:when=1")
    assert any("killed by SIGKILL" in line for line in calls), calls
    assert status != 0
    assert destination.read(HEAD).body == b"old"
    (left,) = (name for name in files(tmp_path) if name != HEAD)
    assert left.endswith(".tmp")
    assert list(destination.unfinished(key[:-4])) == [left]
    # The next writer of bytes finds the lock free and clears up by itself; a part's is discarded by who takes over.
    if what == "part":
        destination.discard_unfinished("orders/data/part-run-1-")
    _act(destination)
    assert files(tmp_path) == {HEAD: b"old", key: body}
