"""What a materialization says equals what is committed: every key, its type, and nothing that was not done."""

import base64
import hashlib
import json
import math

import dagster as dg
import pandas as pd
import pytest
import xxhash

import rivet_dagster as rd
from rivet_dagster.attempt import ExportReceipt
from rivet_dagster.manifest import Column, Content, Dataset, Identity, Manifest, Part, Status
from rivet_dagster.orchestration.metadata import (
    SHOWN_PARTS,
    combined_data_version,
    link,
    materialization_metadata,
    weakest,
)
from tests.orchestration.kit import materialization, plain, run


def test_every_key_is_there_and_equals_the_manifest_on_disk(instance, lake, shop, orders):
    result = run([orders], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    metadata = materialization(result, "orders").metadata
    # What a run's page shows of it before somebody asks for all.
    assert [*metadata][:6] == [
        "dagster/row_count",
        "rivet/bytes",
        "rivet/duration_seconds",
        "rivet/rows_per_second",
        "rivet/verification",
        "rivet/manifest",
    ]
    body = (lake / "orders/manifest.json").read_bytes()
    manifest = json.loads(body)
    (part,) = manifest["parts"]
    stored = (lake / "orders" / part["path"]).read_bytes()
    said = plain(metadata)
    seconds, speed = said.pop("rivet/duration_seconds"), said.pop("rivet/rows_per_second")
    assert 0 < seconds == round(seconds, 3)
    assert 0 < speed == round(speed, 1)
    assert math.isfinite(speed)
    schema = said.pop("dagster/column_schema")
    assert said == {
        "rivet/commit_protocol": "Atomic",
        "rivet/idempotent_overwrite": True,
        "rivet/retry_safe": True,
        "rivet/partial_write_risk": False,
        "rivet/run_id": manifest["run_id"],
        "rivet/checksum": f"xxh3:{xxhash.xxh3_64_hexdigest(body)}",
        "rivet/verification": "size",
        "rivet/manifest": f"{lake.as_uri()}/orders/manifest.json",
        "rivet/parts": [
            {
                "path": part["path"],
                "rows": 100,
                "bytes": len(stored),
                "md5": base64.b64encode(hashlib.md5(stored).digest()).decode(),
                "verification": "size",
            }
        ],
        "rivet/bytes": len(stored),
        "rivet/data_version": manifest["data_version"],
        "dagster/row_count": 100,
        "dagster/size_bytes": len(stored),
        "dagster/uri": f"{lake.as_uri()}/orders/",
    }
    assert said["rivet/checksum"] == (lake / "orders/_SUCCESS").read_text().strip()
    assert [(c.name, c.type, c.constraints.nullable) for c in schema.columns] == [
        (c["name"], c["type"], c["nullable"]) for c in manifest["columns"]
    ]
    assert schema.columns[2].name == "price"
    assert "REAL" in schema.columns[2].description
    assert {type(metadata[k]) for k in ("dagster/row_count", "dagster/size_bytes", "rivet/bytes")} == {
        dg.IntMetadataValue
    }
    assert isinstance(metadata["rivet/parts"], dg.TableMetadataValue)
    # A browser opens no file of another machine: it is there to be copied.
    assert isinstance(metadata["rivet/manifest"], dg.PathMetadataValue)
    assert isinstance(metadata["rivet/rows_per_second"], dg.FloatMetadataValue)


def test_readback_is_recorded_as_the_verification(instance, lake, shop, orders):
    result = run([orders], rd.LocalIOManager(path=str(lake), verify="readback"), instance, resources={"source": shop})
    said = plain(materialization(result, "orders").metadata)
    assert said["rivet/verification"] == "readback-md5"
    assert said["rivet/parts"][0]["verification"] == "readback-md5"


def test_an_empty_export_is_a_delivery_with_its_columns(instance, lake, shop):
    empty = rd.build_export_asset(rd.Export(name="none", query="select * from orders where id < 0"))
    result = run([empty], rd.LocalIOManager(path=str(lake)), instance, resources={"source": shop})
    said = plain(materialization(result, "none").metadata)
    assert said["dagster/row_count"] == 0
    assert said["rivet/parts"] == []
    assert said["rivet/rows_per_second"] == 0.0
    assert "rivet/verification" not in said
    assert [c.name for c in said["dagster/column_schema"].columns] == ["id", "note", "price"]
    assert json.loads((lake / "none/manifest.json").read_bytes())["row_count"] == 0


def test_a_run_that_leaves_the_head_repeats_what_the_head_says_with_no_rows(instance, lake, shop_file, shop):
    asset = rd.build_export_asset(rd.Export(name="some", query="select * from orders where id < 50", skip_empty=True))
    io_manager = rd.LocalIOManager(path=str(lake))
    first = plain(materialization(run([asset], io_manager, instance, resources={"source": shop}), "some").metadata)
    import sqlite3

    with sqlite3.connect(shop_file) as connection:
        connection.execute("delete from orders")
    connection.close()
    result = run([asset], io_manager, instance, resources={"source": shop})
    second = plain(materialization(result, "some").metadata)
    for key in ("rivet/run_id", "rivet/checksum", "rivet/manifest", "rivet/data_version", "rivet/verification"):
        assert second[key] == first[key], key
    assert (second["dagster/row_count"], second["dagster/size_bytes"], second["rivet/parts"]) == (0, 0, [])
    assert materialization(result, "some").tags["dagster/data_version"] == first["rivet/data_version"]


def test_only_the_first_parts_are_shown_and_the_weakest_level_of_all_counts():
    parts = (*(_part(n, "s3-crc64nvme") for n in range(SHOWN_PARTS)), _part(99, "size"))
    said = plain(materialization_metadata(_receipt(parts), columns=(), attempt=1))
    assert len(said["rivet/parts"]) == SHOWN_PARTS
    assert said["rivet/verification"] == "size"
    assert said["dagster/row_count"] == SHOWN_PARTS + 1


def test_a_manifest_is_a_link_where_a_browser_can_open_it():
    # Dagster's values compare as their texts do, whatever they are.
    https = link("https://account.blob.core.windows.net/lake/exports/orders/manifest.json")
    assert isinstance(https, dg.UrlMetadataValue)
    for uri in ("s3://lake/orders/manifest.json", "gs://lake/orders/manifest.json", "file:///lake/manifest.json"):
        assert (type(link(uri)), link(uri).value) == (dg.PathMetadataValue, uri)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (["size", "readback-md5"], "size"),
        (["gcs-md5", None], "unknown"),
        (["gcs-md5", "gcs-crc32c"], "gcs-crc32c, gcs-md5"),
        (["azure-md5"], "azure-md5"),
    ],
)
def test_the_weakest_level_is_named(levels, expected):
    assert weakest(_part(n, level) for n, level in enumerate(levels)) == expected


