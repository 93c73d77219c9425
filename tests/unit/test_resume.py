"""Which ranges of a dead run are left out, and that each row is exported once whatever is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_dagster.contract import EncodedPart
from rivet_dagster.exports.extraction import Extraction
from rivet_dagster.exports.resume import Resume, recorded
from rivet_dagster.exports.spec import cast
from rivet_dagster.manifest import Content, Manifest, Part, Status
from rivet_dagster.rows import Key, KeyRange
from rivet_dagster.wire import parse, serialise
from tests.unit.encoded import Shelf, body
from tests.unit.splittable import Table, plan


def ids_of(part: EncodedPart) -> list[int]:
    return [int(line.split(b",")[0]) for line in body(part).splitlines()[1:]]


def as_recorded(planned: Extraction, parts: Sequence[Part], run_id: str = "dead") -> Manifest:
    """A running record, through its bytes."""
    manifest = Manifest(
        run_id=run_id,
        export_name="orders",
        status=Status.RUNNING,
        started_at=datetime(2024, 2, 29, tzinfo=timezone.utc),
        content=planned.content,
        destination_kind="local",
        destination_uri="file:///lake",
        format=planned.content.format,
        compression=planned.content.compression,
        parts=tuple(parts),
    )
    return parse(serialise(manifest), where="here")


def as_part(number: int, encoded: EncodedPart) -> Part:
    return Part(
        part_id=number,
        path=f"data/part-{number}",
        rows=encoded.rows,
        size_bytes=1,
        content_fingerprint="",
        key_range=encoded.key_range,
        resume={"order": list(encoded.order), "last": encoded.last, "checksum": None},
    )


def export(table: Table, **mode: Any) -> list[EncodedPart]:
    with_statement = plan(table, consistency="statement", **mode)
    return list(with_statement.parts(Shelf().stage))


@settings(max_examples=60)
@given(data=st.data(), ids=st.sets(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60))
def test_each_row_is_exported_once_whatever_is_left_out(data: st.DataObject, ids: set[int]) -> None:
    """By three runs, each of which lost some of its parts; the ranges have other sizes each time."""
    kept: dict[str, tuple[Part, list[int]]] = {}
    dead: Manifest | None = None
    for run in range(3):
        rows, parallel = data.draw(st.integers(1, 25)), data.draw(st.integers(1, 3))
        planned = plan(Table(list(ids)), rows_per_part=rows, parallel=parallel, consistency="statement")
        adopted: tuple[Part, ...] = ()
        if dead is not None:
            assert planned.resume is not None
            ranges = planned.resume.reusable(dead).ranges
            assert {p.path for some in ranges for p in some} == set(kept)
            adopted = planned.resume.leave_out(ranges)
        found = [(adopted_part, kept[adopted_part.path][1]) for adopted_part in adopted]
        for encoded in planned.parts(Shelf().stage):
            part = replace(as_part(0, encoded), path=f"data/{run}-{'-'.join(map(str, encoded.order))}")
            found.append((part, ids_of(encoded)))
        found.sort(key=lambda it: tuple((it[0].resume or {})["order"]))
        assert [i for _, own in found for i in own] == sorted(ids)
        chosen = [it for it in found if data.draw(st.booleans())]
        kept = {part.path: (part, own) for part, own in chosen}
        numbered = [replace(part, part_id=n) for n, (part, _) in enumerate(data.draw(st.permutations(chosen)))]
        dead = as_recorded(planned, numbered)


VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))),
)


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_bounds_come_back_from_the_record_as_they_were(values: list[Any]) -> None:
    key = Key(columns=tuple(f"k{n}" for n in range(len(values))))
    planned = plan(Table([1]), consistency="statement")
    resume = Resume(planned.content, key)
    for within in (
        KeyRange(key=key, low=tuple(values), high=None),
        KeyRange(key=key, low=None, high=tuple(values)),
        KeyRange(key=key, low=None, high=None),
    ):
        said = json.loads(json.dumps(recorded(within)))
        part = Part(
            part_id=1,
            path="data/part",
            rows=1,
            size_bytes=1,
            content_fingerprint="",
            key_range=said,
            resume={"order": [0, 0, 0], "last": True},
        )
        found = resume.reusable(as_recorded(planned, [part]))
        assert len(found.ranges) == 1, found.because
        resume.leave_out(found.ranges)
        assert resume.left_out == (within,)
        types = [[type(value) for value in bound] for bound in (within.low, within.high) if bound]
        assert types == [
            [type(v) for v in bound] for bound in (resume.left_out[0].low, resume.left_out[0].high) if bound
        ]


@pytest.mark.parametrize("value", [True, 1.5, float("inf"), Decimal("NaN"), Decimal("Infinity"), b"x", None])
def test_bounds_that_do_not_come_back_exactly_are_no_reason_to_leave_a_range_out(value: Any) -> None:
    key = Key(columns=("k",))
    assert "types" not in recorded(KeyRange(key=key, low=(value,), high=None))
    assert "types" not in recorded(KeyRange(key=key, low=(1,), high=(value,)))
    assert "types" not in recorded(KeyRange(key=key, low=(date(2024, 2, 29),), high=(datetime(2024, 2, 29),)))


@pytest.mark.parametrize(("second", "whole"), [("m", 2), ("c", 0), ("x", 0)])
def test_ranges_of_texts_that_follow_each_other_have_to_meet(second: str, whole: int) -> None:
    """The order of texts is the database's: nothing else tells that two such ranges overlap."""
    key = Key(columns=("k",))
    planned = plan(Table([1]), consistency="statement")
    parts = [
        Part(
            part_id=place,
            path=f"data/part-{place}",
            rows=1,
            size_bytes=1,
            content_fingerprint="",
            key_range=recorded(KeyRange(key=key, low=low, high=high)),
            resume={"order": [0, place, 0], "last": True},
        )
        for place, (low, high) in enumerate([(None, ("m",)), ((second,), ("z",))])
    ]
    assert len(Resume(planned.content, key).reusable(as_recorded(planned, parts)).ranges) == whole


