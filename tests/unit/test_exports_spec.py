"""What authors write is judged while they write it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.formats import Csv, Parquet
from rivet_dagster.exports.modes import Chunked, Full, Incremental
from rivet_dagster.exports.output import OutputSettings, resolve_output
from rivet_dagster.exports.spec import Cast, Export, cast


def test_the_defaults_leave_everything_to_the_io_manager() -> None:
    e = Export(name="orders", table="public.orders")
    assert e.mode == Full()
    assert (e.format, e.max_file_size, e.retain, e.symlink_manifest, e.verify) == (None,) * 5
    assert e.skip_empty is False
    assert dict(e.columns) == {}


@pytest.mark.parametrize(
    ("relation", "found"),
    [
        ({}, "neither"),
        ({"table": "t", "query": "select 1"}, "both"),
        ({"table": " "}, "neither"),
        ({"query": "\n"}, "neither"),
    ],
)
def test_exactly_one_of_table_and_query(relation: dict[str, str], found: str) -> None:
    with pytest.raises(ConfigError, match=f"'orders'.*`table`.*`query`.*{found}"):
        Export(name="orders", **relation)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_file_size": "256M"}, "max_file_size"),
        ({"max_file_size": "0B"}, "max_file_size"),
        ({"max_file_size": True}, "max_file_size"),
        ({"max_file_size": 1.5}, "max_file_size"),
        ({"format": "parket"}, "format"),
        ({"name": "  "}, "name"),
        ({"retain": -1}, "retain"),
        ({"verify": "content"}, "verify"),
        ({"mode": {"kind": "incremental"}}, "mode"),
        ({"format": {"kind": "csv", "compression": "lz4"}}, "format"),
        ({"format": {"kind": "parquet", "row_group_rows": 0}}, "row_group_rows"),
        ({"columns": {"x": ""}}, "columns"),
        ({"columns": {"x": 1}}, "columns"),
        ({"tabel": "t"}, "tabel"),
        ({"mode": {"kind": "chunked", "rows_per_part": 0}}, "rows_per_part"),
        ({"mode": {"kind": "chunked", "bytes_per_part": "big"}}, "bytes_per_part"),
        ({"mode": {"kind": "chunked", "rows_per_part": 1, "bytes_per_part": "1MB"}}, "rows_per_part and bytes_per"),
        ({"mode": {"kind": "chunked", "parallel": 0}}, "parallel"),
        ({"mode": {"kind": "chunked", "key": []}}, "key"),
        ({"mode": {"kind": "chunked", "key": ["a", "a"]}}, "key"),
        ({"mode": {"kind": "chunked", "key": " "}}, "key"),
        ({"mode": {"kind": "chunked", "consistency": "read"}}, "consistency"),
        ({"mode": {"kind": "chunked", "rows": 1}}, "rows"),
        ({"mode": {"kind": "full", "parallel": 2}}, "parallel"),
    ],
)
def test_a_bad_value_names_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match=field):
        Export(**{"name": "orders", "table": "t", **given})


def test_a_mode_is_set_or_named() -> None:
    said = {"kind": "chunked", "key": ["a", "b"], "bytes_per_part": "1MB", "parallel": 3, "consistency": "statement"}
    mode = Export(name="a", table="t", mode=said).mode
    assert mode == Chunked(key=("a", "b"), bytes_per_part="1MB", parallel=3, consistency="statement")
    assert (mode.key_columns, mode.range_bytes) == (("a", "b"), 1_000_000)
    assert Export(name="a", table="t", mode={"kind": "full"}).mode == Full()


def test_a_mode_needs_no_setting() -> None:
    mode = Chunked()
    assert (mode.key_columns, mode.rows_per_part, mode.range_bytes) == (None, None, 256_000_000)
    assert (mode.parallel, mode.consistency) == (1, "snapshot")
    assert Chunked(key="id").key_columns == ("id",)


def test_each_setting_of_a_mode_is_described() -> None:
    assert [name for mode in (Full, Chunked) for name, f in mode.model_fields.items() if not f.description] == []


@pytest.mark.parametrize("mode", [Chunked(), Chunked(key="id")])
def test_a_query_cannot_be_divided(mode: Chunked) -> None:
    with pytest.raises(ConfigError, match=r"'orders'.*table.*Chunked.*query.*Full\(\)"):
        Export(name="orders", query="select * from orders", mode=mode)


def test_formats_are_named_or_set() -> None:
    assert Export(name="a", table="t", format="csv").format == Csv()
    assert Export(name="a", table="t", format="parquet").format == Parquet()
    assert Export(name="a", table="t", format=Csv(compression="gzip")).format == Csv(compression="gzip")
    assert Export(name="a", table="t", format={"kind": "parquet", "compression": "snappy"}).format == Parquet(
        compression="snappy"
    )


def test_casts_are_written_as_text_or_by_cast() -> None:
    e = Export(name="a", table="t", columns={"x": cast("text"), "y": "text"})
    assert e.columns == {"x": Cast(type="text"), "y": Cast(type="text")}
    assert e.source_query.casts == {"x": "text", "y": "text"}
    assert (e.source_query.table, e.source_query.sql) == ("t", None)


def test_a_policy_stands_alone_or_beside_a_type() -> None:
    e = Export(
        name="a",
        table="t",
        columns={
            "x": cast(errors="coerce"),
            "y": {"type": "date", "errors": "coerce"},
            "z": cast("text", errors="raise"),
        },
    )
    assert e.source_query.casts == {"y": "date", "z": "text"}
    assert e.source_query.coerce == {"x", "y"}


@pytest.mark.parametrize("given", [{}, {"errors": "raise"}, {"type": None}])
def test_a_cast_that_says_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"cast: expected a type, errors=\"coerce\" or both"):
        Export(name="a", table="t", columns={"x": given})


def test_a_policy_that_cannot_be_is_named() -> None:
    with pytest.raises(ValidationError, match="errors"):
        cast(errors="null")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (Export, {"name": "a", "tabel": "t"}, r"Export\(tabel=…\): there is no such setting; did you mean table\?"),
        (Incremental, {"cursor_colum": "at"}, r"did you mean cursor_column\?"),
        (Csv, {"zzz": 1}, "known are kind, compression, level"),
    ],
)
def test_a_misspelt_setting_is_told_what_may_be_meant(kind: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**given)
    # Of data, it is one mistake among others, with its place.
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        kind.model_validate(given)


def test_an_export_cannot_be_changed() -> None:
    e = Export(name="a", table="t")
    with pytest.raises(ValidationError):
        e.name = "b"  # type: ignore[misc]


def test_an_export_survives_json() -> None:
    e = Export(name="a", query="select 1", format=Csv(compression="zstd"), columns={"x": cast("text")}, retain=2)
    assert Export.model_validate_json(e.model_dump_json()) == e


def test_the_relation_is_the_table() -> None:
    assert Export(name="a", table=" public.orders ").relation == "public.orders"


def test_the_relation_of_a_query_is_a_hash_of_its_text_but_not_of_its_layout() -> None:
    one = Export(name="a", query="select id,\n  total\nfrom orders;\n").relation
    assert one == Export(name="b", query="  select id, total from orders").relation
    assert one != Export(name="a", query="select id, total from order_s").relation
    assert one.startswith("query:xxh3:")
    assert len(one) == len("query:xxh3:") + 16
    assert "orders" not in one


def test_every_setting_is_described() -> None:
    for model in (Export, Full, Cast, Parquet, Csv):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


def test_what_the_export_sets_wins_over_the_io_manager() -> None:
    ours = Export(
        name="a",
        table="t",
        format="csv",
        max_file_size="1MB",
        retain=0,
        verify="store",
        symlink_manifest=False,
        skip_empty=True,
    )
    found = resolve_output(
        format="parquet", max_file_size="9GB", retain=3, verify="readback", symlink_manifest=True, export=ours
    )
    assert found == OutputSettings(
        format=Csv(), max_file_size=1_000_000, skip_empty=True, retain=0, verify="store", symlink_manifest=False
    )


def test_what_the_export_leaves_open_is_the_io_managers() -> None:
    found = resolve_output(
        format="csv",
        max_file_size="2KiB",
        retain=3,
        verify="readback",
        symlink_manifest=True,
        export=Export(name="a", table="t"),
    )
    assert found == OutputSettings(
        format=Csv(), max_file_size=2048, skip_empty=False, retain=3, verify="readback", symlink_manifest=True
    )


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"format": "orc"}, "format"),
        ({"format": None}, "format"),
        ({"max_file_size": "x"}, "max_file_size"),
        ({"retain": -1}, "retain"),
        ({"verify": "content"}, "verify"),
    ],
)
def test_a_bad_setting_of_an_io_manager_names_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        resolve_output(**given)


@pytest.mark.parametrize(
    ("fmt", "suffix"),
    [
        (Parquet(), ".parquet"),
        (Parquet(compression="gzip"), ".parquet"),
        (Csv(), ".csv"),
        (Csv(compression="gzip"), ".csv.gz"),
        (Csv(compression="zstd"), ".csv.zst"),
    ],
)
def test_the_suffix_says_how_to_read_a_part(fmt: Parquet | Csv, suffix: str) -> None:
    assert resolve_output(format=fmt).suffix == suffix


def test_writing_down_an_export_imports_neither_pyarrow_nor_pandas() -> None:
    code = (
        "import sys, rivet_dagster.exports.spec, rivet_dagster.exports.output, rivet_dagster.exports.plan;"
        "print([m for m in ('pyarrow', 'pandas', 'numpy', 'dagster') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
