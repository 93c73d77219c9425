"""The wire format: Rivet's run manifest, version 1, and what this package adds to it. Pure: no I/O, no clock.

Unknown fields are ignored, so newer and foreign writers can be read; a manifest of another version is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime, timezone
from typing import Any, TypeVar

from rivet_dagster.errors import ReadError
from rivet_dagster.manifest import (
    Ancestor,
    Column,
    Content,
    Dataset,
    Identity,
    Link,
    Manifest,
    Part,
    Status,
    schema_fingerprint,
)

__all__ = ["parse", "serialise"]

_VERSION = 1
_NANOSECONDS = re.compile(r"(\.\d{6})\d+")
_T = TypeVar("_T", Part, Ancestor, Column, Link, Identity)


def serialise(m: Manifest) -> bytes:
    """The same manifest always gives the same bytes."""
    c = m.content
    out = {
        "manifest_version": _VERSION,
        "run_id": m.run_id,
        "export_name": m.export_name,
        "mode": "batch",
        "started_at": _text(m.started_at),
        "finished_at": _text(m.finished_at) if m.finished_at else "",
        "status": m.status.value,
        "source": _source(c) if c else dict(m.source),
        "destination": {"kind": m.destination_kind, "uri": m.destination_uri},
        "format": m.format,
        "compression": m.compression,
        "schema_fingerprint": schema_fingerprint(c.columns if c else ()),
        "row_count": m.row_count,
        "part_count": len(m.parts),
        "parts": [_some(asdict(p)) for p in m.parts],
        "sequence": m.sequence,
        "previous": asdict(m.previous) if m.previous else None,
        "ancestors": [_some(asdict(a)) for a in m.ancestors],
        "dataset": m.dataset.value,
        "dagster": {"run_id": m.dagster_run_id, "partition_key": m.partition_key},
        "data_version": m.data_version,
        "heartbeat": m.heartbeat,
        "taken_over_by": m.taken_over_by,
    }
    if c:
        out["identity"] = _some(asdict(c.identity))
        out["cursor"] = c.cursor
        out["window"] = c.window
        out["resume"] = c.resume
        out["columns"] = [_some(asdict(x)) for x in c.columns]
    return (json.dumps(_some(out), ensure_ascii=False, indent=1) + "\n").encode()


def parse(body: bytes, *, where: str) -> Manifest:
    """Read a manifest of ours or of another writer of version 1.

    Args:
        body: the exact bytes.
        where: for the message.

    Raises:
        ReadError: it is no manifest, of another version, or contradicts itself.
    """
    try:
        raw = json.loads(body)
        found = _parse(raw, where)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        why = f"{type(e).__name__}: {e}"
        msg = f"{where}: not a manifest of version {_VERSION} ({why}); restore it from its copy manifest-<run id>.json"
        raise ReadError(msg) from e
    counted = (len(found.parts), found.row_count, len({p["part_id"] for p in raw["parts"]}))
    said = (raw["part_count"], raw["row_count"], len(raw["parts"]))
    if counted != said:
        msg = f"{where}: the manifest contradicts itself: its parts, rows and part ids are {counted}, it says {said}"
        raise ReadError(msg)
    return found


def _text(value: datetime) -> str:
    return value.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _moment(value: str) -> datetime:
    # Rivet writes nanoseconds, which Python 3.10 does not read.
    found = datetime.fromisoformat(_NANOSECONDS.sub(r"\1", value).replace("Z", "+00:00"))
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _some(said: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in said.items() if v is not None}


def _known(kind: type[_T], raw: Mapping[str, Any]) -> _T:
    return kind(**{f.name: raw[f.name] for f in fields(kind) if f.name in raw})


def _source(c: Content) -> dict[str, Any]:
    cursor, window = c.cursor or {}, c.window or {}
    low, high = window.get("low"), window.get("high")
    extraction = {
        "strategy": c.strategy,
        "cursor_column": cursor.get("column", window.get("column")),
        "cursor_type": cursor.get("type"),
        "cursor_low": None if low is None else str(low),
        "cursor_high": None if high is None else str(high),
    }
    return _some({"engine": c.engine, "schema": c.database_schema, "table": c.table, "extraction": _some(extraction)})


def _parse(raw: dict[str, Any], where: str) -> Manifest:
    if raw["manifest_version"] != _VERSION:
        msg = (
            f"{where}: manifest_version is {raw['manifest_version']!r}, expected {_VERSION}; use the tool that wrote it"
        )
        raise ReadError(msg)
    dagster = raw.get("dagster") or {}
    finished = raw.get("finished_at")
    return Manifest(
        run_id=raw["run_id"],
        export_name=raw["export_name"],
        status=Status(raw["status"]),
        started_at=_moment(raw["started_at"]),
        finished_at=_moment(finished) if finished else None,
        content=_content(raw) if raw.get("identity") else None,
        source={} if raw.get("identity") else raw.get("source") or {},
        destination_kind=raw["destination"]["kind"],
        destination_uri=raw["destination"]["uri"],
        format=raw["format"],
        compression=raw["compression"],
        # Rivet lists what it has moved to quarantine too, and counts it in neither sum.
        parts=tuple(_known(Part, p) for p in raw["parts"] if p.get("status", "committed") == "committed"),
        sequence=raw.get("sequence", 1),
        previous=_known(Link, raw["previous"]) if raw.get("previous") else None,
        ancestors=tuple(_known(Ancestor, a) for a in raw.get("ancestors", ())),
        dagster_run_id=dagster.get("run_id"),
        partition_key=dagster.get("partition_key"),
        data_version=raw.get("data_version"),
        heartbeat=raw.get("heartbeat"),
        taken_over_by=raw.get("taken_over_by"),
    )


def _content(raw: dict[str, Any]) -> Content:
    source = raw["source"]
    return Content(
        export_name=raw["export_name"],
        identity=_known(Identity, raw["identity"]),
        dataset=Dataset(raw["dataset"]),
        strategy=source.get("extraction", {}).get("strategy", "full"),
        engine=source["engine"],
        database_schema=source.get("schema"),
        table=source.get("table"),
        format=raw["format"],
        compression=raw["compression"],
        columns=tuple(_known(Column, c) for c in raw.get("columns", ())),
        cursor=raw.get("cursor"),
        window=raw.get("window"),
        resume=raw.get("resume"),
    )