def test_only_the_last_part_of_a_range_ends_it() -> None:
    parts = sorted(export(Table(range(2_000)), rows_per_part=1_000, max_file_size="4kB"), key=lambda p: p.order)
    assert [p.last for p in parts if p.order[1] == 0].count(True) == 1
    assert parts[-1].last
    planned = plan(Table(range(2_000)), consistency="statement")
    assert planned.resume is not None
    first = [as_part(n, p) for n, p in enumerate(parts) if p.order[1] == 0]
    assert len(first) > 2
    for lost in range(len(first)):
        some = [p for n, p in enumerate(first) if n != lost]
        assert planned.resume.reusable(as_recorded(planned, some)).ranges == ()
    (whole,) = planned.resume.reusable(as_recorded(planned, first[::-1])).ranges
    assert [p.path for p in whole] == [p.path for p in first]


def test_nothing_that_a_snapshot_gave_is_left_out() -> None:
    planned = plan(Table([1, 2]), consistency="snapshot")
    assert planned.content.resume is None
    assert planned.resume is not None
    assert "snapshot" in (planned.resume.reusable(as_recorded(planned, [])).because or "")


def test_values_that_were_coerced_are_counted_by_whoever_reads_them() -> None:
    columns = {"text": cast(errors="coerce")}
    planned = plan(Table([1, 2]), consistency="statement", columns=columns)
    assert planned.content.resume is None
    assert planned.resume is not None
    assert "NULL" in (planned.resume.reusable(as_recorded(planned, [])).because or "")


CHANGES: dict[str, dict[str, Any]] = {
    "format": {"format": "parquet"},
    "compression": {"compression": "zstd"},
    "columns": {"columns": ()},
    "engine": {"engine": "mysql"},
    "strategy": {"strategy": "full"},
    "resume": {"resume": {"key": ["id"], "settings": "", "origin": ""}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_content_is_named(name: str) -> None:
    planned = plan(Table([1]), consistency="statement")
    other: Content = replace(planned.content, **CHANGES[name])
    assert planned.resume is not None
    assert planned.resume.reusable(as_recorded(replace(planned, content=other), [])).because == (
        f"it exported something else, or in another way: {name}"
    )


def test_terms_differ_with_what_makes_other_bytes() -> None:
    one = plan(Table([1]), consistency="statement").content.resume
    other = Table([1])
    other.origin = "xxh3:another"
    assert plan(other, consistency="statement").content.resume != one
    assert plan(Table([1]), consistency="statement", rows_per_part=3, parallel=2).content.resume == one
