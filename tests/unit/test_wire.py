"""What is written is read back, whoever wrote it; what contradicts itself is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.errors import ReadError
from rivet_dagster.manifest import (
    Ancestor,
    Column,
    Content,
    Dataset,
    Identity,
    Link,
    Manifest,
    Part,
    Status,
    data_version,
    fingerprint,
    marker_body,
    marker_fingerprint,
)
from rivet_dagster.wire import parse, serialise

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
some = st.none() | text
moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(timezone.utc))
json_values = st.none() | st.dictionaries(text, text | st.integers() | st.booleans(), max_size=3)
columns = st.builds(Column, name=text, type=text, source_type=some, nullable=st.booleans())
parts = st.lists(
    st.builds(
        Part,
        part_id=st.integers(1, 10**9),
        path=text,
        rows=st.integers(1, 10**12),
        size_bytes=st.integers(0, 10**12),
        content_fingerprint=text,
        content_md5=text,
        verification=some,
        key_range=json_values,
        resume=json_values,
    ),
    max_size=4,
    unique_by=lambda p: p.part_id,
).map(tuple)


@st.composite
def manifests(draw):
    content = draw(
        st.builds(
            Content,
            export_name=text,
            identity=st.builds(
                Identity, export=text, database=some, relation=some, cursor_column=some, cursor_type=some
            ),
            dataset=st.sampled_from(Dataset),
            strategy=text,
            engine=text,
            database_schema=some,
            table=some,
            format=text,
            compression=text,
            columns=st.lists(columns, max_size=3).map(tuple),
            cursor=json_values,
            window=json_values,
            resume=json_values,
        )
    )
    return draw(
        st.builds(
            Manifest,
            run_id=text,
            export_name=st.just(content.export_name),
            status=st.sampled_from(Status),
            started_at=moments,
            finished_at=st.none() | moments,
            content=st.just(content),
            destination_kind=text,
            destination_uri=text,
            format=st.just(content.format),
            compression=st.just(content.compression),
            parts=parts,
            sequence=st.integers(1, 10**6),
            previous=st.none() | st.builds(Link, run_id=text, fingerprint=text),
            ancestors=st.lists(
                st.builds(Ancestor, run_id=text, dagster_run_id=some, partition_key=some, fingerprint=text), max_size=3
            ).map(tuple),
            dagster_run_id=some,
            partition_key=some,
            data_version=some,
            heartbeat=st.none() | st.integers(0, 9),
            taken_over_by=some,
        )
    )


@given(manifests())
def test_round_trip(m):
    body = serialise(m)
    assert parse(body, where="here") == m
    assert serialise(parse(body, where="here")) == body


@given(manifests())
def test_unknown_fields_are_ignored(m):
    raw = json.loads(serialise(m))
    raw["new"] = {"deep": 1}
    for p in raw["parts"]:
        p["new"] = 1
    for c in raw["columns"]:
        c["new"] = 1
    raw["identity"]["new"] = 1
    assert parse(json.dumps(raw).encode(), where="here") == m


@pytest.fixture
def good():
    return Manifest(
        run_id="r",
        export_name="orders",
        status=Status.SUCCESS,
        started_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
        destination_kind="local",
        destination_uri="file:///x",
        format="csv",
        compression="none",
        parts=(Part(part_id=1, path="data/a", rows=3, size_bytes=4, content_fingerprint="xxh3:1", content_md5=""),),
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"manifest_version": 2}, "manifest_version is 2, expected 1"),
        ({"row_count": 4}, "contradicts itself"),
        ({"part_count": 2}, "contradicts itself"),
        ({"status": "done"}, "not a manifest"),
        ({"parts": None}, "not a manifest"),
        ({"started_at": "yesterday"}, "not a manifest"),
    ],
)
def test_what_contradicts_itself_is_refused(good, change, said):
    raw = json.loads(serialise(good)) | change
    with pytest.raises(ReadError, match=said):
        parse(json.dumps(raw).encode(), where="here")


def test_repeated_part_ids_are_refused(good):
    with pytest.raises(ReadError, match="contradicts itself"):
        parse(serialise(replace(good, parts=good.parts * 2)), where="here")


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{}", b"\xff", b"{", b"1"])
def test_garbage_is_refused(body):
    with pytest.raises(ReadError, match="here: not a manifest"):
        parse(body, where="here")


def test_times_are_utc_and_the_zone_is_kept(good):
    eastern = replace(good, started_at=datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-5))))
    assert json.loads(serialise(eastern))["started_at"] == "2026-01-01T05:00:00.000000Z"
    assert parse(serialise(eastern), where="here").started_at == eastern.started_at


@given(st.binary())
def test_marker_parses_only_what_it_writes(body):
    found = marker_fingerprint(body)
    if found is not None:
        assert body.rstrip(b" \t\r\n") == found.encode()
    said = fingerprint(body)
    assert marker_fingerprint(marker_body(said)) == said


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"xxh3:",
        b"xxh3:0123456789ABCDEF\n",
        b"xxh3:0123456789abcde",
        b"md5:0123456789abcdef0",
        b"\xffxxh3:0123456789abcde",
    ],
)
def test_malformed_markers(body):
    assert marker_fingerprint(body) is None


def test_data_version_follows_content_and_nothing_else(good):
    columns = (Column(name="id", type="int64"),)
    one = data_version(columns, good.parts, previous=None)
    renamed = tuple(replace(p, path="data/other", part_id=7) for p in good.parts)
    assert data_version(columns, renamed, previous=None) == one
    assert data_version(columns, (), previous=None) != one
    assert data_version((Column(name="id", type="int32"),), good.parts, previous=None) != one
    assert data_version(columns, good.parts, previous=one) != one
