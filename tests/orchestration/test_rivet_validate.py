"""The public `rivet validate` reads what we commit to S3, and sees damage."""

from __future__ import annotations

import hashlib
import itertools

import dagster as dg
import pyarrow as pa
import pytest
from dagster_aws.s3 import S3Resource

import rivet_dagster as rd
from tests import rivet_cli
from tests.servers import moto
from tests.sources.databases import Sqlite
from tests.sources.incremental import Incrementally

BUCKETS = itertools.count()


@pytest.mark.parametrize("part_format", ["parquet", "csv"])
def test_rivet_accepts_what_lands_on_s3_and_refuses_one_byte_more(servers, tmp_path, part_format):
    server = servers(moto)
    client, bucket = server.client(), f"validated-{next(BUCKETS)}"
    client.create_bucket(Bucket=bucket)

    @dg.asset
    def orders() -> pa.Table:
        return pa.table(
            {"id": list(range(5000)), "name": [hashlib.sha256(str(n).encode()).hexdigest() for n in range(5000)]}
        )

    s3 = S3Resource(
        endpoint_url=server.url, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    destination = rd.S3IOManager(s3=s3, bucket=bucket, prefix="lake", format=part_format, max_file_size="20KB")
    assert dg.materialize([orders], resources={"io_manager": destination}).success

    dataset = rivet_cli.s3(bucket, "lake/orders/", endpoint=server.url)
    said = rivet_cli.validate(dataset, workdir=tmp_path, export_format=part_format)
    assert said.passed, said
    assert said.marker
    assert said.parts > 1
    assert said.untracked == ()

    listed = client.list_objects_v2(Bucket=bucket, Prefix="lake/orders/data/")["Contents"]
    key = listed[0]["Key"]
    body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    client.put_object(Bucket=bucket, Key=key, Body=body + b"x")
    said = rivet_cli.validate(dataset, workdir=tmp_path, export_format=part_format)
    assert not said.passed
    assert "RIVET_VERIFY_PART_SIZE_MISMATCH" in said.codes


def test_rivet_accepts_what_was_added_to(tmp_path):
    """Each manifest lists what its run added; the parts before are not its own, and no fault."""
    database = Sqlite(tmp_path / "shop.sqlite")
    database.execute("CREATE TABLE events (id integer primary key)", "INSERT INTO events VALUES (1)")
    events = Incrementally(database.url, tmp_path / "lake", rd.Incremental(cursor_column="id"))
    for n in (2, 3):
        events.run()
        database.execute(f"INSERT INTO events VALUES ({n})")
    events.run()
    (tmp_path / "work").mkdir()
    said = rivet_cli.validate(rivet_cli.local(tmp_path / "lake" / "events"), workdir=tmp_path / "work")
    assert said.passed, said
    assert (said.parts, said.marker) == (1, True)
    assert events.rows() == [1, 2, 3]
