"""What a manifest says: one delivery, its parts, what it descends from. Pure: no I/O, no clock. Bytes: see `wire`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any

import xxhash

__all__ = [
    "COMPACT",
    "MAX_ANCESTORS",
    "Ancestor",
    "Column",
    "Content",
    "Dataset",
    "Identity",
    "Link",
    "Manifest",
    "Part",
    "Status",
    "data_version",
    "fingerprint",
    "marker_body",
    "marker_fingerprint",
    "schema_fingerprint",
]

COMPACT = "compact"
MAX_ANCESTORS = 256
_MD5_BYTES = 16


class Status(str, Enum):
    """Where an attempt stands; only `SUCCESS` is final bytes of a delivery."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Dataset(str, Enum):
    """Whether a manifest stands alone or adds to its `previous`."""

    SNAPSHOT = "snapshot"
    APPEND = "append"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the parts: its Arrow type as text, and the type the database gave it."""

    name: str
    type: str
    source_type: str | None = None
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A committed part.

    Attributes:
        part_id: from 1, unique in its manifest.
        path: relative to the prefix.
        rows: at least one.
        size_bytes: of the object.
        content_fingerprint: `xxh3:<16 hex>` of its bytes.
        content_md5: base64, or "" where a foreign writer has none.
        status: "committed"; what a foreign manifest lists as quarantined is not among its parts.
        verification: how the store's copy was verified; `None` in a foreign manifest.
        key_range: half-open range of keys, where known.
        resume: only in the record of a running attempt: what tells whether another may list this part as its own.
    """

    part_id: int
    path: str
    rows: int
    size_bytes: int
    content_fingerprint: str
    content_md5: str = ""
    status: str = "committed"
    verification: str | None = None
    key_range: Mapping[str, Any] | None = None
    resume: Mapping[str, Any] | None = None

    @property
    def md5(self) -> bytes | None:
        """The raw digest; `None` where a foreign writer recorded none, or something else."""
        try:
            found = base64.b64decode(self.content_md5, validate=True)
        except ValueError:
            return None
        return found if len(found) == _MD5_BYTES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Another manifest, by attempt and exact bytes."""

    run_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """A delivery that this one descends from."""

    run_id: str
    dagster_run_id: str | None = None
    partition_key: str | None = None
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose dataset this is; no host, user, port or password."""

    export: str
    database: str | None = None
    relation: str | None = None
    cursor_column: str | None = None
    cursor_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """All that is known of a delivery before its first row is read.

    Attributes:
        export_name: the asset key's segments joined by "/".
        identity: compared before anything is replaced or continued.
        dataset: snapshot or append.
        strategy: the export mode's name ("full", "incremental", …), or `COMPACT`.
        engine: of the source: "postgresql", "sqlite", …; "dagster" for a value of an asset.
        database_schema: of the table, where there is one.
        table: its name, where there is one.
        format: "parquet" or "csv".
        compression: "zstd", "none", …
        columns: in order.
        cursor: the state after this run: column, type, value; `None` for modes without one.
        window: low, high, and which bound is open; `None` for modes without one.
        resume: only in the record of a running attempt: what must be equal for another to list its parts as its own;
            `None` where that cannot be.
    """

    export_name: str
    identity: Identity
    dataset: Dataset = Dataset.SNAPSHOT
    strategy: str = "full"
    engine: str = "dagster"
    database_schema: str | None = None
    table: str | None = None
    format: str
    compression: str
    columns: tuple[Column, ...]
    cursor: Mapping[str, Any] | None = None
    window: Mapping[str, Any] | None = None
    resume: Mapping[str, Any] | None = None

    @property
    def rewrites(self) -> bool:
        """Whether the rows are those that were there before, in other parts."""
        return self.strategy == COMPACT


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One delivery, or one attempt at it.

    Attributes:
        run_id: the attempt's token, not Dagster's run id.
        export_name: as in `Content`; a foreign manifest has its own.
        status: see `Status`.
        started_at: with a time zone.
        finished_at: `None` while running.
        content: `None` only for a foreign manifest, which has no `identity`.
        source: the wire form of where the rows came from.
        destination_kind: "local", "s3", …
        destination_uri: of the prefix.
        format: "parquet" or "csv".
        compression: as written.
        parts: in order.
        sequence: 1 for the first delivery of a prefix.
        previous: the delivery that this one replaces or adds to.
        ancestors: newest first, `previous` included; the last 256.
        dagster_run_id: of the run that made it.
        partition_key: in clear; the prefix holds it encoded.
        data_version: changes exactly when the dataset's content does.
        heartbeat: counts the rewrites of a running record, so that no value is ever written twice.
        taken_over_by: the attempt that took this one over.
    """

    run_id: str
    export_name: str
    status: Status
    started_at: datetime
    finished_at: datetime | None = None
    content: Content | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    destination_kind: str
    destination_uri: str
    format: str
    compression: str
    parts: tuple[Part, ...] = ()
    sequence: int = 1
    previous: Link | None = None
    ancestors: tuple[Ancestor, ...] = ()
    dagster_run_id: str | None = None
    partition_key: str | None = None
    data_version: str | None = None
    heartbeat: int | None = None
    taken_over_by: str | None = None

    @property
    def row_count(self) -> int:
        """Of this delivery alone."""
        return sum(p.rows for p in self.parts)

    @property
    def size_bytes(self) -> int:
        """Of this delivery alone."""
        return sum(p.size_bytes for p in self.parts)

    @property
    def dataset(self) -> Dataset:
        """A foreign manifest stands alone."""
        return self.content.dataset if self.content else Dataset.SNAPSHOT

    def reaches(self, run_id: str) -> bool:
        """Whether `run_id` is this delivery or one it descends from. Beyond 256 ancestors the answer is no."""
        return run_id == self.run_id or any(a.run_id == run_id for a in self.ancestors)

    def as_ancestors(self, own_fingerprint: str) -> tuple[Ancestor, ...]:
        """What a delivery that builds on this one lists as its ancestors."""
        own = Ancestor(
            run_id=self.run_id,
            dagster_run_id=self.dagster_run_id,
            partition_key=self.partition_key,
            fingerprint=own_fingerprint,
        )
        return (own, *self.ancestors)[:MAX_ANCESTORS]

    def delivered(self, parts: tuple[Part, ...], *, finished_at: datetime, previous: str | None) -> Manifest:
        """The final form of a running attempt's record, on top of the data version `previous` where it adds to one."""
        return replace(
            self,
            status=Status.SUCCESS,
            finished_at=finished_at,
            content=replace(self.content, resume=None) if self.content else None,
            parts=parts,
            data_version=data_version(self.content.columns if self.content else (), parts, previous=previous),
        )


