"""That reading needs memory for batches, not for the table."""

from __future__ import annotations

import subprocess
import sys

from tests.sources.databases import Database, Postgres

ROWS = 500_000
TEXT_BYTES = 320

READER = """
import sys
import rivet_dagster.sources.duckdb as duck
from rivet_dagster.rows import Query
from rivet_dagster.sources.connect import connect

def peak_bytes():
    # Not `ru_maxrss`: a child process begins with its parent's.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


duck._MEMORY_LIMIT = "48MB"
peaks = []
for table in ("small", "large"):
    rows = 0
    for batch in connect(sys.argv[1]).open(Query(table=table, casts={})):
        rows += batch.num_rows
        del batch
    peaks.append(peak_bytes())
print(rows, peaks[1] - peaks[0])
"""


def test_a_table_five_times_as_large_needs_no_more_memory(database: Database) -> None:
    if isinstance(database, Postgres):
        text = "(SELECT string_agg(md5((i * 10 + j)::text), '') FROM generate_series(1, 10) AS j)"
        series = "generate_series(1, {rows}) AS g(i)"
    elif database.kind == "mysql":
        text = "concat(" + ", ".join(f"md5(i * 10 + {j})" for j in range(10)) + ")"
        series = "(SELECT seq AS i FROM seq_1_to_{rows}) AS g"
    elif database.kind == "duckdb":
        text = "concat(" + ", ".join(f"md5((i * 10 + {j})::varchar)" for j in range(10)) + ")"
        series = "range({rows}) AS g(i)"
    else:
        text = "hex(randomblob(160))"
        series = "(WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < {rows}) SELECT i FROM g)"
    for table, rows in (("small", ROWS // 5), ("large", ROWS)):
        database.execute(
            f"CREATE TABLE {table} (i bigint, s text)",
            f"INSERT INTO {table} SELECT i, {text} FROM {series.format(rows=rows)}",
        )
    read = subprocess.run([sys.executable, "-c", READER, database.url], check=True, capture_output=True, text=True)
    rows, growth = map(int, read.stdout.split())
    assert rows == ROWS
    # DuckDB keeps what it has read of the file, up to its limit.
    kept = 48_000_000 if database.kind == "duckdb" else 0
    assert growth < kept + ROWS * TEXT_BYTES / 8
