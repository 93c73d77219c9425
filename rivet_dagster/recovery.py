"""What a run does about runs before it: finish or reject an unmarked head, and take dead runs over.

Rules of the design's section 4. Only a takeover may clean up after, or adopt from, an attempt that is not final.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta

from rivet_dagster.attempt import Attempt
from rivet_dagster.contract import ABSENT, ObjectDestination
from rivet_dagster.control import swap
from rivet_dagster.errors import ContractError, DestinationError, ReadError
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Manifest, Status, marker_body
from rivet_dagster.readback import (
    Sight,
    check_parts,
    look,
    records,
)
from rivet_dagster.wire import serialise

__all__ = ["dead_because", "settle", "take_over_dead_runs"]

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
) -> tuple[tuple[Manifest, ...], tuple[str, ...]]:
    """Swap the record of each dead run to `interrupted`, named after `token`, whose own record is already there.

    Returns:
        What the runs had recorded that are now this attempt's to adopt from, the newest first: those taken over, and
        those that these had taken over; and notes. What they left behind is cleaned by `tidy`.
    """
    notes: list[str] = []
    taken: dict[str, Manifest] = {}
    found = records(destination, prefix, head)
    now = found[token].modified_at if token in found else None
    for other, record in found.items():
        if other == token or record.manifest.status is not Status.RUNNING:
            continue
        reason = dead_because(record.manifest, record.modified_at, attempt, now=now, takeover_after=takeover_after)
        if reason is None:
            continue
        body = serialise(replace(record.manifest, status=Status.INTERRUPTED, taken_over_by=token))
        if swap(destination, prefix.side(other), body, expect=record.version) is not None:
            log.warning("%s: took over %s: %s", destination.uri(prefix.root), other, reason)
            notes.append(f"took over {other}: {reason}")
            taken[other] = record.manifest
    before = {t: r.manifest for t, r in found.items() if r.manifest.status is Status.INTERRUPTED}
    while inherited := {t: m for t, m in before.items() if m.taken_over_by in taken and t not in taken}:
        taken |= inherited
    return tuple(sorted(taken.values(), key=lambda m: m.started_at, reverse=True)), tuple(notes)
