"""Look at a prefix and say what is true. Reads and removes; never creates or swaps an object.

The invariant of a prefix: the marker names the head, or the head's `previous`. Reachability is answered from the
head's `ancestors`, never by walking side records, since superseded ones are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_random_exponential

from rivet_dagster.contract import ABSENT, Expect, ObjectDestination, ObjectMeta
from rivet_dagster.errors import DestinationError, ReadError
from rivet_dagster.layout import Prefix, token_of
from rivet_dagster.manifest import Dataset, Manifest, Part, fingerprint, marker_fingerprint
from rivet_dagster.wire import parse

__all__ = [
    "Fault",
    "Record",
    "Sight",
    "check_listed",
    "check_parts",
    "deliveries",
    "look",
    "read_record",
    "records",
    "remove",
]

# Far above any manifest of ours; a foreign object under a control name must not fill the memory.
_CONTROL_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Head and marker as they were read.

    Attributes:
        head: what `manifest.json` says; `None` where there is none.
        head_fingerprint: of its exact bytes.
        head_version: token for the next swap of the head.
        marker: the fingerprint that `_SUCCESS` holds; `None` where there is none.
        marker_version: token for the next swap of the marker.
        committed: the delivery that the marker names: what a reader may read.
        committed_fingerprint: of its exact bytes.
    """

    head: Manifest | None = None
    head_fingerprint: str | None = None
    head_version: str | None = None
    marker: str | None = None
    marker_version: str | None = None
    committed: Manifest | None = None
    committed_fingerprint: str | None = None

    @property
    def settled(self) -> bool:
        """Whether no commit is in flight, or left half-way: the marker names the head."""
        return self.head_fingerprint == self.marker

    @property
    def expect_head(self) -> Expect:
        """What a swap of the head must find."""
        return self.head_version or ABSENT

    @property
    def expect_marker(self) -> Expect:
        """What a swap of the marker must find."""
        return self.marker_version or ABSENT

    def head_reaches(self, token: str) -> bool:
        """Whether the head is this attempt's delivery, or descends from it."""
        return self.head is not None and self.head.reaches(token)

    def marker_reaches(self, token: str) -> bool:
        """Whether the delivery that the marker names is this attempt's, or descends from it."""
        if self.head is None or self.marker is None:
            return False
        line = [(self.head.run_id, self.head_fingerprint), *((a.run_id, a.fingerprint) for a in self.head.ancestors)]
        named = [i for i, (_, said) in enumerate(line) if said == self.marker]
        return bool(named) and any(run_id == token for run_id, _ in line[named[0] :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A side record as it was read."""

    manifest: Manifest
    fingerprint: str
    version: str
    modified_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with one object.

    Attributes:
        path: relative to the prefix.
        kind: "missing", "size", "checksum", "rows", "schema", "unreadable", or for control objects "marker" and
            "manifest".
        expected: in words.
        found: in words.
    """

    path: str
    kind: Literal["missing", "size", "checksum", "rows", "schema", "unreadable", "marker", "manifest"]
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: {self.kind}: expected {self.expected}, found {self.found}"


def look(destination: ObjectDestination, prefix: Prefix) -> Sight:
    """Read head and marker, again while they do not belong together (a commit is in flight).

    A marker without a head is returned as it is, and so is a genuine head (identical to its own side record) that no
    marker names: the caller decides. Where the marker names neither that head nor its `previous`, a late marker of a
    rejected run has landed, and `committed` is `None`.

    Raises:
        ReadError: head and marker stay apart and the head was changed, or a control object is unreadable.
        DestinationError: the store failed.
    """
    reads = Retrying(
        stop=stop_after_attempt(6),
        wait=wait_random_exponential(multiplier=0.1, max=2),
        retry=retry_if_result(lambda found: not found[1]),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )
    sight, whole = reads(_look_once, destination, prefix)
    if not whole and sight.head is not None and sight.marker is not None:
        copy = read_record(destination, prefix, sight.head.run_id)
        if copy is not None and copy.fingerprint == sight.head_fingerprint:
            return sight
    if not whole:
        link = sight.head.previous if sight.head else None
        said = f"{sight.head_fingerprint} (the head) or {link.fingerprint if link else 'no marker'} (its previous)"
        msg = (
            f"{destination.uri(prefix.marker)}: expected {said}, found {sight.marker or 'bytes that are no marker'}; "
            "the manifest or the marker was changed: copy manifest-<run id>.json of the newest delivery over "
            "manifest.json, and remove _SUCCESS: the next run writes it"
        )
        raise ReadError(msg)
    return sight


def _look_once(destination: ObjectDestination, prefix: Prefix) -> tuple[Sight, bool]:
    stored = destination.read(prefix.manifest, length=_CONTROL_BYTES)
    marked = destination.read(prefix.marker, length=_CONTROL_BYTES)
    marker = marker_fingerprint(marked.body) if marked else None
    marker_version = marked.meta.version if marked else None
    if stored is None:
        return Sight(marker=marker, marker_version=marker_version), True
    head = parse(stored.body, where=destination.uri(prefix.manifest))
    said = fingerprint(stored.body)
    committed, committed_fingerprint = None, None
    whole = marked is None or marker is not None
    if marker == said:
        committed, committed_fingerprint = head, said
    elif marker is not None:
        base = head.previous if head.previous and head.previous.fingerprint == marker else None
        copy = read_record(destination, prefix, base.run_id) if base else None
        whole = copy is not None and copy.fingerprint == marker
        if copy is not None and whole:
            committed, committed_fingerprint = copy.manifest, copy.fingerprint
    sight = Sight(
        head=head,
        head_fingerprint=said,
        head_version=stored.meta.version,
        marker=marker,
        marker_version=marker_version,
        committed=committed,
        committed_fingerprint=committed_fingerprint,
    )
    return sight, whole


def read_record(destination: ObjectDestination, prefix: Prefix, token: str) -> Record | None:
    """Read one side record; `None` where there is none."""
    key = prefix.side(token)
    stored = destination.read(key, length=_CONTROL_BYTES)
    if stored is None:
        return None
    return Record(
        manifest=parse(stored.body, where=destination.uri(key)),
        fingerprint=fingerprint(stored.body),
        version=stored.meta.version,
        modified_at=stored.meta.modified_at,
    )


def records(destination: ObjectDestination, prefix: Prefix, head: Manifest | None) -> dict[str, Record]:
    """The side records that the head does not reach, by token. Unreadable ones are not ours to judge: left out.

    Beyond the head's 256 ancestors a record may be an older delivery; what is not younger than the oldest of them
    is left out, so that an old dataset neither costs a read per delivery nor is mistaken for a stranger.
    """
    listed = {t: m for m in destination.list(prefix.root) if (t := token_of(m.key)) and m.key == prefix.side(t)}
    reached = {head.run_id, *(a.run_id for a in head.ancestors)} if head else set()
    oldest = listed.get(head.ancestors[-1].run_id) if head and head.ancestors else None
    floor = head.sequence - len(head.ancestors) if head else 0
    out = {}
    for token, meta in listed.items():
        if token in reached or (floor > 1 and oldest is not None and meta.modified_at < oldest.modified_at):
            continue
        try:
            found = read_record(destination, prefix, token)
        except ReadError:
            continue
        if found and found.manifest.run_id == token and found.manifest.sequence >= floor:
            out[token] = found
    return out


def deliveries(destination: ObjectDestination, prefix: Prefix, manifest: Manifest) -> tuple[Manifest, ...]:
    """The whole dataset that a manifest describes: back to its last snapshot, oldest first.

    Raises:
        ReadError: a delivery of the chain is gone, or is not the one that its successor names.
    """
    chain = [manifest]
    while chain[-1].dataset is Dataset.APPEND and (link := chain[-1].previous):
        found = read_record(destination, prefix, link.run_id)
        if found is None or found.fingerprint != link.fingerprint:
            msg = (
                f"{destination.uri(prefix.side(link.run_id))}: expected the delivery {link.fingerprint}, "
                f"found {found.fingerprint if found else 'nothing'}; restore it or export with full_refresh"
            )
            raise ReadError(msg)
        chain.append(found.manifest)
    return tuple(reversed(chain))


def check_parts(destination: ObjectDestination, prefix: Prefix, parts: Iterable[Part]) -> tuple[Fault, ...]:
    """Head each part: what decisions rest on. An error while looking is raised; it is not a fault."""
    return tuple(f for p in parts if (f := _fault(p, destination.head(prefix.at(p.path)))))


def check_listed(destination: ObjectDestination, prefix: Prefix, parts: Sequence[Part]) -> tuple[Fault, ...]:
    """Compare parts with one listing: what a check reports."""
    directories = sorted({prefix.at(p.path).rpartition("/")[0] + "/" for p in parts})
    listed: Mapping[str, ObjectMeta] = {m.key: m for d in directories for m in destination.list(d.lstrip("/"))}
    return tuple(f for p in parts if (f := _fault(p, listed.get(prefix.at(p.path)))))


def _fault(part: Part, meta: ObjectMeta | None) -> Fault | None:
    if meta is None:
        return Fault(path=part.path, kind="missing", expected=f"{part.size_bytes} bytes", found="no object")
    if meta.size_bytes != part.size_bytes:
        said, found = f"{part.size_bytes} bytes", f"{meta.size_bytes} bytes"
        return Fault(path=part.path, kind="size", expected=said, found=found)
    store = meta.checksum
    if store and store.kind == "md5" and part.md5 not in (None, store.value):
        said, found = f"md5 {part.md5.hex() if part.md5 else ''}", f"md5 {store.value.hex()}"
        return Fault(path=part.path, kind="checksum", expected=said, found=found)
    return None


def remove(
    destination: ObjectDestination,
    keys: Iterable[str],
    *,
    because: str,
    log: logging.Logger,
    into: Callable[[str], str] | None = None,
) -> None:
    """Remove objects that our own manifests or tokens name; the only way in which anything is ever taken away.

    With `into` they are moved to the key that it gives instead.

    Raises:
        DestinationError: some could not be removed; all were tried.
    """
    failed: list[DestinationError] = []
    for key in keys:
        try:
            if into is None:
                destination.remove(key)
                log.info("removed %s: %s", destination.uri(key), because)
            else:
                destination.move(key, into(key))
                log.warning("moved %s to %s: %s", destination.uri(key), destination.uri(into(key)), because)
        except DestinationError as e:
            failed.append(e)
    if failed:
        raise failed[0]
