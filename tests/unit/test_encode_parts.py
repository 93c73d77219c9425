"""Parts: the same rows give the same bytes, no part is cut short or empty, and none outgrows its limit for long."""

from __future__ import annotations

import gc
import gzip
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_dagster.contract import EncodedPart
from rivet_dagster.errors import ContractError, DestinationError, SourceError
from rivet_dagster.exports.encode import encode
from rivet_dagster.exports.formats import Csv, Parquet
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.row_groups import cut, row_bytes
from tests.unit.arrow_rows import NESTED, SCALARS, arrivals, tables
from tests.unit.encoded import RecordingPart, Shelf, bodies, body, encoded, parquet, read_back

FORMATS = [
    Parquet(row_group_rows=7),
    Parquet(row_group_bytes=200),
    Parquet(),
    Csv(),
    Csv(compression="gzip"),
    Csv(compression="zstd"),
]


def numbered(rows: int, *, width: int = 20) -> pa.Table:
    """Rows that do not compress, in order."""
    return pa.table(
        {"id": range(rows), "text": [f"{(i * 2654435761) % 2**64:0{width}x}" for i in range(rows)]},
        schema=pa.schema([("id", pa.int64()), ("text", pa.string())]),
    )


class TestSameRowsSameBytes:
    @given(st.data(), st.sampled_from(FORMATS), st.sampled_from([None, 300, 3000]))
    @settings(max_examples=150)
    def test_however_the_batches_arrive(self, data: Any, fmt: Any, limit: int | None) -> None:
        table = data.draw(tables(SCALARS | NESTED if isinstance(fmt, Parquet) else SCALARS))
        whole = encoded(table, fmt, max_file_size=limit)
        arrived = encoded(data.draw(arrivals(table)), fmt, schema=table.schema, max_file_size=limit)
        assert [p.rows for p in arrived] == [p.rows for p in whole]
        assert bodies(arrived) == bodies(whole)

    @pytest.mark.parametrize("fmt", FORMATS)
    def test_at_any_time(self, fmt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        first = bodies(encoded(numbered(100), fmt))
        monkeypatch.setattr("time.time", lambda: 4_000_000_000.0)
        assert bodies(encoded(numbered(100), fmt)) == first

    def test_what_lies_behind_a_null_is_not_data(self) -> None:
        """Arrow lets a NULL list, map, struct or text keep values of its own; they must not show or count."""
        mask = pa.array([False, True, False])
        clean_list = pa.array([["a"], None, ["b"]])
        dirty_list = pa.ListArray.from_arrays(
            pa.array([0, 1, 4, 5], pa.int32()), ["a", "x" * 99, "y", "z", "b"], mask=mask
        )
        clean_struct = pa.array([{"t": "p"}, None, {"t": "q"}])
        dirty_struct = pa.StructArray.from_arrays([pa.array(["p", "x" * 99, "q"])], ["t"], mask=mask)
        assert dirty_list.equals(clean_list)
        assert dirty_struct.equals(clean_struct)
        clean = pa.table({"l": clean_list, "s": clean_struct})
        dirty = pa.table([dirty_list, dirty_struct], schema=clean.schema)
        assert row_bytes(dirty_list).tolist() == row_bytes(clean_list).tolist()
        assert row_bytes(dirty_struct).tolist() == row_bytes(clean_struct).tolist()
        for fmt in (Parquet(), Parquet(row_group_bytes=1)):
            assert bodies(encoded(dirty, fmt)) == bodies(encoded(clean, fmt))


class TestRowGroups:
    @given(st.data(), st.integers(1, 400), st.integers(1, 20))
    @settings(max_examples=150)
    def test_each_ends_with_the_first_row_that_fills_it(self, data: Any, group_bytes: int, group_rows: int) -> None:
        table = data.draw(tables(SCALARS | NESTED))
        batches = data.draw(arrivals(table))
        groups = list(cut(batches, table.schema, group_bytes=group_bytes, group_rows=group_rows))
        # The rule said again, a row at a time.
        sizes = [
            sum(row_bytes(c)[0] for c in table.slice(i, 1).combine_chunks().to_batches()[0].columns)
            for i in range(table.num_rows)
        ]
        expected, held, rows = [], 0, 0
        for size in sizes:
            held, rows = held + max(size, 1), rows + 1
            if held >= group_bytes or rows == group_rows:
                expected.append(rows)
                held = rows = 0
        assert [g.num_rows for g in groups] == expected + ([rows] if rows else [])
        for g in groups:
            assert all(c.num_chunks == 1 for c in g.columns)
        joined = pa.concat_tables(groups)
        # NaN is not equal to itself.
        assert str(joined.to_pylist()) == str(table.to_pylist())

    @pytest.mark.parametrize(
        ("values", "sizes"),
        [
            (pa.array([1, None], pa.int64()), [8, 8]),
            (pa.array([1, None], pa.int8()), [1, 1]),
            (pa.array([True, None]), [1, 1]),
            (pa.nulls(2), [0, 0]),
            (pa.array(["äö", None, ""]), [8, 4, 4]),
            (pa.array([b"abc"], pa.binary(3)), [3]),
            (pa.array([["ab", None], None, []]), [4 + 6 + 4, 4, 4]),
            (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())), [4 + 5 + 4, 4]),
            (pa.array([{"a": 1, "b": "xy"}, None], pa.struct([("a", pa.int16()), ("b", pa.string())])), [2 + 6, 2 + 4]),
            (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), [4 + 16, 4]),
            (pa.array([b"\0" * 16], pa.uuid()), [16]),
        ],
    )
    def test_a_row_counts_what_it_holds(self, values: pa.Array, sizes: list[int]) -> None:
        assert row_bytes(values).tolist() == sizes
        # A slice counts its own rows, not those that share its buffers.
        assert row_bytes(values.slice(1)).tolist() == sizes[1:]

    def test_the_default_group_is_10_million_bytes(self) -> None:
        table = pa.table({"a": pa.array(range(1_000_000), pa.int64()), "b": pa.array([1.5] * 1_000_000)})
        (part,) = encoded(pa.concat_tables([table.select(["a"])] * 3), Parquet())
        meta = parquet(part).metadata
        assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == [1_048_576, 1_048_576, 902_848]
        (part,) = encoded(table.append_column("t", pa.array(["x" * 46] * 1_000_000)), Parquet())
        meta = parquet(part).metadata
        rows = -(-10_000_000 // (8 + 8 + 4 + 46))
        assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == [*[rows] * 6, 1_000_000 - 6 * rows]


class TestRotation:
    @pytest.mark.parametrize("fmt", FORMATS)
    @pytest.mark.parametrize("limit", [1, 1_000, 5_000, 10**9])
    def test_every_row_is_in_one_part_in_order(self, fmt: Any, limit: int) -> None:
        table = numbered(600)
        parts = encoded(table, fmt, max_file_size=limit)
        assert sum(p.rows for p in parts) == table.num_rows
        assert all(p.rows > 0 for p in parts)
        assert all(p.staged.closed for p in parts)
        if isinstance(fmt, Parquet):
            assert read_back(parts).equals(table)
        assert len(parts) > 1 or limit == 10**9

    @pytest.mark.parametrize("limit", [20_000, 50_000, 100_000])
    @pytest.mark.parametrize("width", [4, 50, 500])
    def test_a_parquet_part_exceeds_its_limit_by_one_row_group_at_most(self, limit: int, width: int) -> None:
        parts = encoded(numbered(3_000, width=width), Parquet(), max_file_size=limit)
        for part in parts:
            meta = parquet(part).metadata
            groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
            largest = max(sum(g.column(c).total_compressed_size for c in range(g.num_columns)) for g in groups)
            footer = int.from_bytes(body(part)[-8:-4], "little") + 12
            assert part.staged.size_bytes <= limit + largest + footer
            # And the next row group would have led beyond: parts are not made small for nothing.
            if part is not parts[-1]:
                assert part.staged.size_bytes - footer + largest > limit

    @pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
    def test_a_csv_part_stays_near_its_limit(self, compression: Any) -> None:
        """What a compressor holds back is counted too: it is flushed after each piece."""
        limit = 20_000
        parts = encoded(numbered(20_000), Csv(compression=compression), max_file_size=limit)
        assert len(parts) > 3
        for part in parts:
            assert part.staged.size_bytes <= limit * 1.25
        for part in parts[:-1]:
            assert part.staged.size_bytes >= limit * 0.7

    def test_rows_of_growing_size_overshoot_by_one_group_only(self) -> None:
        table = pa.table({"t": ["x"] * 5_000 + [f"{i}" * 2_000 for i in range(100, 140)]})
        parts = encoded(table, Csv(), max_file_size=10_000)
        assert max(p.staged.size_bytes for p in parts) <= 10_000 + 6_000 + 1_250 + 10
        assert sum(p.rows for p in parts) == table.num_rows

    def test_without_a_limit_there_is_one_part(self) -> None:
        for fmt in FORMATS:
            assert len(encoded(numbered(500), fmt)) == 1

    def test_no_row_gives_no_part_and_stages_none(self) -> None:
        shelf = Shelf()
        empty = pa.RecordBatch.from_pylist([], numbered(1).schema)
        for fmt in FORMATS:
            for batches in ([], [empty, empty]):
                output = resolve_output(format=fmt)
                assert list(encode(batches, empty.schema, output=output, stage=shelf.stage)) == []
        assert shelf.staged == []

    def test_a_part_is_staged_when_its_first_row_is_there_and_yielded_when_it_is_complete(self) -> None:
        shelf, log = Shelf(), []

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in numbered(9).to_batches(max_chunksize=3):
                log.append(f"read, {len(shelf.staged)} staged")
                yield batch

        # With such a limit each row is a row group, and each row group a part.
        for part in encode(batches(), numbered(1).schema, output=resolve_output(max_file_size=1), stage=shelf.stage):
            log.append(f"part of {part.rows}")  # noqa: PERF401 (the order is the point)
        ones = ["part of 1"] * 3
        assert log == ["read, 0 staged", *ones, "read, 3 staged", *ones, "read, 6 staged", *ones]


class TestFailure:
    """Whatever fails: the open part is discarded and gets no footer, those before it are whole."""

    @pytest.mark.parametrize("fmt", FORMATS)
    @pytest.mark.parametrize("good", [0, 1, 3, 7])
    def test_of_the_batches(self, fmt: Any, good: int) -> None:
        shelf, done = Shelf(), []

        def batches() -> Iterator[pa.RecordBatch]:
            yield from ROWS.to_batches(max_chunksize=500)[:good]
            raise SourceError("connection lost")

        with pytest.raises(SourceError, match="connection lost"):
            collect(done, batches(), fmt, shelf.stage)
        only_these_are_whole(shelf, done, fmt)

    @pytest.mark.parametrize("fmt", FORMATS)
    @pytest.mark.parametrize("good", [0, 1, 2, 5])
    def test_of_a_write_is_told_as_it_is(self, fmt: Any, good: int) -> None:
        """An error of the destination comes through pyarrow and the compressors as itself."""

        def fail(part: RecordingPart, _data: bytes) -> None:
            if part.key == "part-2" and part.writes == good:
                raise DestinationError("no space left")

        shelf, done = Shelf(fail), []
        with pytest.raises(DestinationError, match="no space left"):
            collect(done, ROWS.to_batches(), fmt, shelf.stage)
        assert len(done) == 1
        only_these_are_whole(shelf, done, fmt)

    def test_of_the_encoder_names_the_part_and_its_columns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A value that pyarrow cannot write, which depends on its version."""

        def refuse(*_: Any, **__: Any) -> None:
            raise pa.ArrowNotImplementedError("too odd")

        monkeypatch.setattr(pq.ParquetWriter, "write_table", refuse)
        shelf = Shelf()
        with pytest.raises(ContractError, match=r"part-1.*'id', 'text'.*too odd.*as text"):
            collect([], ROWS.to_batches(), Parquet(), shelf.stage)
        only_these_are_whole(shelf, [], Parquet())

    @pytest.mark.parametrize("fmt", FORMATS)
    def test_to_stage_leaves_what_was_yielded(self, fmt: Any) -> None:
        shelf, done = Shelf(), []

        def stage() -> RecordingPart:
            if len(shelf.staged) == 2:
                raise DestinationError("no room")
            return shelf.stage()

        with pytest.raises(DestinationError, match="no room"):
            collect(done, ROWS.to_batches(), fmt, stage)
        assert len(done) == 2
        only_these_are_whole(shelf, done, fmt)

    @pytest.mark.parametrize("fmt", FORMATS)
    @pytest.mark.parametrize("taken", [1, 2])
    def test_leaving_early_is_a_failure_too(self, fmt: Any, taken: int) -> None:
        shelf = Shelf()

        def batches() -> Iterator[pa.RecordBatch]:
            yield from ROWS.to_batches(max_chunksize=10)

        parts = encode(
            batches(), ROWS.schema, output=resolve_output(format=fmt, max_file_size=LIMIT), stage=shelf.stage
        )
        done = [next(parts) for _ in range(taken)]
        parts.close()
        only_these_are_whole(shelf, done, fmt)

    @pytest.mark.parametrize("fmt", FORMATS)
    @pytest.mark.parametrize("missing", [1, 8, 9])
    def test_in_the_last_bytes_of_a_part(self, fmt: Any, missing: int) -> None:
        """When ending it fails, the part was never complete."""
        whole = encoded(ROWS, fmt)[0].staged.size_bytes

        def fail(part: RecordingPart, data: bytes) -> None:
            if len(part.written) + len(data) > whole - missing:
                raise DestinationError("quota")

        shelf, done = Shelf(fail), []
        with pytest.raises(DestinationError, match="quota"):
            collect(done, ROWS.to_batches(), fmt, shelf.stage, max_file_size=None)
        assert done == []
        only_these_are_whole(shelf, done, fmt)


LIMIT = 6_000
ROWS = numbered(4_000)


def collect(done: list[EncodedPart], batches: Any, fmt: Any, stage: Any, *, max_file_size: int | None = LIMIT) -> None:
    """Keep what was yielded before a failure."""
    output = resolve_output(format=fmt, max_file_size=max_file_size)
    for part in encode(batches, ROWS.schema, output=output, stage=stage):
        done.append(part)  # noqa: PERF402 (what was yielded before an error is the point)


def only_these_are_whole(shelf: Shelf, done: list[EncodedPart], fmt: Any) -> None:
    # What pyarrow still wants to write when its writers are collected.
    gc.collect()
    for part in done:
        assert not part.staged.discarded
        read = (
            parquet(part).metadata.num_rows
            if isinstance(fmt, Parquet)
            else len(text(part.staged, fmt).splitlines()) - 1
        )
        assert read == part.rows
    for staged in shelf.staged[len(done) :]:
        assert staged.discarded
        assert not staged.closed
        if isinstance(fmt, Parquet):
            with pytest.raises(pa.ArrowInvalid):
                pq.read_table(pa.BufferReader(staged.written))


def text(staged: RecordingPart, fmt: Csv) -> str:
    """A CSV part, read to its proper end: a stream that was cut raises."""
    match fmt.compression:
        case "gzip":
            return gzip.decompress(staged.written).decode()
        case "zstd":
            return pa.CompressedInputStream(pa.BufferReader(staged.written), "zstd").read().decode()
    return staged.written.decode()


def test_memory_is_bounded_by_a_row_group_not_by_the_table() -> None:
    """Two hundred times a row group goes by; what Arrow holds never grows beyond a few."""
    batch = numbered(20_000).to_batches()[0]
    held = []

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(100):
            yield pa.RecordBatch.from_arrays(
                [pa.concat_arrays([c, c.slice(0, 0)]) for c in batch.columns], schema=batch.schema
            )
            held.append(pa.total_allocated_bytes())

    before = pa.total_allocated_bytes()
    output = resolve_output(format=Parquet(row_group_bytes=500_000), max_file_size="4MB")
    rows = 0
    for part in encode(batches(), batch.schema, output=output, stage=Shelf().stage):
        rows += part.rows
    assert rows == 2_000_000
    assert max(held) - before < 10_000_000


def test_many_small_batches_do_not_pile_up() -> None:
    schema, held = pa.schema([("a", pa.int64())]), []

    def batches() -> Iterator[pa.RecordBatch]:
        for i in range(5_000):
            yield pa.RecordBatch.from_pydict({"a": [i]}, schema=schema)
            held.append(pa.total_allocated_bytes())

    before = pa.total_allocated_bytes()
    (group,) = cut(batches(), schema, group_bytes=10**9, group_rows=10**9)
    assert group["a"].to_pylist() == list(range(5_000))
    # A buffer of its own for each row would be 64 bytes times 5,000.
    assert max(held) - before < 200_000


def test_duckdb_reads_the_parts_of_both_formats_as_one_dataset(tmp_path: Any) -> None:
    table = numbered(1_000)
    for fmt in (Parquet(), Csv(), Csv(compression="gzip"), Csv(compression="zstd")):
        suffix = resolve_output(format=fmt).suffix
        for i, one in enumerate(bodies(encoded(table, fmt, max_file_size=5_000))):
            (tmp_path / f"{i:05}{suffix}").write_bytes(one)
        found = duckdb.sql(f"from '{tmp_path}/*{suffix}' order by id").to_arrow_table()
        assert found["id"].to_pylist() == table["id"].to_pylist()
        assert found["text"].to_pylist() == table["text"].to_pylist()


def test_the_allocator_is_asked_for_memory_once_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never asked, it keeps what other threads have made; asked after each row group, it costs more than it saves."""
    asked: list[None] = []
    pool = SimpleNamespace(release_unused=lambda: asked.append(None))
    monkeypatch.setattr(pa, "default_memory_pool", lambda: pool)
    parts = encoded(numbered(1000), Parquet(row_group_rows=20), max_file_size=6000)
    assert 1 < len(parts) < 50
    assert len(asked) == len(parts)
