"""Whether the source has as many rows as a delivery was made of, and what it says where it has not."""

from __future__ import annotations

from rivet_dagster.contract import ObjectDestination
from rivet_dagster.exports.recount import recount
from rivet_dagster.exports.spec import Export
from rivet_dagster.layout import MANIFEST, Prefix
from rivet_dagster.manifest import Manifest
from rivet_dagster.orchestration.judgement import Findings
from rivet_dagster.readback import Fault
from rivet_dagster.rows import Source

__all__ = ["compare_rows"]

_EQUAL = "equal numbers do not say that the rows are equal"


def compare_rows(
    destination: ObjectDestination,
    prefix: Prefix,
    manifest: Manifest,
    *,
    export: Export,
    export_name: str,
    source: Source,
    warns: bool | None = None,
) -> Findings:
    """Let the source count, and compare.

    The source moves on, so another number is a warning; but more rows in the window of an incremental export than were
    delivered are rows that no later run reads, and an error.

    Args:
        destination: of the delivery; it is not looked at.
        prefix: likewise.
        manifest: of the delivery.
        export: as it is defined now.
        export_name: the asset key's segments joined by "/".
        source: where from.
        warns: whether another number is a warning, whichever it is.

    Raises:
        ConfigError: the export's names or cursor cannot be.
        SourceError: the source refused, or could not be reached; there is nothing to say.
    """
    del destination, prefix
    found = recount(export, source, manifest, export_name=export_name)
    delivered = manifest.row_count
    if found.rows is None:
        note = f"not compared: {found.counted}"
        return Findings(said=note, warns=True, notes=(note,), numbers={"rivet/rows": delivered})
    more = found.rows - delivered
    numbers = {"rivet/rows": delivered, "rivet/source_rows": found.rows, "rivet/difference": more}
    if not more:
        said = f"the source has the {delivered} rows that were delivered"
        return Findings(said=said, notes=(found.counted, _EQUAL), numbers=numbers)
    when = manifest.finished_at or manifest.started_at
    fault = Fault(
        path=MANIFEST,
        kind="rows",
        expected=f"{delivered} rows, as delivered at {when.isoformat(timespec='seconds')}",
        found=f"{found.rows} rows in the source now",
    )
    lost = found.lost and more > 0
    return Findings(
        said="",
        faults=(fault,),
        warns=(not lost) if warns is None else warns,
        notes=(found.counted, found.means),
        numbers=numbers,
    )
