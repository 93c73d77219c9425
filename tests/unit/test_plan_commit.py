"""Planned rows through the real seam to a real directory, read by people who share no code with us."""

from __future__ import annotations

import json
import logging
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from rivet_dagster.attempt import Attempt, CommitSettings, ExportReceipt
from rivet_dagster.commit import commit_export
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.exports.extraction import plan_value
from rivet_dagster.exports.formats import Csv, Parquet
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.spec import Batches
from rivet_dagster.layout import asset_prefix
from tests import rivet_cli

N = 20_000
# Every encoding that is chosen for Parquet, with NULLs among the values.
ROWS = pa.table(
    {
        "id": pa.array(range(N), pa.int64()),
        "key": pa.array([None if i % 7 == 0 else i % 3_000 for i in range(N)], pa.int32()),
        "status": pa.array([None if i % 5 == 0 else f"status {i % 4}" for i in range(N)]),
        "note": pa.array([None if i % 3 == 0 else f'"{i * 7919}", and\r\nmore' for i in range(N)]),
        "total": pa.array(
            [None if i % 11 == 0 else Decimal(i * 31).scaleb(-2) for i in range(N)], pa.decimal128(12, 2)
        ),
        "exact": pa.array([Decimal(i * 31).scaleb(-9) for i in range(N)], pa.decimal128(30, 9)),
        "at": pa.array([None if i % 13 == 0 else i * 1_000_003 for i in range(N)], pa.timestamp("us", "UTC")),
        "naive": pa.array([i * 1_000_003 for i in range(N)], pa.timestamp("us")),
        "day": pa.array([i % 9_000 for i in range(N)], pa.int32()).cast(pa.date32()),
        "real": pa.array([None if i % 17 == 0 else i / 7 for i in range(N)]),
        "flag": pa.array([None if i % 19 == 0 else i % 2 == 0 for i in range(N)]),
        "bytes": pa.array([f"{i}".encode() for i in range(N)]),
    }
)
DUCKDB = [
    *("BIGINT", "INTEGER", "VARCHAR", "VARCHAR", "DECIMAL(12,2)", "DECIMAL(30,9)"),
    *("TIMESTAMPTZ", "TIMESTAMP", "DATE", "DOUBLE", "BOOLEAN", "VARCHAR"),
]


def commit(root: Path, value: Any, **settings: Any) -> ExportReceipt:
    output = resolve_output(**settings)
    return commit_export(
        LocalDestination(root),
        prefix=asset_prefix(["mart", "orders"]),
        attempt=Attempt(export_name="mart/orders"),
        plan=lambda head: plan_value(value, export_name="mart/orders", output=output, head=head),
        settings=CommitSettings(),
        log=logging.getLogger("tests"),
    )


@pytest.mark.parametrize("fmt", [Parquet(row_group_rows=3_000), Parquet(compression="snappy"), Csv()])
@pytest.mark.parametrize("limit", [None, "200kB"])
def test_rivet_decodes_and_passes_every_part(tmp_path: Path, fmt: Any, limit: str | None) -> None:
    receipt = commit(tmp_path / "lake", ROWS, format=fmt, max_file_size=limit)
    assert receipt.row_count == N
    assert (len(receipt.parts) > 1) == (limit is not None)
    said = rivet_cli.validate(rivet_cli.local(tmp_path / "lake/mart/orders"), workdir=tmp_path, export_format=fmt.kind)
    assert (said.passed, said.marker, said.parts) == (True, True, len(receipt.parts))
    # rivet counts no rows of CSV, and says so.
    assert said.codes == (() if fmt.kind == "parquet" else ("RIVET_VERIFY_VALUE_CHECK_NOT_AVAILABLE",))


@pytest.mark.parametrize(
    "fmt", [Parquet(row_group_rows=3_000), Csv(), Csv(compression="gzip"), Csv(compression="zstd")]
)
def test_duckdb_finds_every_value_by_the_manifest(tmp_path: Path, fmt: Any) -> None:
    commit(tmp_path, ROWS, format=fmt, max_file_size="150kB")
    root = tmp_path / "mart/orders"
    manifest = json.loads((root / "manifest.json").read_text())
    listed = [str(root / p["path"]) for p in manifest["parts"]]
    assert len(listed) > 1
    kinds = dict(zip(ROWS.column_names, DUCKDB, strict=True))
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        reader = (
            f"read_csv({listed}, header = true, columns = {kinds}, allow_quoted_nulls = false, new_line = '\\r\\n')"
        )
        found = connection.sql(
            f"from {f'read_parquet({listed})' if fmt.kind == 'parquet' else reader} order by id"
        ).to_arrow_table()
    for name in ROWS.column_names:
        expected = ROWS[name].to_pylist()
        if name == "bytes" and fmt.kind == "csv":
            expected = [v.hex() for v in expected]
        assert found[name].to_pylist() == expected, name


def test_the_same_rows_have_the_same_data_version_however_they_come(tmp_path: Path) -> None:
    """So that downstream assets stay fresh."""
    frame = ROWS.select(["id", "real", "day"]).to_pandas(date_as_object=True)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pieces = Batches(frame.iloc[i : i + 777] for i in range(0, N, 777))
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=999))
    versions = []
    for i, value in enumerate((frame, table, pieces, reader)):
        manifest = commit(tmp_path / str(i), value, max_file_size="20kB").manifest
        assert manifest is not None
        assert len(manifest.parts) > 1
        versions.append(manifest.data_version)
    assert len(set(versions)) == 1
    changed = frame.copy()
    changed.loc[N // 2, "real"] = -1.0
    manifest = commit(tmp_path / "changed", changed, max_file_size="20kB").manifest
    assert manifest is not None
    assert manifest.data_version != versions[0]


@pytest.mark.parametrize("skip_empty", [False, True])
def test_no_row_is_an_empty_dataset_or_none(tmp_path: Path, *, skip_empty: bool) -> None:
    commit(tmp_path, ROWS.slice(0, 10))
    receipt = commit(tmp_path, ROWS.slice(0, 0), skip_empty=skip_empty)
    manifest = json.loads((tmp_path / "mart/orders/manifest.json").read_text())
    assert manifest["row_count"] == (10 if skip_empty else 0)
    assert len(os.listdir(tmp_path / "mart/orders/data")) == (1 if skip_empty else 0)  # noqa: PTH208
    assert receipt.unchanged is skip_empty
    assert [c["name"] for c in manifest["columns"]] == ROWS.column_names


def test_rows_that_fail_half_way_leave_the_dataset_as_it_was(tmp_path: Path) -> None:
    commit(tmp_path, ROWS)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and "manifest-" not in p.name}

    def pieces() -> Any:
        yield ROWS.select(["id"])
        raise ZeroDivisionError("theirs")

    with pytest.raises(ZeroDivisionError):
        commit(tmp_path, Batches(pieces()), max_file_size="10kB")
    after = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and "manifest-" not in p.name}
    assert after == before


def test_a_frame_comes_back_as_it_was(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a": pd.array([1, None], dtype="Int64"), "t": ["x", None], "day": pd.to_datetime(["2024-02-29", None])}
    )
    commit(tmp_path, frame)
    (at,) = (tmp_path / "mart/orders/data").iterdir()
    found = pd.read_parquet(at, dtype_backend="numpy_nullable")
    assert found["a"].dtype == "Int64"
    assert found["a"].tolist() == [1, pd.NA]
    assert found["t"].tolist() == ["x", pd.NA]
    assert found["day"].tolist() == [pd.Timestamp("2024-02-29"), pd.NaT]
