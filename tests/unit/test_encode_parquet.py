"""Parquet: what readers find, and how it is encoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings

from rivet_dagster.exports.columns import plain_type
from rivet_dagster.exports.formats import Parquet
from tests.unit.arrow_rows import NESTED, SCALARS, tables
from tests.unit.encoded import body, encoded, parquet, read_back

N = 20_000


def encodings(table: pa.Table, fmt: Parquet | None = None) -> dict[str, set[str]]:
    """Per leaf column, the encodings of its values in the first row group."""
    (part,) = encoded(table, fmt or Parquet())
    group = parquet(part).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return {c.path_in_schema: set(c.encodings) - {"RLE", "BIT_PACKED"} for c in columns}


class TestContent:
    # Planning turns whole seconds, which Parquet has not, into milliseconds.
    @given(tables({k: v for k, v in (SCALARS | NESTED).items() if plain_type(k) == k}))
    @settings(max_examples=150)
    def test_every_value_and_type_comes_back(self, table: pa.Table) -> None:
        found = read_back(encoded(table, Parquet(row_group_rows=9)))
        assert found.schema == table.schema
        assert str(found.to_pylist()) == str(table.to_pylist())

    def test_nullability_is_kept(self) -> None:
        schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64())])
        (part,) = encoded(pa.table([[1], [None]], schema=schema), Parquet())
        found = parquet(part)
        assert found.schema_arrow == schema
        assert [found.schema.column(i).max_definition_level for i in (0, 1)] == [0, 1]

    def test_other_people_read_it(self, tmp_path: Path) -> None:
        """DuckDB, of every encoding that is used."""
        table = pa.table(
            {
                "delta": pa.array(range(N), pa.int64()),
                "small": pa.array([i % 100 for i in range(N)], pa.int16()),
                "dictionary": pa.array([f"status {i % 5}" for i in range(N)]),
                "plain": pa.array([f"{i * 7919}" for i in range(N)]),
                "short": pa.array([i * 31 for i in range(N)], pa.int64())
                .cast(pa.decimal128(19, 0))
                .cast(pa.decimal128(12, 2)),
                "long": pa.array([i * 31 for i in range(N)], pa.int64())
                .cast(pa.decimal128(19, 0))
                .cast(pa.decimal128(30, 5)),
                "at": pa.array([i * 1_000_003 for i in range(N)], pa.timestamp("us", "UTC")),
                "day": pa.array([i % 9_000 for i in range(N)], pa.int32()).cast(pa.date32()),
                "real": pa.array([i / 7 for i in range(N)]),
                "list": pa.array([[f"{i % 3}", None] for i in range(N)]),
                "none": pa.array([None] * N, pa.string()),
            }
        )
        (part,) = encoded(table, Parquet(row_group_rows=6_000))
        (tmp_path / "a.parquet").write_bytes(body(part))
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            found = connection.sql(f"from '{tmp_path}/a.parquet'").to_arrow_table()
        for name in table.column_names:
            assert found[name].to_pylist() == table[name].to_pylist(), name

    def test_large_rows_of_many_batches_are_one_set_of_bytes(self) -> None:
        """Pages end every thousand rows or so; where batches end must not show in them."""
        rows = 12_000
        table = pa.table(
            {
                "t": [f"{i * 2654435761 % 99991}" * 9 for i in range(rows)],
                "n": [i if i % 3 else None for i in range(rows)],
                "l": [[i, None] if i % 2 else None for i in range(rows)],
                "d": [f"{i % 7}" for i in range(rows)],
            }
        )
        expected = [body(p) for p in encoded(table, Parquet(row_group_rows=5_000))]
        for size in (1, 777, 1_024, 5_000, 7_500):
            batches = table.to_batches(max_chunksize=size)
            copies = (
                pa.RecordBatch.from_arrays([pa.concat_arrays([c, c[:0]]) for c in b.columns], schema=b.schema)
                for b in batches
            )
            for arrived in (batches, copies):
                found = encoded(arrived, Parquet(row_group_rows=5_000), schema=table.schema)
                assert [body(p) for p in found] == expected, size


class TestEncoding:
    def test_few_values_get_a_dictionary_many_do_not(self) -> None:
        found = encodings(
            pa.table(
                {
                    "few": [f"status {i % 5}" for i in range(N)],
                    "many": [f"{i}" for i in range(N)],
                    "code": pa.array([(i % 3) * 10**9 for i in range(N)], pa.int64()),
                    "id": pa.array(range(N), pa.int64()),
                    "key": pa.array([i % 5_000 for i in range(N)], pa.int32()),
                    "rate": [float(i % 10) for i in range(N)],
                    "real": [i / 7 for i in range(N)],
                    "flag": [i % 2 == 0 for i in range(N)],
                }
            )
        )
        assert {n for n, e in found.items() if "RLE_DICTIONARY" in e} == {"few", "code", "rate"}
        assert {n for n, e in found.items() if e == {"DELTA_BINARY_PACKED"}} == {"id", "key"}
        assert {n for n, e in found.items() if e == {"PLAIN"}} >= {"many", "real"}

    @pytest.mark.parametrize(
        "kind",
        [
            pa.int8(),
            pa.uint64(),
            pa.date32(),
            pa.time64("us"),
            pa.timestamp("us"),
            pa.timestamp("ns", "UTC"),
            pa.duration("us"),
        ],
    )
    def test_what_is_stored_as_an_integer_is_stored_by_differences(self, kind: pa.DataType) -> None:
        values = pa.array(range(N), pa.int64()).cast(kind) if kind != pa.int8() and kind != pa.date32() else None
        if values is None:
            values = pa.array([i % 100 if kind == pa.int8() else i for i in range(300)], pa.int32()).cast(kind)
        found = encodings(pa.table({"a": values}))
        assert found == {"a": {"DELTA_BINARY_PACKED"}}

    def test_short_decimals_are_integers_and_long_ones_are_not(self) -> None:
        values = pa.array(range(N), pa.int64()).cast(pa.decimal128(19, 0))
        table = pa.table({"s": values.cast(pa.decimal128(18, 2)), "l": values.cast(pa.decimal128(21, 2))})
        (part,) = encoded(table, Parquet())
        schema = parquet(part).schema
        assert [schema.column(i).physical_type for i in (0, 1)] == ["INT64", "FIXED_LEN_BYTE_ARRAY"]
        assert encodings(table) == {"s": {"DELTA_BINARY_PACKED"}, "l": {"PLAIN"}}

    def test_the_leaves_of_nested_columns_are_judged_one_by_one(self) -> None:
        table = pa.table(
            {
                "tags": pa.array([[f"t{i % 4}"] for i in range(N)]),
                "ids": pa.array([[i, i + 1] for i in range(N)], pa.large_list(pa.int64())),
                "pair": pa.array([[i, i] for i in range(N)], pa.list_(pa.int32(), 2)),
                "s": pa.array([{"few": f"{i % 3}", "n": {"id": i}} for i in range(N)]),
                "m": pa.array([[("k", i)] for i in range(N)], pa.map_(pa.string(), pa.int64())),
            }
        )
        found = encodings(table)
        assert {n for n, e in found.items() if "RLE_DICTIONARY" in e} == {
            "tags.list.element",
            "s.few",
            "m.key_value.key",
        }
        assert {n for n, e in found.items() if e == {"DELTA_BINARY_PACKED"}} == {
            "ids.list.element",
            "pair.list.element",
            "s.n.id",
            "m.key_value.value",
        }

    def test_a_column_name_with_a_dot_is_encoded_like_any_other(self) -> None:
        found = encodings(pa.table({"a.b": range(N), "c.d": [f"{i % 3}" for i in range(N)]}))
        assert found["a.b"] == {"DELTA_BINARY_PACKED"}
        assert "RLE_DICTIONARY" in found["c.d"]

    def test_a_column_named_like_a_field_of_another_is_encoded_by_its_own_type(self) -> None:
        table = pa.table({"a.b": range(N), "a": pa.array([{"b": f"{i}"} for i in range(N)])})
        (part,) = encoded(table, Parquet())
        assert parquet(part).read().equals(table)

    def test_all_parts_are_encoded_alike(self) -> None:
        """By the first row group: the choice is the export's, not each part's."""
        table = pa.table({"t": ["few"] * N + [f"{i}" for i in range(N)]})
        parts = encoded(table, Parquet(row_group_rows=5_000), max_file_size=10_000)
        assert len(parts) > 2
        assert all("RLE_DICTIONARY" in parquet(p).metadata.row_group(0).column(0).encodings for p in parts)

    @pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "lz4", "none"])
    def test_the_codec_is_the_one_that_was_asked_for(self, codec: Any) -> None:
        table = pa.table({"t": [f"{i}" for i in range(N)]})
        (part,) = encoded(table, Parquet(compression=codec))
        found = parquet(part).metadata.row_group(0).column(0).compression
        assert found == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
        assert parquet(part).read().equals(table)

    def test_the_level_counts_and_zstd_begins_at_1(self) -> None:
        table = pa.table({"t": [f"{i * 7919}" for i in range(N)]})
        default, one, high = (body(encoded(table, Parquet(level=level))[0]) for level in (None, 1, 19))
        assert default == one
        assert len(high) < len(one)


class TestFooter:
    def test_it_says_nothing_that_is_not_a_function_of_rows_and_settings(self) -> None:
        (part,) = encoded(pa.table({"a": [1]}), Parquet())
        meta = parquet(part).metadata
        assert meta.created_by == f"parquet-cpp-arrow version {pa.cpp_version}"
        assert set(meta.metadata) == {b"ARROW:schema"}

    def test_statistics_are_there_for_readers_that_skip(self) -> None:
        (part,) = encoded(pa.table({"a": [3, None, 1]}), Parquet())
        found = parquet(part).metadata.row_group(0).column(0).statistics
        assert (found.min, found.max, found.null_count) == (1, 3, 1)
