"""The wire format for ever: what was written once must be read, and rivet must accept what we write."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivet_dagster.errors import ReadError
from rivet_dagster.manifest import Dataset, Manifest, Part, Status, fingerprint, marker_body
from rivet_dagster.wire import parse, serialise
from tests import rivet_cli

GOLDEN = Path(__file__).parent / "golden"
OURS = GOLDEN / "manifest.json"
BY_RIVET = GOLDEN / "manifest_by_rivet_cli.json"


def _deliver(root: Path) -> Manifest:
    """Put a real dataset of two parts under the golden manifest, byte for byte as the seam would leave it."""
    m = parse(OURS.read_bytes(), where=OURS.name)
    parts = []
    for part in m.parts:
        at = root / part.path
        at.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": range(part.rows), "name": ["ä"] * part.rows}), at)
        body = at.read_bytes()
        parts.append(
            replace(
                part,
                size_bytes=len(body),
                content_fingerprint=fingerprint(body),
                content_md5=base64.b64encode(hashlib.md5(body).digest()).decode(),
            )
        )
    m = replace(m, parts=tuple(parts), destination_uri=root.as_uri())
    body = serialise(m)
    (root / "manifest.json").write_bytes(body)
    (root / f"manifest-{m.run_id}.json").write_bytes(body)
    (root / "_SUCCESS").write_bytes(marker_body(fingerprint(body)))
    return m


def test_golden_manifest_gives_the_same_bytes_again() -> None:
    """Every field that this version writes is read, and written as it was."""
    body = OURS.read_bytes()
    assert serialise(parse(body, where=OURS.name)) == body


def test_golden_manifest_uses_every_field() -> None:
    """A field that is never set could be lost without any test seeing it."""
    m = parse(OURS.read_bytes(), where=OURS.name)
    assert m.content is not None
    unset = [f for o in (m, m.content, m.content.identity, *m.parts) for f in o.__slots__ if getattr(o, f) is None]
    assert unset == []
    assert m.content.dataset is Dataset.APPEND


def test_golden_manifest_holds_the_fields_of_version_1() -> None:
    """The fields that other readers of the format rely on, by their names in the file."""
    raw = json.loads(OURS.read_bytes())
    theirs = json.loads(BY_RIVET.read_bytes())
    not_ours = {"export_family", "column_checksums", "checksum_render", "checksum_key_column"}
    assert set(theirs) - not_ours <= set(raw)
    assert set(theirs["parts"][0]) <= set(raw["parts"][0])
    assert set(theirs["destination"]) == set(raw["destination"])
    assert set(theirs["source"]) == set(raw["source"])
    assert set(theirs["source"]["extraction"]) <= set(raw["source"]["extraction"])
    assert (raw["manifest_version"], raw["mode"]) == (1, "batch")


def test_a_manifest_written_by_rivet_is_read() -> None:
    """A foreign manifest has no identity; everything that a check needs is there."""
    m = parse(BY_RIVET.read_bytes(), where=BY_RIVET.name)
    assert m.content is None
    assert m.status is Status.SUCCESS
    assert m.started_at == datetime(2026, 11, 29, 14, 47, 13, 204092, tzinfo=timezone.utc)
    assert (m.row_count, m.size_bytes, m.dataset) == (30, 10401, Dataset.SNAPSHOT)
    assert m.parts == (
        Part(
            part_id=1,
            path="payments_20261129_144713_204_6280_bf464faf627e60e3.parquet",
            rows=30,
            size_bytes=10401,
            content_fingerprint="xxh3:c3f74b1e7387bbf8",
            content_md5="XZuVNWHz1UPVxLNe/s/HZg==",
        ),
    )
    # What rivet wrote into `_SUCCESS` beside it.
    assert fingerprint(BY_RIVET.read_bytes()) == "xxh3:32ab4af4f81b1442"


def test_rivet_passes_what_we_write(tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    m = _deliver(root)
    said = rivet_cli.validate(rivet_cli.local(root), workdir=tmp_path)
    assert (said.passed, said.marker, said.parts, said.codes) == (True, True, len(m.parts), ())


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("append", "RIVET_VERIFY_PART_SIZE_MISMATCH"),
        ("delete", "RIVET_VERIFY_PART_MISSING"),
        ("marker", "RIVET_VERIFY_SUCCESS_STALE"),
    ],
)
def test_rivet_fails_what_was_damaged(tmp_path: Path, damage: str, code: str) -> None:
    """So that "rivet passed it" above says something."""
    root = tmp_path / "dataset"
    part = root / _deliver(root).parts[-1].path
    if damage == "append":
        part.write_bytes(part.read_bytes() + b"x")
    elif damage == "delete":
        part.unlink()
    else:
        (root / "_SUCCESS").write_bytes(marker_body("xxh3:" + "0" * 16))
    said = rivet_cli.validate(rivet_cli.local(root), workdir=tmp_path)
    assert (said.passed, said.exit_code, said.codes) == (False, 3, (code,))


@pytest.mark.parametrize("counted", [False, True])
def test_a_quarantined_part_is_no_part_for_rivet_and_for_us(tmp_path: Path, counted: bool) -> None:
    """It is listed and counted in neither sum; a manifest that counts it contradicts itself."""
    root = tmp_path / "dataset"
    m = _deliver(root)
    raw = json.loads((root / "manifest.json").read_bytes())
    raw["parts"].append({**raw["parts"][0], "part_id": 3, "path": "data/bad.parquet", "status": "quarantined"})
    if counted:
        raw["part_count"] += 1
        raw["row_count"] += raw["parts"][0]["rows"]
    body = json.dumps(raw).encode()
    (root / "manifest.json").write_bytes(body)
    (root / "_SUCCESS").write_bytes(marker_body(fingerprint(body)))
    said = rivet_cli.validate(rivet_cli.local(root), workdir=tmp_path)
    if counted:
        assert said.codes == ("RIVET_VERIFY_MANIFEST_INCONSISTENT",)
        with pytest.raises(ReadError, match="contradicts itself"):
            parse(body, where="manifest.json")
    else:
        assert (said.passed, said.parts) == (True, 2)
        assert parse(body, where="manifest.json").parts == m.parts
