"""Datasets that the public `rivet` wrote, judged by every check: good ones pass, and each kind of damage is found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import xxhash
from click.testing import CliRunner
from dagster_aws.s3 import S3Resource

import rivet_dagster as rd
from rivet_dagster.cli import main
from tests import rivet_cli
from tests.orchestration.kit import plain
from tests.servers import moto, postgres

CHECKS = ("manifest", "content", "row_count", "schema")
ROWS = 1000


@pytest.fixture(scope="module")
def database(servers: Any) -> Any:
    found = servers(postgres).new_database()
    found.execute(
        "create table orders (id bigint primary key, note text, at timestamptz)",
        f"insert into orders select i, E'line\\n\"' || i, now() from generate_series(1, {ROWS}) as i",
    )
    return found


def exported(database: Any, workdir: Path, destination: dict[str, Any], **export: Any) -> None:
    """Let rivet export the table."""
    workdir.mkdir()
    said = {"name": "orders", "table": "orders", "destination": destination, **export}
    source = {"type": "postgres", "url_env": "RIVET_CLI_URL"}
    (workdir / "rivet.yaml").write_text(json.dumps({"source": source, "exports": [said]}))
    binary = Path(sys.executable).with_name("rivet")
    done = subprocess.run(
        [str(binary), "run", "--config", "rivet.yaml", "--no-notify"],
        capture_output=True,
        text=True,
        check=False,
        cwd=workdir,
        env={**os.environ, "RIVET_CLI_URL": database.url, "RIVET_CLI_KEY": "test", "RIVET_CLI_SECRET": "test"},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def written(database: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What rivet wrote, by format; to be copied."""
    base = tmp_path_factory.mktemp("rivet")
    for part_format in ("parquet", "csv"):
        more = {"compression": "none"} if part_format == "csv" else {}
        where = rivet_cli.local(base / part_format)
        ranges = {"mode": "chunked", "chunk_column": "id", "chunk_size": 250}
        exported(database, base / f"{part_format}-work", where, format=part_format, **ranges, **more)
    return {part_format: base / part_format for part_format in ("parquet", "csv")}


def check(database: Any, io_manager: Any, instance: dg.DagsterInstance) -> dict[str, dg.AssetCheckEvaluation]:
    """Every check of an asset at the prefix, which no run of Dagster has materialized."""
    asset = rd.build_export_asset(rd.Export(name="orders", table="orders"))
    result = dg.materialize(
        [asset, *rd.build_manifest_checks(asset, checks=CHECKS)],
        selection=dg.AssetSelection.all_asset_checks(),
        instance=instance,
        resources={"io_manager": io_manager, "source": rd.DatabaseResource(url=database.url)},
    )
    return {e.check_name: e for e in result.get_asset_check_evaluations()}


def faults(found: dg.AssetCheckEvaluation) -> list[tuple[str, str]]:
    return [(f["kind"], f["path"]) for f in plain(found.metadata).get("rivet/fault_table", ())]


@pytest.mark.parametrize("part_format", ["parquet", "csv"])
def test_a_good_dataset_passes_and_each_damage_is_found(
    written: dict[str, Path], database: Any, tmp_path: Path, instance: dg.DagsterInstance, part_format: str
) -> None:
    prefix = tmp_path / "lake" / "orders"
    shutil.copytree(written[part_format], prefix)
    io_manager = rd.LocalIOManager(path=str(tmp_path / "lake"))
    found = check(database, io_manager, instance)
    assert {name: e.passed for name, e in found.items()} == dict.fromkeys(CHECKS, True)
    assert plain(found["content"].metadata)["rivet/rows"] == ROWS
    assert plain(found["row_count"].metadata)["rivet/source_rows"] == ROWS
    # What its manifest lacks is no fault.
    assert "records no columns" in found["schema"].description
    assert "records no columns" in found["content"].description
    assert "no digest" not in found["content"].description

    manifest = json.loads((prefix / "manifest.json").read_bytes())
    names = [part["path"] for part in manifest["parts"]]
    assert len(names) == 4
    good = [(prefix / name).read_bytes() for name in names]
    body = good[0]
    (prefix / names[0]).write_bytes(body[:100] + bytes([body[100] ^ 1]) + body[101:])
    (prefix / names[1]).write_bytes(good[1][:-200])
    (prefix / names[2]).unlink()
    (prefix / "theirs.parquet").write_bytes(b"theirs")
    found = check(database, io_manager, instance)
    assert faults(found["manifest"]) == [("size", names[1]), ("missing", names[2])]
    kinds = {name: [kind for kind, path in faults(found["content"]) if path == name] for name in names}
    assert kinds == {
        names[0]: ["checksum"],
        names[1]: ["size", "unreadable" if part_format == "parquet" else "rows"],
        names[2]: ["missing"],
        names[3]: [],
    }
    assert plain(found["content"].metadata)["rivet/unknown_objects"] == 1
    # Another part's rows under the recorded name.
    (prefix / names[1]).write_bytes(good[3])
    (prefix / names[2]).write_bytes(good[2])
    kinds = {
        name: [kind for kind, path in faults(check(database, io_manager, instance)["content"]) if path == name]
        for name in names[1:]
    }
    assert kinds == {names[1]: ["size" if len(good[1]) != len(good[3]) else "checksum"], names[2]: [], names[3]: []}


