"""One export by a peer, as a process in the peers' environment: it imports nothing of this repository.

`python peers.py` lists what this environment has; `python peers.py NAME URL TABLE DIRECTORY RANGES` runs one of them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ZSTD = {"compression": "zstd", "compression_level": 1}


def rivet(url, table, directory, *, chunks=None) -> None:
    """Its fastest profile: the others sleep between batches. It refuses numeric without limits, so that is declared."""
    export = {
        "name": table,
        "table": f"public.{table}",
        "mode": "full",
        "format": "parquet",
        "destination": {"type": "local", "path": directory},
    }
    if chunks:
        export |= {"mode": "chunked", "chunk_column": "id", "chunk_count": chunks, "parallel": 2}
    if table == "wide":
        export["columns"] = {"rate": "decimal(38,18)"}
    config = Path("rivet.yaml")
    source = {"type": "postgres", "url": url, "tuning": {"profile": "fast"}}
    config.write_text(json.dumps({"source": source, "exports": [export]}))
    binary = str(found) if (found := Path(sys.executable).with_name("rivet")).exists() else "rivet"
    subprocess.run([binary, "run", "--config", str(config), "--no-notify"], check=True)


def dlt(url, table, directory) -> None:
    """ConnectorX is its fastest backend; without its own load ids, which it would add to every row."""
    os.environ |= {
        "RUNTIME__DLTHUB_TELEMETRY": "false",
        "NORMALIZE__PARQUET_NORMALIZER__ADD_DLT_LOAD_ID": "false",
        "DATA_WRITER__COMPRESSION": "zstd",
    }
    import dlt
    from dlt.sources.sql_database import sql_table

    pipeline = dlt.pipeline(
        "benchmark",
        pipelines_dir=str(Path("pipelines").resolve()),
        destination=dlt.destinations.filesystem(bucket_url=f"file://{directory}"),
        dataset_name="lake",
    )
    rows = sql_table(
        url.replace("postgresql://", "postgresql+psycopg2://"),
        table=table,
        backend="connectorx",
        reflection_level="full_with_precision",
        backend_kwargs={"conn": url},
    )
    pipeline.run(rows, loader_file_format="parquet", write_disposition="replace").raise_on_failed_jobs()


def connectorx(url, table, directory) -> None:
    import connectorx as cx
    import pyarrow.parquet as pq

    batches = cx.read_sql(
        url, f"select * from {table}", return_type="arrow_stream", batch_size=131_072, protocol="binary"
    )
    with pq.ParquetWriter(f"{directory}/part.parquet", batches.schema, **ZSTD) as writer:
        for batch in batches:
            writer.write_batch(batch)


def pandas_naive(url, table, directory) -> None:
    import pandas as pd
    from sqlalchemy import create_engine

    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg2://"))
    pd.read_sql(f"select * from {table}", engine).to_parquet(f"{directory}/part.parquet", **ZSTD)


def pandas_chunked(url, table, directory) -> None:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sqlalchemy import create_engine

    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg2://"))
    writer = None
    with engine.connect().execution_options(stream_results=True, max_row_buffer=100_000) as connection:
        for frame in pd.read_sql(f"select * from {table}", connection, chunksize=100_000):
            rows = pa.Table.from_pandas(frame, schema=writer and writer.schema, preserve_index=False)
            writer = writer or pq.ParquetWriter(f"{directory}/part.parquet", rows.schema, **ZSTD)
            writer.write_table(rows)
    writer.close()


def duckdb(url, table, directory) -> None:
    """Ranges of pages over several connections, in one snapshot."""
    import duckdb
    from duckdb_extensions import import_extension

    import_extension("postgres_scanner")
    database = duckdb.connect()
    database.execute("load postgres_scanner")
    database.execute(f"attach '{url}' as source (type postgres, read_only)")
    # Its order is not asked of any other either, and costs it memory.
    database.execute("set preserve_insertion_order = false")
    target = f"'{directory}/part.parquet' (format parquet, compression zstd, compression_level 1)"
    database.execute(f"copy (from source.public.{table}) to {target}")


def present() -> list[str]:
    def has(*modules):
        return all(importlib.util.find_spec(module) for module in modules)

    has_rivet = Path(sys.executable).with_name("rivet").exists() or shutil.which("rivet")
    found = {
        "rivet-full": has_rivet,
        "rivet-chunked-2": has_rivet,
        "dlt": has("dlt", "connectorx", "sqlalchemy", "psycopg2", "pyarrow"),
        "connectorx": has("connectorx", "pyarrow"),
        "duckdb": has("duckdb", "duckdb_extensions", "duckdb_extension_postgres_scanner"),
        "pandas-chunked": has("pandas", "sqlalchemy", "psycopg2", "pyarrow"),
        "pandas-naive": has("pandas", "sqlalchemy", "psycopg2", "pyarrow"),
    }
    return [name for name, is_there in found.items() if is_there]


def main() -> None:
    if len(sys.argv) == 1:
        print(json.dumps(present()))  # noqa: T201 (the answer)
        return
    name, url, table, directory, ranges = sys.argv[1:]
    Path(directory).mkdir(parents=True, exist_ok=True)
    # By the file's own names, which a module's import would hide.
    {
        "rivet-full": rivet,
        "rivet-chunked-2": lambda *where: rivet(*where, chunks=int(ranges)),
        "dlt": dlt,
        "connectorx": connectorx,
        "duckdb": duckdb,
        "pandas-chunked": pandas_chunked,
        "pandas-naive": pandas_naive,
    }[name](url, table, directory)


if __name__ == "__main__":
    main()
