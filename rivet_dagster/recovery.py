"""What a run does about runs before it: finish or reject an unmarked head, take dead runs over, clean up.

Rules of the design's section 4. Only a takeover may clean up after an attempt that is not final; a final one that
no head reaches is cleaned once a head other than its `previous` is committed, since its late request can no longer
land.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta

from rivet_dagster.attempt import Attempt
from rivet_dagster.contract import ABSENT, ObjectDestination
from rivet_dagster.control import swap
from rivet_dagster.errors import ContractError, DestinationError, ReadError
from rivet_dagster.layout import Prefix, token_of
from rivet_dagster.manifest import Dataset, Manifest, Status, marker_body
from rivet_dagster.readback import (
    Record,
    Sight,
    check_parts,
    deliveries,
    look,
    read_record,
    records,
    remove,
)
from rivet_dagster.wire import serialise

__all__ = ["dead_because", "settle", "take_over_dead_runs", "tidy"]

_ROUNDS = 5


def settle(
    destination: ObjectDestination,
    prefix: Prefix,
    attempt: Attempt,
    *,
    token: str,
    takeover_after: timedelta,
    log: logging.Logger,
) -> tuple[Sight, tuple[str, ...]]:
    """Read head and marker; finish the marker of a head whose run stopped between the two.

    Returns:
        What is true, and notes. A sight that is not settled holds a head that was never committed, to be replaced:
        its parts are bad, and its run is dead.

    Raises:
        ContractError: the prefix belongs to another export.
        ReadError: head and marker do not belong together.
        DestinationError: an unmarked head misses a part, and its run may be alive: run again.
    """
    notes: list[str] = []
    for _ in range(_ROUNDS):
        sight = look(destination, prefix)
        head = sight.head
        if head is None:
            if sight.marker:
                notes.append(f"{destination.uri(prefix.manifest)} is gone while its marker is there; replaced")
            return sight, tuple(notes)
        _refuse_foreign(destination, prefix, head, attempt)
        if sight.settled:
            return sight, tuple(notes)
        faults = () if head.status is not Status.SUCCESS else check_parts(destination, prefix, head.parts)
        if head.status is Status.SUCCESS and not faults:
            log.info("%s: finishing the marker of %s", destination.uri(prefix.root), head.run_id)
            fingerprint = sight.head_fingerprint or ""
            swap(destination, prefix.marker, marker_body(fingerprint), expect=sight.expect_marker)
            notes.append(f"finished the commit of {head.run_id}, which had stopped before its marker")
            continue
        if faults and check_parts(destination, prefix, head.parts) != faults:
            continue
        why = "; ".join(str(f) for f in faults) or f"its status is {head.status.value}"
        if sight.committed is None and sight.marker is not None:
            msg = (
                f"{destination.uri(prefix.root)}: neither the head {head.run_id} ({why}) "
                f"nor the marker {sight.marker} names a whole delivery; restore one from manifest-<run id>.json"
            )
            raise ReadError(msg)
        reason = _head_dead_because(destination, prefix, head, attempt, token=token, takeover_after=takeover_after)
        if reason is None:
            msg = (
                f"{destination.uri(prefix.manifest)}: the head {head.run_id} has no marker and is not whole ({why}), "
                f"and its run may be alive; run again, at the latest after {takeover_after}"
            )
            raise DestinationError(msg)
        notes.append(f"rejected the head {head.run_id}, never committed ({why}; {reason})")
        return sight, tuple(notes)
    msg = f"{destination.uri(prefix.root)}: expected head and marker to settle, they kept changing; run again"
    raise DestinationError(msg)


def _refuse_foreign(destination: ObjectDestination, prefix: Prefix, head: Manifest, attempt: Attempt) -> None:
    found = head.content.identity.export if head.content else head.export_name
    if found != attempt.export_name:
        msg = (
            f"{destination.uri(prefix.root)}: expected a dataset of export {attempt.export_name!r}, found one of "
            f"{found!r}; give this export its own prefix, or remove that dataset first"
        )
        raise ContractError(msg)


def _head_dead_because(
    destination: ObjectDestination,
    prefix: Prefix,
    head: Manifest,
    attempt: Attempt,
    *,
    token: str,
    takeover_after: timedelta,
) -> str | None:
    meta = destination.head(prefix.manifest)
    if meta is None:
        return None
    now = _store_now(destination, prefix, replace(head, run_id=token, status=Status.RUNNING, parts=()), attempt)
    return dead_because(head, meta.modified_at, attempt, now=now, takeover_after=takeover_after)


def _store_now(destination: ObjectDestination, prefix: Prefix, probe: Manifest, attempt: Attempt) -> datetime | None:
    """The store's clock, read off a record just written; our own clock is never compared with the store's."""
    key = prefix.side(probe.run_id)
    body = serialise(replace(probe, dagster_run_id=attempt.dagster_run_id, partition_key=attempt.partition_key))
    swap(destination, key, body, expect=ABSENT)
    written = destination.head(key)
    destination.remove(key)
    return written.modified_at if written else None


def dead_because(
    manifest: Manifest, modified_at: datetime, attempt: Attempt, *, now: datetime | None, takeover_after: timedelta
) -> str | None:
    """Why an attempt counts as dead; `None` for one that may be alive. `now` is the store's clock."""
    run_id = manifest.dagster_run_id
    if run_id is not None:
        if run_id == attempt.dagster_run_id and manifest.partition_key == attempt.partition_key:
            return "it is an earlier attempt of this step"
        if attempt.is_over(run_id):
            return f"its Dagster run {run_id} is over"
    if now is not None and now - modified_at > takeover_after:
        return f"no heartbeat for {now - modified_at}"
    return None


