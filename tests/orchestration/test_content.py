"""Parts that are read again: real deliveries on local, S3 and Azure, and damage that no listing shows."""

from __future__ import annotations

import base64
import io
import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_dagster.attempt import Attempt, CommitSettings
from rivet_dagster.commit import commit_export
from rivet_dagster.contract import ObjectDestination, StoredObject
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.exports.extraction import plan_value
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.layout import Prefix
from rivet_dagster.orchestration import content
from rivet_dagster.orchestration.content import read_again
from rivet_dagster.orchestration.judgement import Verdict, judge
from tests.harnesses import HARNESSES, Harness
from tests.unit.arrow_rows import NESTED, SCALARS

ORDERS = Prefix("orders/")
LOG = logging.getLogger("tests.content")
ROWS = 4000
TABLE = pa.table(
    {
        "id": range(ROWS),
        "note": [None if n % 7 == 0 else f'"{n * 7919}",\r\n' * (n % 3) for n in range(ROWS)],
        "price": [n / 4 for n in range(ROWS)],
    }
)
STORES = [pytest.param(HARNESSES[kind][0], id=kind) for kind in ("local", "s3", "azure")]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, servers: Any, tmp_path: Path) -> Any:
    """A store with a look behind its back."""
    found = request.param(servers, tmp_path)
    yield found
    found.close()


def deliver(destination: Any, table: pa.Table = TABLE, *, run_id: str = "r", **output: Any) -> None:
    """A delivery of a few parts."""
    wanted = resolve_output(**{"max_file_size": "20KB", **output})
    receipt = commit_export(
        destination,
        prefix=ORDERS,
        attempt=Attempt(export_name="orders", dagster_run_id=run_id, lineage=frozenset({run_id})),
        plan=lambda _head: plan_value(table, export_name="orders", output=wanted, head=None, log=LOG),
        settings=CommitSettings(),
        log=LOG,
    )
    assert len(receipt.parts) > 1 or table.num_rows < 100


def judged(destination: Any, **how: Any) -> Verdict:
    return judge(destination, ORDERS, look_at=lambda *where: read_again(*where, **how))


def kinds(verdict: Verdict) -> list[str]:
    return [fault.kind for fault in verdict.faults]


def parts_of(store: Harness) -> list[str]:
    return [f"orders/{p['path']}" for p in json.loads(store.raw()["orders/manifest.json"])["parts"]]


def take_away(store: Any, key: str) -> None:
    """As another program would."""
    if hasattr(store, "root"):
        (store.root / key).unlink()
    elif hasattr(store._client, "delete_object"):
        store._client.delete_object(Bucket=store.bucket, Key=f"{store.directory}{key}")
    else:
        store._client.get_blob_client(store.bucket, f"{store.directory}{key}").delete_blob()


def flipped(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


def other_rows() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"id": [1], "note": ["theirs"]}), out)
    return out.getvalue()


