"""What the seam is given and what it gives back: an attempt, settings, rows that are planned, and a receipt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol

from rivet_dagster.contract import DestinationCapabilities, EncodedPart, Staged
from rivet_dagster.manifest import Content, Manifest, Part

__all__ = ["Attempt", "CommitSettings", "ExportReceipt", "Extraction", "Head", "Resume", "Reusable", "Verify"]

Verify = Literal["store", "readback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The committed delivery that a run found when it began.

    Attributes:
        manifest: what it says.
        fingerprint: of its exact bytes.
    """

    manifest: Manifest
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reusable:
    """What of a dead attempt another one could list as its own.

    Attributes:
        ranges: in order, each whole: the parts that hold its rows.
        because: why there is nothing.
    """

    ranges: tuple[tuple[Part, ...], ...] = ()
    because: str | None = None


class Resume(Protocol):
    """How an extraction leaves out rows that a dead attempt has exported already."""

    def reusable(self, dead: Manifest) -> Reusable:
        """What this extraction could leave out, going by the record alone."""
        ...

    def leave_out(self, ranges: Sequence[Sequence[Part]]) -> tuple[Part, ...]:
        """Read all but these, some of what `reusable` gave, in its order; called before `parts`.

        Returns:
            Their parts, with the places among this extraction's parts in `resume`.
        """
        ...


class Extraction(Protocol):
    """One export's rows, planned: everything that the manifest says is known, no row has been read.

    `content` is final. `suffix` is that of the parts, e.g. ".csv.gz". `gates` are called after the last row and
    before anything is published, each raising `ContractError` to publish nothing. `counters` may be read after the
    last row: metadata by key, e.g. {"rivet/coerced": {...}}. `parallel` is how many parts are encoded at a time, and
    so may be uploaded at a time.
    """

    content: Content
    suffix: str
    skip_empty: bool
    parallel: int
    gates: Sequence[Callable[[], None]]

    @property
    def resume(self) -> Resume | None:
        """How rows are left out that a dead attempt has exported already; `None` where all must be read."""
        ...

    def parts(self, stage: Callable[[], Staged]) -> Iterator[EncodedPart]:
        """Read and encode; `stage` is called when the first row of a part is there, never for an empty part.

        It is called by one thread at a time, which may be another one than the caller's, and never after `close`.
        """
        ...

    def counters(self) -> Mapping[str, Any]:
        """What was counted while reading."""
        ...

    def close(self) -> None:
        """Stop and free the source; may be called at any time and again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Who commits.

    Attributes:
        export_name: the asset key's segments joined by "/"; a prefix that holds another export's data is refused.
        dagster_run_id: `None` outside of a run.
        lineage: this run and those that it resumes, one after the other, from their failures: a delivery of one of
            them is returned instead of exporting again. Empty switches that off (unit tests).
        partition_key: in clear.
        is_over: whether a Dagster run has ended; False for one that is not known.
    """

    export_name: str
    dagster_run_id: str | None = None
    lineage: frozenset[str] = frozenset()
    partition_key: str | None = None
    is_over: Callable[[str], bool] = lambda _run_id: False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings:
    """How the seam works, by the IO manager's or the export's settings.

    Attributes:
        retain: superseded deliveries kept besides the head.
        verify: "readback" re-reads each part from the store and compares its MD5.
        symlink_manifest: also write `_symlink_format_manifest/manifest`.
        takeover_after: age of the last heartbeat from which a run counts as dead.
        unsafe_unfenced_commits: go on where the store has no conditional writes.
    """

    retain: int = 0
    verify: Verify = "store"
    symlink_manifest: bool = False
    takeover_after: timedelta = timedelta(hours=1)
    unsafe_unfenced_commits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReceipt:
    """What a run committed, or found committed.

    Attributes:
        export_name: the asset key's segments joined by "/".
        capabilities: of the destination.
        uri: of the prefix.
        manifest: the one that describes the prefix after this run; `None` for a streaming destination.
        fingerprint: of its exact bytes, equal to the marker; `None` for a streaming destination.
        parts: what this run added, also before it found its work done; where that was replaced meanwhile, those of
            `manifest`. Empty where there was nothing to do.
        row_count: of `parts`, or of the stream.
        size_bytes: of `parts`, or of the stream.
        window: of this run, where its mode has one.
        unchanged: no row, and the head left as it was.
        found: an earlier attempt had committed; nothing was exported.
        notes: what was decided on the way and a person may ask about.
        counters: of the extraction.
        duration_seconds: of the whole seam.
    """

    export_name: str
    capabilities: DestinationCapabilities
    uri: str
    manifest: Manifest | None
    fingerprint: str | None
    parts: tuple[Part, ...] = ()
    row_count: int = 0
    size_bytes: int = 0
    window: Mapping[str, Any] | None = None
    unchanged: bool = False
    found: bool = False
    notes: tuple[str, ...] = ()
    counters: Mapping[str, Any] = field(default_factory=dict)
    duration_seconds: float = 0.0
