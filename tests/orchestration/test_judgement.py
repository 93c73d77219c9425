"""Every kind of damage to a delivery, done to the objects themselves, and every way in which another may follow it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from rivet_dagster.contract import StoredObject
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import DestinationError
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import (
    MAX_ANCESTORS,
    Ancestor,
    Column,
    Content,
    Dataset,
    Identity,
    Link,
    Manifest,
    Part,
    Status,
    fingerprint,
    marker_body,
)
from rivet_dagster.orchestration.judgement import Findings, Verdict, judge
from rivet_dagster.wire import parse, serialise
from tests.faults.kit import FaultyStore, Trouble

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
ORDERS = Prefix("orders/")
BY_RIVET = Path(__file__).parents[1] / "unit" / "golden" / "manifest_by_rivet_cli.json"


class Shelf:
    """A dataset's directory, written to without the package's destination."""

    def __init__(self, base: Path) -> None:
        self.destination = LocalDestination(base)
        self.root = base / "orders"
        self.fingerprints: dict[str, str] = {}

    def deliver(
        self, number: int, *, after: Manifest | None = None, dataset: Dataset = Dataset.SNAPSHOT, marked: bool = True
    ) -> Manifest:
        """Leave what a commit leaves; nothing of an earlier delivery is removed."""
        token = f"run{number}-00000000-{number:08x}"
        parts = []
        (self.root / "data").mkdir(parents=True, exist_ok=True)
        for n in (1, 2):
            body = f"{token} part {n}".encode()
            path = f"data/part-{token}-{n:05d}.parquet"
            (self.root / path).write_bytes(body)
            md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
            size, said = len(body), fingerprint(body)
            parts.append(Part(part_id=n, path=path, rows=n, size_bytes=size, content_fingerprint=said, content_md5=md5))
        content = Content(
            export_name="orders",
            identity=Identity(export="orders"),
            dataset=dataset,
            format="parquet",
            compression="zstd",
            columns=(Column(name="id", type="int64"),),
        )
        previous = self.fingerprints[after.run_id] if after else None
        manifest = Manifest(
            run_id=token,
            export_name="orders",
            status=Status.SUCCESS,
            started_at=NOW,
            finished_at=NOW,
            content=content,
            destination_kind="local",
            destination_uri=self.root.as_uri(),
            format="parquet",
            compression="zstd",
            parts=tuple(parts),
            sequence=after.sequence + 1 if after else 1,
            previous=Link(run_id=after.run_id, fingerprint=previous) if after and previous else None,
            ancestors=after.as_ancestors(previous) if after and previous else (),
        )
        return self.put(manifest, marked=marked)

    def put(self, manifest: Manifest, *, marked: bool = True) -> Manifest:
        """Write head, copy and marker; returns the manifest as a reader finds it."""
        body = serialise(manifest)
        self.fingerprints[manifest.run_id] = fingerprint(body)
        (self.root / "manifest.json").write_bytes(body)
        (self.root / f"manifest-{manifest.run_id}.json").write_bytes(body)
        if marked:
            (self.root / "_SUCCESS").write_bytes(marker_body(fingerprint(body)))
        return parse(body, where="manifest.json")

    def judge(self, manifest: Manifest | None) -> Verdict:
        """By the record of this delivery, or without any record."""
        if manifest is None:
            return judge(self.destination, ORDERS)
        checksum = self.fingerprints[manifest.run_id]
        return judge(self.destination, ORDERS, run_id=manifest.run_id, checksum=checksum)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def _kinds(verdict: Verdict) -> list[tuple[str, str]]:
    return [(f.kind, f.path) for f in verdict.faults]


def test_a_good_delivery_passes_by_its_record_and_without_one(shelf: Shelf) -> None:
    m = shelf.deliver(1)
    for verdict in (shelf.judge(m), shelf.judge(None)):
        numbers = {"rivet/parts_checked": 2, "rivet/unknown_objects": 0}
        found = Findings(said="2 parts checked", numbers=numbers)
        assert verdict == Verdict(manifest=m, fingerprint=shelf.fingerprints[m.run_id], found=found)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda part: part.write_bytes(part.read_bytes() + b"x"), "size"),
        (lambda part: part.write_bytes(part.read_bytes()[:-1]), "size"),
        (lambda part: part.write_bytes(b""), "size"),
        (lambda part: part.unlink(), "missing"),
        (lambda part: part.rename(part.with_suffix(".bak")), "missing"),
    ],
    ids=["append", "truncate", "empty", "delete", "rename"],
)
def test_a_damaged_part_is_named_with_what_is_wrong(shelf: Shelf, damage: Callable[[Path], object], kind: str) -> None:
    m = shelf.deliver(1)
    damage(shelf.root / m.parts[1].path)
    verdict = shelf.judge(m)
    assert _kinds(verdict) == [(kind, m.parts[1].path)]
    assert not verdict.passed
    assert f"{m.parts[1].size_bytes} bytes" in verdict.faults[0].expected


def test_every_faulty_part_is_reported_at_once(shelf: Shelf) -> None:
    m = shelf.deliver(1)
    (shelf.root / m.parts[0].path).unlink()
    (shelf.root / m.parts[1].path).write_bytes(b"short")
    (shelf.root / "_SUCCESS").unlink()
    assert [k for k, _ in _kinds(shelf.judge(m))] == ["marker", "missing", "size"]


def test_an_edited_manifest_is_found_and_its_copy_still_tells_the_parts(shelf: Shelf) -> None:
    m = shelf.deliver(1)
    manifest = shelf.root / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"zstd"', b'"none"'))
    (shelf.root / m.parts[0].path).unlink()
    verdict = shelf.judge(m)
    assert _kinds(verdict) == [("manifest", "manifest.json"), ("missing", m.parts[0].path)]
    assert verdict.faults[0].expected == shelf.fingerprints[m.run_id]
    assert verdict.faults[0].found == fingerprint(manifest.read_bytes())


def test_a_manifest_edited_together_with_its_marker_is_still_found(shelf: Shelf) -> None:
    """Only the materialization remembers what was committed."""
    m = shelf.deliver(1)
    edited = (shelf.root / "manifest.json").read_bytes().replace(b'"zstd"', b'"none"')
    (shelf.root / "manifest.json").write_bytes(edited)
    (shelf.root / "_SUCCESS").write_bytes(marker_body(fingerprint(edited)))
    assert _kinds(shelf.judge(m)) == [("manifest", "manifest.json"), ("marker", "_SUCCESS")]
    assert shelf.judge(None).passed


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"manifest_version": 2}', b""])
def test_an_unreadable_manifest_is_a_fault_not_a_crash(shelf: Shelf, body: bytes) -> None:
    m = shelf.deliver(1)
    (shelf.root / "manifest.json").write_bytes(body)
    verdict = shelf.judge(m)
    assert _kinds(verdict) == [("manifest", "manifest.json")]
    assert verdict.manifest == m
    assert _kinds(shelf.judge(None)) == [("manifest", "manifest.json")]


def test_an_unreadable_manifest_that_was_marked_is_a_fault(shelf: Shelf) -> None:
    shelf.deliver(1)
    (shelf.root / "manifest.json").write_bytes(b"{")
    (shelf.root / "_SUCCESS").write_bytes(marker_body(fingerprint(b"{")))
    verdict = shelf.judge(None)
    assert _kinds(verdict) == [("manifest", "manifest.json")]
    assert "not a manifest" in verdict.faults[0].found


@pytest.mark.parametrize("body", [b"", b"done\n", b"xxh3:0000000000000000\n", b"XXH3:0000000000000000"])
def test_an_edited_marker_is_found(shelf: Shelf, body: bytes) -> None:
    m = shelf.deliver(1)
    (shelf.root / "_SUCCESS").write_bytes(body)
    for verdict in (shelf.judge(m), shelf.judge(None)):
        assert _kinds(verdict) == [("marker", "_SUCCESS")]
        assert verdict.faults[0].expected == shelf.fingerprints[m.run_id]


def test_a_deleted_marker_is_found(shelf: Shelf) -> None:
    m = shelf.deliver(1)
    (shelf.root / "_SUCCESS").unlink()
    for verdict in (shelf.judge(m), shelf.judge(None)):
        assert _kinds(verdict) == [("marker", "_SUCCESS")]
        assert verdict.faults[0].found == "nothing"


def test_a_deleted_manifest_is_found(shelf: Shelf) -> None:
    m = shelf.deliver(1)
    (shelf.root / "manifest.json").unlink()
    verdict = shelf.judge(m)
    assert _kinds(verdict) == [("manifest", "manifest.json")]
    assert verdict.manifest == m


def test_an_emptied_prefix_is_found(shelf: Shelf) -> None:
    m = shelf.deliver(1)
    for found in [p for p in shelf.root.rglob("*") if p.is_file()]:
        found.unlink()
    assert _kinds(shelf.judge(m)) == [("manifest", "manifest.json")]


def test_unknown_objects_are_noted_and_fail_nothing(shelf: Shelf) -> None:
    m = shelf.deliver(1)
    (shelf.root / "data" / "orders.parquet").write_bytes(b"theirs")
    (shelf.root / "notes.txt").write_bytes(b"theirs")
    foreign = "data/part-someone-else-00000000-00000000-00001.parquet"
    (shelf.root / foreign).write_bytes(b"theirs")
    verdict = shelf.judge(m)
    assert verdict.passed
    assert verdict.unknown == ("data/orders.parquet", foreign, "notes.txt")


def test_objects_of_other_attempts_are_not_unknown(shelf: Shelf) -> None:
    """A run in flight has a side record; what a superseded delivery left is named by the ancestors."""
    first = shelf.deliver(1)
    second = shelf.deliver(2, after=first)
    (shelf.root / f"manifest-{first.run_id}.json").unlink()
    running = replace(second, run_id="run3-00000000-00000003", status=Status.RUNNING, finished_at=None, parts=())
    (shelf.root / f"manifest-{running.run_id}.json").write_bytes(serialise(running))
    (shelf.root / "data" / f"part-{running.run_id}-00001.parquet").write_bytes(b"not listed yet")
    verdict = shelf.judge(second)
    assert (verdict.passed, verdict.unknown) == (True, ())


def test_a_copy_that_was_edited_too_judges_no_parts(shelf: Shelf) -> None:
    m = shelf.deliver(1)
    for name in ("manifest.json", f"manifest-{m.run_id}.json"):
        edited = shelf.root / name
        edited.write_bytes(edited.read_bytes().replace(b'"size_bytes": 2', b'"size_bytes": 3'))
    verdict = shelf.judge(m)
    assert (_kinds(verdict), verdict.manifest) == ([("manifest", "manifest.json")], None)


def test_a_replaced_delivery_passes_and_names_its_successor(shelf: Shelf) -> None:
    first = shelf.deliver(1)
    second = shelf.deliver(2, after=first)
    for part in first.parts:
        (shelf.root / part.path).unlink()
    verdict = shelf.judge(first)
    assert (verdict.passed, verdict.superseded, verdict.successor) == (True, True, second.run_id)
    assert verdict.manifest is None


def test_a_delivery_that_is_replaced_while_it_is_judged_passes_too(shelf: Shelf) -> None:
    first = shelf.deliver(1)

    def replaces(key: str) -> bool:
        if key == "orders/data/" and not (shelf.root / "data" / "new").exists():
            shelf.deliver(2, after=first)
            (shelf.root / "data" / "new").touch()
            for part in first.parts:
                (shelf.root / part.path).unlink()
        return False

    store = FaultyStore(shelf.destination, troubles=[Trouble("before", operation="list", key=replaces)])
    verdict = judge(store, ORDERS, run_id=first.run_id, checksum=shelf.fingerprints[first.run_id])
    assert (verdict.passed, verdict.superseded) == (True, True)


def test_a_delivery_that_was_added_to_is_still_judged(shelf: Shelf) -> None:
    first = shelf.deliver(1)
    second = shelf.deliver(2, after=first, dataset=Dataset.APPEND)
    third = shelf.deliver(3, after=second, dataset=Dataset.APPEND)
    verdict = shelf.judge(first)
    assert (verdict.passed, verdict.superseded, verdict.successor) == (True, False, third.run_id)
    assert verdict.manifest == first
    (shelf.root / first.parts[0].path).unlink()
    assert _kinds(shelf.judge(first)) == [("missing", first.parts[0].path)]
    assert shelf.judge(third).passed


def test_a_record_of_the_chain_that_is_gone_is_a_fault_of_its_own_delivery(shelf: Shelf) -> None:
    first = shelf.deliver(1)
    shelf.deliver(2, after=first, dataset=Dataset.APPEND)
    (shelf.root / f"manifest-{first.run_id}.json").unlink()
    assert _kinds(shelf.judge(first)) == [("manifest", f"manifest-{first.run_id}.json")]


def test_a_full_refresh_ends_the_chain(shelf: Shelf) -> None:
    first = shelf.deliver(1)
    second = shelf.deliver(2, after=first, dataset=Dataset.SNAPSHOT)
    third = shelf.deliver(3, after=second, dataset=Dataset.APPEND)
    verdict = shelf.judge(first)
    assert (verdict.passed, verdict.superseded, verdict.successor) == (True, True, third.run_id)


def test_while_a_successor_is_being_committed_the_delivery_is_what_counts(shelf: Shelf) -> None:
    """The head is swapped, the marker not yet: readers still read this delivery."""
    first = shelf.deliver(1)
    second = shelf.deliver(2, after=first, marked=False)
    verdict = shelf.judge(first)
    assert (verdict.passed, verdict.superseded, verdict.manifest) == (True, False, first)
    assert verdict.notes == (f"{second.run_id} is being committed",)
    (shelf.root / first.parts[1].path).unlink()
    assert _kinds(shelf.judge(first)) == [("missing", first.parts[1].path)]


def test_a_marker_set_back_to_the_previous_delivery_is_found(shelf: Shelf) -> None:
    """A materialization is stored only after its marker: it cannot be "not yet" there."""
    first = shelf.deliver(1)
    second = shelf.deliver(2, after=first)
    (shelf.root / "_SUCCESS").write_bytes(marker_body(shelf.fingerprints[first.run_id]))
    assert _kinds(shelf.judge(second)) == [("marker", "_SUCCESS")]


def test_an_older_state_that_was_restored_is_found(shelf: Shelf) -> None:
    first = shelf.deliver(1)
    second = shelf.deliver(2, after=first)
    shelf.put(first)
    verdict = shelf.judge(second)
    assert _kinds(verdict) == [("manifest", "manifest.json")]
    assert verdict.faults[0].expected == f"{second.run_id} or a delivery after it"
    assert first.run_id in verdict.faults[0].found


def test_a_fork_is_found(shelf: Shelf) -> None:
    ours = shelf.deliver(1)
    shelf.deliver(2)
    assert _kinds(shelf.judge(ours)) == [("manifest", "manifest.json")]


def test_beyond_the_last_ancestor_a_delivery_is_older_not_foreign(shelf: Shelf) -> None:
    first = shelf.deliver(1)
    head = shelf.deliver(2, after=first)
    line = tuple(Ancestor(run_id=f"r{n}", fingerprint=f"xxh3:{n:016x}") for n in range(MAX_ANCESTORS))
    shelf.put(replace(head, ancestors=line, sequence=400))
    verdict = shelf.judge(first)
    assert (verdict.passed, verdict.superseded, verdict.successor) == (True, True, head.run_id)


def test_a_dataset_that_rivet_wrote_is_judged(shelf: Shelf) -> None:
    """Its manifest has no identity, and its parts are beside the manifest."""
    shelf.root.mkdir()
    body = BY_RIVET.read_bytes()
    part = shelf.root / "payments_20261129_144713_204_6280_bf464faf627e60e3.parquet"
    part.write_bytes(b"x" * 10401)
    (shelf.root / "manifest.json").write_bytes(body)
    (shelf.root / "manifest-payments_20261129T144713.204_6280.json").write_bytes(body)
    (shelf.root / "_SUCCESS").write_bytes(marker_body(fingerprint(body)))
    verdict = shelf.judge(None)
    assert (verdict.passed, verdict.unknown) == (True, ())
    assert verdict.manifest is not None
    assert verdict.manifest.content is None
    part.write_bytes(b"x" * 10400)
    assert _kinds(shelf.judge(None)) == [("size", part.name)]


class Deaf(LocalDestination):
    """A store that fails every read."""

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> StoredObject | None:
        msg = f"{key}: the store does not answer"
        raise DestinationError(msg)


def test_a_store_that_cannot_be_asked_gives_no_verdict(shelf: Shelf, tmp_path: Path) -> None:
    m = shelf.deliver(1)
    with pytest.raises(DestinationError, match="does not answer"):
        judge(Deaf(tmp_path), ORDERS, run_id=m.run_id, checksum=shelf.fingerprints[m.run_id])
