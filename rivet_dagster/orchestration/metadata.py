"""What a materialization and a definition say about an export. Pure: from a receipt to Dagster's metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from rivet_dagster.attempt import ExportReceipt
from rivet_dagster.contract import DestinationCapabilities
from rivet_dagster.layout import MANIFEST
from rivet_dagster.manifest import Column, Manifest, Part, fingerprint

__all__ = [
    "SHOWN_PARTS",
    "combined_data_version",
    "definition_metadata",
    "link",
    "materialization_metadata",
    "promises_table",
    "weakest",
]

SHOWN_PARTS = 50

# From what proves least to what proves most; a name that is not here compares a checksum of the store.
_WEAKEST_FIRST = ("size", "unknown")


def definition_metadata(
    capabilities: DestinationCapabilities, *, uri: str | None, diagnostics: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """What is known of an export before it runs.

    Args:
        capabilities: of its destination.
        uri: its stable prefix; `None` where it depends on the environment.
        diagnostics: what planning found, each with level, rule, message and remedy.
    """
    said: dict[str, Any] = _promises(capabilities)
    if uri is not None:
        said["dagster/uri"] = uri
    if diagnostics:
        said["rivet/diagnostics"] = dg.MetadataValue.json([dict(d) for d in diagnostics])
    return said


def materialization_metadata(receipt: ExportReceipt, *, columns: Sequence[Column], attempt: int) -> dict[str, Any]:
    """What a run did, all of it read from what was committed.

    Where a run found its work done, or no row to add, the keys that describe the dataset repeat the head's.

    Args:
        receipt: of the commit.
        columns: of the rows, for a destination that leaves no manifest.
        attempt: of the step, from 1.
    """
    manifest = receipt.manifest
    parts, rows, size = receipt.parts, receipt.row_count, receipt.size_bytes
    seconds = receipt.duration_seconds
    # In this order: a run's page shows the first few, and the promises of the destination are on the definition, too.
    said: dict[str, Any] = {
        "dagster/row_count": rows,
        "rivet/bytes": size,
        "rivet/duration_seconds": round(float(seconds), 3),
        "rivet/rows_per_second": round(rows / seconds, 1) if seconds > 0 else 0.0,
        **receipt.counters,
    }
    if verified := parts or (manifest.parts if manifest is not None else ()):
        said["rivet/verification"] = weakest(verified)
    if receipt.window is not None:
        said["rivet/window"] = dg.MetadataValue.json(dict(receipt.window))
    if manifest is not None:
        said |= _of_manifest(manifest, receipt)
    if receipt.capabilities.commit_protocol.leaves_objects_at_rest:
        said["rivet/parts"] = _parts_table(parts)
    if receipt.notes:
        said["rivet/notes"] = dg.MetadataValue.json(list(receipt.notes))
    if attempt > 1:
        said["rivet/attempts"] = attempt
    said |= {"dagster/size_bytes": size, "dagster/uri": receipt.uri, **_promises(receipt.capabilities)}
    shown = manifest.content.columns if manifest is not None and manifest.content is not None else columns
    if shown:
        said["dagster/column_schema"] = _table_schema(shown)
    return said


def combined_data_version(receipts: Mapping[str, ExportReceipt]) -> str | None:
    """Of several partitions of one step, which share one: a function of each one's own; `None` without any."""
    versions = [(k, r.manifest.data_version) for k, r in sorted(receipts.items()) if r.manifest is not None]
    if len(versions) == 1:
        return versions[0][1]
    return fingerprint(repr(versions).encode()) if versions else None


def link(uri: str) -> dg.MetadataValue[str]:
    """Where something is: to be opened where a browser can, else to be copied (it opens no `s3:`, and no `file:`)."""
    opens = uri.startswith(("https://", "http://"))
    found: dg.MetadataValue[str] = dg.MetadataValue.url(uri) if opens else dg.MetadataValue.path(uri)
    return found


def promises_table(kind: str, capabilities: DestinationCapabilities) -> str:
    """What a destination promises, as it stands in the table of all of them; Markdown."""
    said = {name.removeprefix("rivet/"): value for name, value in _promises(capabilities).items()}
    cells = ["`" + (str(v).lower() if isinstance(v, bool) else v) + "`" for v in said.values()]
    rows = (["destination", *said], ["---"] * (len(said) + 1), [kind, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def weakest(parts: Iterable[Part]) -> str:
    """The level of verification that holds for every part."""
    levels = {p.verification or "unknown" for p in parts}
    named = [level for level in _WEAKEST_FIRST if level in levels]
    return named[0] if named else ", ".join(sorted(levels))


def _promises(capabilities: DestinationCapabilities) -> dict[str, Any]:
    return {
        "rivet/commit_protocol": capabilities.commit_protocol.value,
        "rivet/idempotent_overwrite": capabilities.idempotent_overwrite,
        "rivet/retry_safe": capabilities.retry_safe,
        "rivet/partial_write_risk": capabilities.partial_write_risk,
    }


def _of_manifest(manifest: Manifest, receipt: ExportReceipt) -> dict[str, Any]:
    said: dict[str, Any] = {"rivet/manifest": link(f"{receipt.uri.rstrip('/')}/{MANIFEST}")}
    if manifest.content is not None and manifest.content.cursor is not None:
        said["rivet/cursor"] = dg.MetadataValue.json(dict(manifest.content.cursor))
    said["rivet/run_id"] = manifest.run_id
    if receipt.fingerprint is not None:
        said["rivet/checksum"] = receipt.fingerprint
    if manifest.data_version is not None:
        said["rivet/data_version"] = manifest.data_version
    return said


def _parts_table(parts: Sequence[Part]) -> dg.TableMetadataValue:
    rows = [
        dg.TableRecord(
            {
                "path": p.path,
                "rows": p.rows,
                "bytes": p.size_bytes,
                "verification": p.verification or "unknown",
                "md5": p.content_md5,
            }
        )
        for p in parts[:SHOWN_PARTS]
    ]
    columns = [("path", "string"), ("rows", "int"), ("bytes", "int"), ("verification", "string"), ("md5", "string")]
    # The schema is given, since an empty table cannot tell it.
    schema = dg.TableSchema(columns=[dg.TableColumn(name=n, type=t) for n, t in columns])
    return dg.MetadataValue.table(records=rows, schema=schema)


def _table_schema(columns: Sequence[Column]) -> dg.TableSchema:
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=c.name,
                type=c.type,
                description=f"{c.source_type} in the source" if c.source_type else None,
                constraints=dg.TableColumnConstraints(nullable=c.nullable),
            )
            for c in columns
        ]
    )