def test_every_kind_of_damage_is_found_on_every_store(store: Harness) -> None:
    destination: Any = store.fresh()
    deliver(destination)
    good, parts = store.raw(), parts_of(store)
    verdict = judged(destination)
    assert (verdict.passed, verdict.notes, verdict.unknown) == (True, (), ())
    size = sum(len(good[p]) for p in parts)
    assert verdict.found is not None
    assert verdict.found.numbers == {
        "rivet/parts_checked": len(parts),
        "rivet/unknown_objects": 0,
        "rivet/rows": ROWS,
        "rivet/bytes_read": size,
    }

    part, found = parts[1], {}
    damaged = {
        "a byte in the middle": flipped(good[part], len(good[part]) // 2),
        "the last byte": flipped(good[part], len(good[part]) - 1),
        "cut off": good[part][:-20],
        "one byte more": good[part] + b"x",
        "empty": b"",
        "other rows": other_rows(),
    }
    for name, body in damaged.items():
        store.put(part, body)
        verdict = judged(destination)
        found[name] = kinds(verdict)
        assert {f"orders/{f.path}" for f in verdict.faults} == {part}
    assert found == {
        "a byte in the middle": ["checksum"],
        "the last byte": ["checksum", "unreadable"],
        "cut off": ["size", "unreadable"],
        "one byte more": ["size", "unreadable"],
        "empty": ["size", "unreadable"],
        "other rows": ["size", "schema", "rows"],
    }
    store.put(part, good[part])
    take_away(store, parts[0])
    store.put("orders/data/theirs.parquet", b"theirs")
    verdict = judged(destination)
    assert (kinds(verdict), verdict.unknown) == (["missing"], ("data/theirs.parquet",))


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_csv_is_counted_record_by_record_whatever_is_in_its_quotes(tmp_path: Path, compression: str) -> None:
    from rivet_dagster.exports.formats import Csv

    destination = LocalDestination(tmp_path)
    deliver(destination, format=Csv(compression=compression))
    verdict = judged(destination)
    assert verdict.passed, verdict.faults
    assert verdict.found is not None
    assert verdict.found.numbers["rivet/rows"] == ROWS
    manifest = tmp_path / "orders" / "manifest.json"
    said = json.loads(manifest.read_bytes())
    # A manifest that is wrong about one part, and right about the sum.
    said["parts"][0]["rows"] += 1
    said["parts"][1]["rows"] -= 1
    rewrite(tmp_path, said)
    assert kinds(judged(destination)) == ["rows", "rows"]
    part = tmp_path / "orders" / said["parts"][0]["path"]
    part.write_bytes(flipped(part.read_bytes(), 60))
    assert "checksum" in kinds(judged(destination))
    part.write_bytes(b"")
    assert kinds(judged(destination))[:2] == ["unreadable", "size"]


def rewrite(base: Path, said: dict[str, Any]) -> None:
    """A manifest that somebody made, and its marker."""
    body = json.dumps(said).encode()
    (base / "orders" / "manifest.json").write_bytes(body)
    (base / "orders" / "_SUCCESS").write_text(f"xxh3:{xxhash.xxh3_64_hexdigest(body)}\n")


def test_columns_are_compared_with_the_manifest(tmp_path: Path) -> None:
    destination = LocalDestination(tmp_path)
    for part_format in ("parquet", "csv"):
        deliver(destination, run_id=part_format, format=part_format)
        said = json.loads((tmp_path / "orders" / "manifest.json").read_bytes())
        said["columns"][1]["name"] = "remark"
        rewrite(tmp_path, said)
        verdict = judged(destination)
        assert set(kinds(verdict)) == {"schema"}
        assert "note" in verdict.faults[0].found
        assert "remark" in verdict.faults[0].expected


def test_rows_of_every_type_are_no_fault(tmp_path: Path) -> None:
    """What Parquet gives back is what the manifest says, nested columns and extensions too."""
    kinds_of = [*SCALARS, *NESTED, pa.uuid(), pa.json_(), pa.struct([pa.field("x", pa.list_(pa.date32()))])]
    columns = {f"c{n}": pa.nulls(3, kind) for n, kind in enumerate(kinds_of)}
    columns["needed"] = pa.array([1, 2, 3])
    table = pa.table(columns).cast(
        pa.schema(
            [
                *(pa.field(f"c{n}", kind) for n, kind in enumerate(kinds_of)),
                pa.field("needed", pa.int64(), nullable=False),
            ]
        )
    )
    destination = LocalDestination(tmp_path)
    deliver(destination, table)
    assert judged(destination).faults == ()


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(st.none() | st.text('a",\r\n', max_size=6), st.none() | st.integers(0, 9)), max_size=12),
    width=st.integers(1, 2),
    piece=st.integers(1, 20),
    last_end=st.booleans(),
)
def test_records_are_those_of_a_reader_that_knows_quotes(rows: Any, width: int, piece: int, last_end: bool) -> None:
    from rivet_dagster.exports.csv import _records

    columns = {
        name: pa.array([r[i] for r in rows], kind)
        for i, (name, kind) in enumerate([("t", pa.string()), ("n", pa.int64())][:width])
    }
    body = ",".join(f'"{n}"' for n in columns).encode() + b"\r\n"
    if rows:
        body += bytes(_records(pa.table(columns)))
    # Another writer may leave the end of the last line out, where something is on it.
    if not last_end and not body[:-2].endswith(b"\r\n"):
        body = body[:-2]
    found = content._Records()
    for at in range(0, len(body), piece):
        found.add(body[at : at + piece])
    assert found.header() == list(columns)
    assert found.count - 1 == len(rows)