def fingerprint(body: bytes) -> str:
    """`xxh3:<16 hex>` of exact bytes."""
    return f"xxh3:{xxhash.xxh3_64_hexdigest(body)}"


def marker_body(manifest_fingerprint: str) -> bytes:
    """What `_SUCCESS` holds."""
    return f"{manifest_fingerprint}\n".encode()


def marker_fingerprint(body: bytes) -> str | None:
    """The manifest that a marker names; `None` when its bytes are no marker."""
    text = body.rstrip(b" \t\r\n")
    digits = text[5:]
    ok = len(text) == len("xxh3:") + 16 and text.startswith(b"xxh3:") and all(c in b"0123456789abcdef" for c in digits)
    return text.decode() if ok else None


def schema_fingerprint(columns: Sequence[Column]) -> str:
    """Of names and types in order."""
    return fingerprint(json.dumps([{"name": c.name, "type": c.type} for c in columns], separators=(",", ":")).encode())


def data_version(columns: Sequence[Column], parts: Sequence[Part], *, previous: str | None) -> str:
    """Of the dataset: schema and ordered part fingerprints, on top of `previous` for an append."""
    said = [previous, schema_fingerprint(columns), *(p.content_fingerprint for p in parts)]
    return fingerprint(json.dumps(said).encode())