def test_a_manifest_that_records_less_or_otherwise_is_compared_by_what_it_has(
    written: dict[str, Path], database: Any, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    prefix = tmp_path / "lake" / "orders"
    shutil.copytree(written["parquet"], prefix)
    said = json.loads((prefix / "manifest.json").read_bytes())
    said["parts"][0] |= {"content_md5": "", "content_fingerprint": "crc32c:0badcafe"}
    said["parts"][1].pop("content_md5")
    body = json.dumps(said).encode()
    (prefix / "manifest.json").write_bytes(body)
    (prefix / "_SUCCESS").write_text(f"xxh3:{xxhash.xxh3_64_hexdigest(body)}\n")
    found = check(database, rd.LocalIOManager(path=str(tmp_path / "lake")), instance)
    assert {name: e.passed for name, e in found.items()} == dict.fromkeys(CHECKS, True)
    assert "1 parts have no digest in the manifest" in found["content"].description
    part = prefix / said["parts"][1]["path"]
    part.write_bytes(part.read_bytes()[:200] + b"\x01" + part.read_bytes()[201:])
    found = check(database, rd.LocalIOManager(path=str(tmp_path / "lake")), instance)
    assert faults(found["content"])[0] == ("checksum", said["parts"][1]["path"])


def test_on_s3_and_by_a_cursor(servers: Any, database: Any, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    server = servers(moto)
    client = server.client()
    client.create_bucket(Bucket="rivet-prefixes")
    where = rivet_cli.s3("rivet-prefixes", "lake/orders/", endpoint=server.url)
    exported(database, tmp_path / "work", where, format="parquet", mode="incremental", cursor_column="id")
    s3 = S3Resource(
        endpoint_url=server.url, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    io_manager = rd.S3IOManager(s3=s3, bucket="rivet-prefixes", prefix="lake")
    found = check(database, io_manager, instance)
    assert {name: e.passed for name, e in found.items()} == dict.fromkeys(CHECKS, True)
    assert "by the strategy 'incremental', and its window is not recorded" in found["row_count"].description
    (key,) = (o["Key"] for o in client.list_objects_v2(Bucket="rivet-prefixes")["Contents"] if "parquet" in o["Key"])
    body = bytearray(client.get_object(Bucket="rivet-prefixes", Key=key)["Body"].read())
    body[500] ^= 1
    client.put_object(Bucket="rivet-prefixes", Key=key, Body=bytes(body))
    found = check(database, io_manager, instance)
    assert faults(found["content"])[0] == ("checksum", key.removeprefix("lake/orders/"))


def test_the_console_judges_them_too(written: dict[str, Path], tmp_path: Path) -> None:
    for part_format, prefix in written.items():
        done = CliRunner().invoke(main, ["validate", "--content", "--json", str(prefix)])
        (found,) = json.loads(done.stdout)["datasets"]
        assert (done.exit_code, found["ok"], found["rows"], found["written_by"]) == (0, True, ROWS, "another tool")
        copy = tmp_path / part_format
        shutil.copytree(prefix, copy)
        next(copy.glob(f"*.{part_format}")).write_bytes(b"another")
        assert CliRunner().invoke(main, ["validate", str(copy)]).exit_code == 1
