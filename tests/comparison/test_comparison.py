"""One task, written with this package and with dagster-dlt: the files of the README's "Against dagster-dlt".

A PostgreSQL table to Parquet on S3, by `updated_at`, checked, every night. Here ours is loaded and run. To run theirs:

- `pip install dagster-dlt dagster-dg-cli psycopg2-binary 'dlt[filesystem,parquet,s3,sql_database]'`
- In a project like that of the README's section "YAML", `defs.yaml`, `loads.py` and an empty `__init__.py` are in
  `shop/defs/lake/`, and `checks.py` is in `shop/defs/`. Or `in_python.py` is `shop/definitions.py`.
- `SOURCES__SQL_DATABASE__CREDENTIALS` is the database (`postgresql+psycopg2://...`), the `AWS_` variables are S3's, and
  so is `DESTINATION__FILESYSTEM__CREDENTIALS__ENDPOINT_URL`, where it is not Amazon's.
- `dg launch --assets '*'`. The check reads with pyarrow, since `pipeline.dataset()` needs an extension of DuckDB.
"""

from __future__ import annotations

import io
import runpy
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from tests.harnesses import s3
from tests.orchestration.projects import Project, names, project
from tests.servers import postgres

__all__ = ["project"]

# Dagster's own, where it gives metadata to what a component made.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter `execution_type`")

OURS = Path(__file__).parent / "with_rivet_dagster"


def test_both_of_ours_are_one_export(project: Project, servers, monkeypatch: pytest.MonkeyPatch):
    database, store, client = servers(postgres).new_database(), servers(s3), servers.client(s3)
    database.execute(
        "create table orders (id bigint primary key, note text, updated_at timestamptz not null default now())",
        "insert into orders select i, 'note ' || i from generate_series(1, 100) i",
    )
    given = {"ACCESS_KEY_ID": store.access_key, "SECRET_ACCESS_KEY": store.secret_key, "DEFAULT_REGION": store.region}
    for name, value in {**given, "ENDPOINT_URL": store.url}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("DATABASE_URL", database.url)
    client.create_bucket(Bucket="lake")
    project.defs.joinpath("lake").mkdir()
    project.defs.joinpath("lake", "defs.yaml").write_text((OURS / "defs.yaml").read_text())
    in_yaml, in_python = project.load(), runpy.run_path(str(OURS / "in_python.py"))["defs"]
    assert names(in_yaml) == names(in_python)

    with dg.DagsterInstance.ephemeral() as instance:
        _run(in_yaml, instance)
        database.execute("update orders set updated_at = clock_timestamp() where id = 7")
        _run(in_python, instance)

    parts = [o["Key"] for o in client.list_objects_v2(Bucket="lake", Prefix="orders/data/")["Contents"]]
    bodies = [client.get_object(Bucket="lake", Key=key)["Body"].read() for key in parts]
    landed = [i for body in bodies for i in pq.read_table(io.BytesIO(body))["id"].to_pylist()]
    assert sorted(landed) == sorted([*range(1, 101), 7])


def _run(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    result = defs.resolve_job_def("lake").execute_in_process(instance=instance)
    checks = {c.check_name: c.passed for c in result.get_asset_check_evaluations()}
    assert checks == {"manifest": True, "content": True, "row_count": True}