def test_cursor_window_and_counters_of_an_incremental_delivery_are_shown():
    cursor = {"column": "id", "type": "int64", "value": 7}
    receipt = _receipt(
        (_part(1, "size"),), cursor=cursor, window={"low": 1, "high": 7}, counters={"rivet/coerced": {"a": 1}}
    )
    said = plain(materialization_metadata(receipt, columns=(), attempt=3))
    assert said["rivet/cursor"] == cursor
    assert said["rivet/window"] == {"low": 1, "high": 7}
    assert said["rivet/coerced"] == {"a": 1}
    assert said["rivet/attempts"] == 3
    assert isinstance(materialization_metadata(receipt, columns=(), attempt=1)["rivet/cursor"], dg.JsonMetadataValue)


def test_partitions_of_one_step_share_a_data_version_that_depends_on_each():
    one, two, other = (_receipt((), data_version=v) for v in ("v1", "v2", "v3"))
    assert combined_data_version({"": one}) == "v1"
    both = combined_data_version({"a": one, "b": two})
    assert both == combined_data_version({"b": two, "a": one})
    assert len({both, combined_data_version({"a": one, "b": other}), combined_data_version({"a": two, "b": one})}) == 3
    assert combined_data_version({}) is None


def test_a_stream_has_columns_and_rows_but_no_state(instance, capfd):
    @dg.asset
    def preview() -> pd.DataFrame:
        return pd.DataFrame({"a": [1, 2]})

    said = plain(materialization(run([preview], rd.StdoutIOManager(), instance), "preview").metadata)
    assert capfd.readouterr().out == '"a"\r\n1\r\n2\r\n'
    assert said["rivet/commit_protocol"] == "Streaming"
    assert said["rivet/partial_write_risk"] is True
    assert said["dagster/row_count"] == 2
    assert [c.name for c in said["dagster/column_schema"].columns] == ["a"]
    state = {"rivet/run_id", "rivet/checksum", "rivet/manifest", "rivet/cursor", "rivet/data_version", "rivet/parts"}
    assert not state & said.keys()


def _part(number: int, level: str | None) -> Part:
    return Part(
        part_id=number,
        path=f"data/part-x-{number:05d}.parquet",
        rows=1,
        size_bytes=10,
        content_fingerprint=f"xxh3:{number:016x}",
        verification=level,
    )


def _receipt(parts, *, cursor=None, window=None, counters=None, data_version="v") -> ExportReceipt:
    content = Content(
        export_name="orders",
        identity=Identity(export="orders"),
        dataset=Dataset.APPEND,
        format="parquet",
        compression="zstd",
        columns=(Column(name="id", type="int64", nullable=False),),
        cursor=cursor,
        window=window,
    )
    manifest = Manifest(
        run_id="t",
        export_name="orders",
        status=Status.SUCCESS,
        started_at=pd.Timestamp("2026-01-01", tz="UTC").to_pydatetime(),
        content=content,
        destination_kind="local",
        destination_uri="file:///x/",
        format="parquet",
        compression="zstd",
        parts=parts,
        data_version=data_version,
    )
    return ExportReceipt(
        export_name="orders",
        capabilities=rd.LocalIOManager.capabilities,
        uri="file:///x/",
        manifest=manifest,
        fingerprint="xxh3:0",
        parts=parts,
        row_count=len(parts),
        size_bytes=10 * len(parts),
        window=window,
        counters=counters or {},
        duration_seconds=0.5,
    )