def take_over_dead_runs(
    destination: ObjectDestination,
    prefix: Prefix,
    attempt: Attempt,
    *,
    token: str,
    head: Manifest | None,
    takeover_after: timedelta,
    log: logging.Logger,
) -> tuple[str, ...]:
    """Swap the record of each dead run to `interrupted`, named after `token`, whose own record is already there.

    Returns:
        Notes; what a taken-over run left is cleaned by `tidy`.
    """
    notes = []
    found = records(destination, prefix, head)
    now = found[token].modified_at if token in found else None
    for other, record in found.items():
        if other == token or record.manifest.status is not Status.RUNNING:
            continue
        reason = dead_because(record.manifest, record.modified_at, attempt, now=now, takeover_after=takeover_after)
        if reason is None:
            continue
        taken = serialise(replace(record.manifest, status=Status.INTERRUPTED, taken_over_by=token))
        if swap(destination, prefix.side(other), taken, expect=record.version) is not None:
            log.warning("%s: took over %s: %s", destination.uri(prefix.root), other, reason)
            notes.append(f"took over {other}: {reason}")
    return tuple(notes)


def tidy(
    destination: ObjectDestination,
    prefix: Prefix,
    *,
    sight: Sight,
    token: str | None,
    retain: int,
    log: logging.Logger,
) -> None:
    """Remove what no reader and no run can need any more; best effort, the next run finishes it.

    That is: attempts that failed, were taken over, or are final and can no longer land; and superseded deliveries
    beyond `retain`. Of each the parts first, its side record last.

    Args:
        destination: where.
        prefix: which dataset.
        sight: as just read.
        token: of the attempt that cleans; its own objects are left alone.
        retain: superseded deliveries kept besides the head.
        log: one line per removed object.
    """
    try:
        found = records(destination, prefix, sight.head)
        over = {t: why for t, r in found.items() if t != token and (why := _removable_because(r, sight, found))}
        # The chain of an old append dataset is long: it is read only where there is something to remove.
        kept = _kept(destination, prefix, sight) if over else frozenset()
        for other, why in over.items():
            _remove_attempt(destination, prefix, found[other], kept=kept, because=why, log=log)
        if sight.settled and sight.head and sight.head.dataset is Dataset.SNAPSHOT:
            _remove_superseded(destination, prefix, sight.head, retain=retain, log=log)
    except (DestinationError, ReadError) as e:
        log.warning("%s: cleaning up is left to the next run: %s", destination.uri(prefix.root), e)


def _removable_because(record: Record, sight: Sight, found: dict[str, Record]) -> str | None:
    manifest = record.manifest
    if manifest.content is None:
        return None
    if manifest.status is Status.FAILED:
        return "its run failed"
    if manifest.status is Status.INTERRUPTED:
        taker = found.get(manifest.taken_over_by or "")
        idle = taker is None or taker.manifest.status in (Status.FAILED, Status.INTERRUPTED)
        if idle or (taker and _can_no_longer_land(taker.manifest, sight)):
            return f"its run was taken over by {manifest.taken_over_by}"
    if manifest.status is Status.SUCCESS and _can_no_longer_land(manifest, sight):
        return "another run committed instead"
    return None


def _can_no_longer_land(manifest: Manifest, sight: Sight) -> bool:
    if manifest.status is not Status.SUCCESS or not sight.settled or sight.head is None:
        return False
    base = manifest.previous.run_id if manifest.previous else None
    return not sight.head_reaches(manifest.run_id) and sight.head.run_id != base


def _kept(destination: ObjectDestination, prefix: Prefix, sight: Sight) -> frozenset[str]:
    """Keys that a reader of head or marker needs, whoever's name they carry."""
    reached = [m for m in (sight.head, sight.committed) if m is not None]
    whole = {m.run_id: m for r in reached for m in deliveries(destination, prefix, r)}
    return frozenset(prefix.at(p.path) for m in whole.values() for p in m.parts)


def _remove_attempt(
    destination: ObjectDestination,
    prefix: Prefix,
    record: Record,
    *,
    kept: frozenset[str],
    because: str,
    log: logging.Logger,
) -> None:
    token = record.manifest.run_id
    named = {m.key for m in destination.list(prefix.data) if m.key.startswith(prefix.parts_of(token))}
    named |= {prefix.at(p.path) for p in record.manifest.parts}
    remove(destination, sorted(named - kept), because=because, log=log)
    destination.discard_unfinished(prefix.parts_of(token))
    remove(destination, [prefix.side(token)], because=because, log=log)


def _remove_superseded(
    destination: ObjectDestination, prefix: Prefix, head: Manifest, *, retain: int, log: logging.Logger
) -> None:
    there = {token_of(m.key) for m in destination.list(prefix.root)}
    readable = {head.run_id: head}
    for ancestor in head.ancestors[:retain]:
        record = read_record(destination, prefix, ancestor.run_id) if ancestor.run_id in there else None
        if record is not None:
            readable |= {m.run_id: m for m in deliveries(destination, prefix, record.manifest)}
    kept = frozenset(prefix.at(p.path) for m in readable.values() for p in m.parts)
    for ancestor in head.ancestors[retain:]:
        if ancestor.run_id in readable or ancestor.run_id not in there:
            continue
        record = read_record(destination, prefix, ancestor.run_id)
        # A foreign delivery is replaced, but only what our own manifests name is ever removed.
        if record is None or record.manifest.content is None or record.fingerprint != ancestor.fingerprint:
            continue
        because = f"superseded by {head.run_id}"
        _remove_attempt(destination, prefix, record, kept=kept, because=because, log=log)
