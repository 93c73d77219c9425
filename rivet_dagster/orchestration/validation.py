"""Judge whatever lies at a prefix, by its manifests alone: written by this package, by Rivet, or by neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rivet_dagster.contract import ObjectDestination
from rivet_dagster.errors import ReadError, RivetError
from rivet_dagster.layout import Prefix, as_written
from rivet_dagster.manifest import Manifest
from rivet_dagster.orchestration.failures import text_of
from rivet_dagster.orchestration.judgement import Look, Verdict, by_listing, judge
from rivet_dagster.orchestration.metadata import weakest
from rivet_dagster.readback import Fault, deliveries

__all__ = ["Validated", "validate"]

_DEPTH = 8
# A dataset's own directories, whose names no asset and no partition has.
_OWN = {"data", "_quarantine", "_symlink_format_manifest"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """What was found of one dataset.

    Attributes:
        uri: of its prefix.
        place: the same as it can be given again: of a local directory, its path.
        ok: whether nothing is wrong.
        error: why it could not be judged, where it could not.
        run_id: of the delivery that was judged; `None` where none could be.
        export: whose it is, as its manifest says.
        written_by: "rivet_dagster", or "another tool" where the manifest lacks what ours adds.
        checksum: the fingerprint of its manifest.
        dataset: "snapshot" or "append".
        deliveries: how many make it up.
        parts: of all of them.
        rows: likewise.
        bytes: likewise.
        verification: the weakest level at which parts were verified when they were written.
        faults: what is wrong.
        unknown: objects that no manifest names.
        notes: what a person should know and is no fault.
    """

    uri: str
    place: str
    ok: bool
    error: str | None = None
    run_id: str | None = None
    export: str | None = None
    written_by: str | None = None
    checksum: str | None = None
    dataset: str | None = None
    deliveries: int = 0
    parts: int = 0
    rows: int = 0
    bytes: int = 0
    verification: str | None = None
    faults: tuple[Mapping[str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """With stable keys."""
        return asdict(self)


def validate(destination: ObjectDestination, prefix: Prefix, *, look_at: Look = by_listing) -> Iterator[Validated]:
    """Judge the dataset at a prefix, and all those below it: one does not stand for what lies beneath.

    Args:
        destination: where.
        prefix: of a dataset, or a directory above some; where there is none, as its names are written by the layout.
        look_at: the way in which parts are looked at.
    """
    told = (prefix, *map(Prefix, as_written(prefix.root)))
    found = next(filter(None, (list(_datasets(destination, p, depth=_DEPTH)) for p in told)), ())
    for one, error in found or [(prefix, None)]:
        yield _validated(destination, one, look_at) if error is None else _not_judged(destination, one, error)


def _datasets(
    destination: ObjectDestination, prefix: Prefix, *, depth: int
) -> Iterator[tuple[Prefix, RivetError | None]]:
    """Where there is a dataset, or where nobody can tell; what cannot be looked at hides nothing else."""
    names: set[str] = set()
    try:
        if depth:
            names = set(destination.directories(prefix.root))
        found = destination.head(prefix.manifest) is not None or destination.head(prefix.marker) is not None
        error = None
    except RivetError as e:
        found, error = True, e
    if found:
        yield prefix, error
    for name in sorted(names - (_OWN if found else set())):
        yield from _datasets(destination, Prefix(f"{prefix.root}{name}/"), depth=depth - 1)


def _uri(destination: ObjectDestination, prefix: Prefix) -> str:
    return f"{destination.uri(prefix.root).rstrip('/')}/"


def _place(uri: str) -> str:
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri


def _not_judged(destination: ObjectDestination, prefix: Prefix, error: RivetError) -> Validated:
    uri = _uri(destination, prefix)
    return Validated(uri=uri, place=_place(uri), ok=False, error=text_of(error))


def _without_manifest(uri: str, verdict: Verdict) -> Validated:
    place = _place(uri)
    notes = verdict.notes
    if place != uri and not Path(place).is_dir():
        what = (
            "this is a file; give the directory of a dataset" if Path(place).exists() else "there is no such directory"
        )
        notes = (*notes, what)
    return Validated(uri=uri, place=place, ok=verdict.passed, faults=_faults(verdict.faults), notes=notes)


def _validated(destination: ObjectDestination, prefix: Prefix, look_at: Look) -> Validated:
    uri = _uri(destination, prefix)
    try:
        verdict = judge(destination, prefix, look_at=look_at)
        head = verdict.manifest
        if head is None:
            return _without_manifest(uri, verdict)
        chain = deliveries(destination, prefix, head)
        earlier = [look_at(destination, prefix, manifest) for manifest in chain[:-1]]
    except ReadError as e:
        fault = Fault(path="", kind="unreadable", expected="a dataset that is whole", found=text_of(e))
        return Validated(uri=uri, place=_place(uri), ok=False, faults=_faults([fault]))
    except RivetError as e:
        return _not_judged(destination, prefix, e)
    faults = (*verdict.faults, *(f for found in earlier for f in found.faults))
    notes = (*verdict.notes, *(note for found in earlier for note in found.notes))
    known = {p.path for manifest in chain for p in manifest.parts}
    parts = [p for manifest in chain for p in manifest.parts]
    return Validated(
        uri=uri,
        place=_place(uri),
        ok=not faults,
        run_id=head.run_id,
        export=head.content.identity.export if head.content else head.export_name,
        written_by=_writer(head),
        checksum=verdict.fingerprint,
        dataset=head.dataset.value,
        deliveries=len(chain),
        parts=len(parts),
        rows=sum(m.row_count for m in chain),
        bytes=sum(m.size_bytes for m in chain),
        verification=weakest(parts) if parts else None,
        faults=_faults(faults),
        unknown=tuple(path for path in verdict.unknown if path not in known),
        notes=notes,
    )


def _writer(manifest: Manifest) -> str:
    return "rivet_dagster" if manifest.content is not None else "another tool"


def _faults(faults: Sequence[Fault]) -> tuple[Mapping[str, str], ...]:
    return tuple({"path": f.path, "kind": f.kind, "expected": f.expected, "found": f.found} for f in faults)