class Watched(LocalDestination):
    """Says what is read, and may be interrupted."""

    def __init__(self, path: Path, *, last: int | None = None) -> None:
        super().__init__(path)
        self.lengths: list[int | None] = []
        self.last = last

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> StoredObject | None:
        if "/data/" in key:
            self.lengths.append(length)
            if len(self.lengths) == self.last:
                raise KeyboardInterrupt
        return super().read(key, start=start, length=length)


@pytest.mark.parametrize("part_format", ["parquet", "csv"])
def test_a_part_is_read_in_pieces_and_an_interruption_ends_it(tmp_path: Path, part_format: str) -> None:
    # Random, so that Parquet does not make it small.
    table = pa.table({"x": [xxhash.xxh3_128_hexdigest(str(n).encode()) for n in range(40_000)]})
    deliver(LocalDestination(tmp_path), table, format=part_format, max_file_size="600KB")
    watched = Watched(tmp_path)
    assert judged(watched, piece_bytes=2**16).passed
    lengths = [length for length in watched.lengths if length is not None]
    assert len(lengths) == len(watched.lengths) > 10
    assert max(lengths) <= 2**16
    stopped = Watched(tmp_path, last=5)
    with pytest.raises(KeyboardInterrupt):
        judged(stopped, piece_bytes=2**16)
    assert len(stopped.lengths) == 5


def test_what_a_later_run_replaced_while_it_was_read_is_no_fault(tmp_path: Path) -> None:
    destination = LocalDestination(tmp_path)
    deliver(destination)
    first = json.loads((tmp_path / "orders" / "manifest.json").read_bytes())["run_id"]
    body = (tmp_path / "orders" / "_SUCCESS").read_text().strip()

    class Overtaken(LocalDestination):
        done = False

        def read(self, key: str, *, start: int = 0, length: int | None = None) -> StoredObject | None:
            if "/data/" in key and not self.done:
                self.done = True
                deliver(LocalDestination(tmp_path), run_id="later")
            return super().read(key, start=start, length=length)

    verdict = judge(Overtaken(tmp_path), ORDERS, run_id=first, checksum=body, look_at=read_again)
    assert (verdict.passed, verdict.superseded, verdict.warns) == (True, True, True)


def test_what_is_not_recorded_is_not_compared_and_said(tmp_path: Path) -> None:
    destination: ObjectDestination = LocalDestination(tmp_path)
    deliver(destination)
    said = json.loads((tmp_path / "orders" / "manifest.json").read_bytes())
    for part, digest in zip(said["parts"], ["", "c2hvcnQ=", "sha256:00", "%%%"], strict=False):
        part |= {"content_md5": digest, "content_fingerprint": "crc32c:12345678"}
    none = sum(p["content_fingerprint"].startswith("crc32c") for p in said["parts"])
    rewrite(tmp_path, said)
    verdict = judged(destination)
    assert verdict.passed, verdict.faults
    assert f"{none} parts have no digest" in verdict.notes[0]
    # Without a digest, rows that cannot be decoded are still found.
    part = tmp_path / "orders" / said["parts"][0]["path"]
    body = bytearray(part.read_bytes())
    body[20:200] = bytes(180)
    part.write_bytes(body)
    assert kinds(judged(destination)) == ["unreadable"]
    assert base64.b64decode("c2hvcnQ=") == b"short"
