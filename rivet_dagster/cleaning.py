"""What no reader and no run can need any more is removed.

A final record that no head reaches is cleaned once a head other than its `previous` is committed, since its late
request can no longer land. What a taken-over run left is its taker's to adopt, and then that one's taker's: it is
cleaned once the last of them failed, is gone, or has committed without it.
"""

from __future__ import annotations

import logging

from rivet_dagster.contract import ObjectDestination
from rivet_dagster.errors import DestinationError, ReadError
from rivet_dagster.layout import Prefix, token_of
from rivet_dagster.manifest import Dataset, Manifest, Status
from rivet_dagster.readback import Record, Sight, deliveries, look, read_record, records, remove

__all__ = ["tidy", "tidy_late"]


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
        found = {t: r for t, r in records(destination, prefix, sight.head).items() if t != token}
        judged = {t: _who_decides(destination, prefix, record, found) for t, record in found.items()}
        # Read after the records: of a run that is final, only a head not older than it can say that it will never land.
        now = look(destination, prefix) if judged else sight
        over = {t: why for t, last in judged.items() if (why := _removable_because(found[t].manifest, last, now))}
        replaced = now.settled and now.head is not None and now.head.dataset is Dataset.SNAPSHOT
        # The chain of an old append dataset is long: it is read only where there may be something to remove.
        readable = _readable(destination, prefix, now, retain) if over or replaced else {}
        kept = frozenset(prefix.at(p.path) for m in readable.values() for p in m.parts)
        for other, why in over.items():
            _remove_attempt(destination, prefix, found[other], kept=kept, because=why, log=log)
        if replaced and now.head is not None:
            spared = frozenset(readable)
            _remove_superseded(destination, prefix, now.head, retain=retain, spared=spared, kept=kept, log=log)
    except (DestinationError, ReadError) as e:
        log.warning("%s: cleaning up is left to the next run: %s", destination.uri(prefix.root), e)


def tidy_late(destination: ObjectDestination, prefix: Prefix, *, token: str, retain: int, log: logging.Logger) -> None:
    """Remove what arrived of a taken-over attempt after that was cleaned up; best effort, by that attempt itself.

    Whoever cleans finds what is there by the attempt's record, and removes the record last: what was on its way at that
    moment is named by nothing any more. While the record is there it is its taker's, who may list the parts yet.

    Args:
        destination: where.
        prefix: which dataset.
        token: of the attempt; nothing of it writes any more.
        retain: superseded deliveries kept besides the head.
        log: one line per removed object.
    """
    try:
        # By the same rules as anybody's; one who judged before us may have listed the parts already.
        tidy(destination, prefix, sight=look(destination, prefix), token=None, retain=retain, log=log)
        if read_record(destination, prefix, token) is not None:
            return
        late = {m.key for m in destination.list(prefix.data) if m.key.startswith(prefix.parts_of(token))}
        if late:
            readable = _readable(destination, prefix, look(destination, prefix), retain)
            late -= {prefix.at(p.path) for m in readable.values() for p in m.parts}
        remove(destination, sorted(late), because="it arrived after its run had been cleaned up", log=log)
        destination.discard_unfinished(prefix.parts_of(token))
    except (DestinationError, ReadError) as e:
        log.warning("%s: what %s left late stays: %s", destination.uri(prefix.root), token, e)


def _who_decides(
    destination: ObjectDestination, prefix: Prefix, record: Record, found: dict[str, Record]
) -> Manifest | None:
    """The last of those that took a run and each other over; the run itself where nobody did."""
    seen, last = set(), record.manifest
    while last.status is Status.INTERRUPTED:
        taker = last.taken_over_by or ""
        if not taker or taker in seen:
            return None
        seen.add(taker)
        # One that was not listed may have begun since, or be a delivery.
        next_one = found.get(taker) or read_record(destination, prefix, taker)
        if next_one is None:
            return None
        last = next_one.manifest
    return last


def _removable_because(manifest: Manifest, last: Manifest | None, sight: Sight) -> str | None:
    if manifest.content is None:
        return None
    if last is None or last.status is Status.FAILED:
        return "its run failed" if last is manifest else f"its run was taken over by {manifest.taken_over_by}"
    if last is not manifest and sight.head_reaches(last.run_id):
        return f"{last.run_id} took its run over, and has committed"
    return "another run committed instead" if _can_no_longer_land(last, sight) else None


def _can_no_longer_land(manifest: Manifest, sight: Sight) -> bool:
    if manifest.status is not Status.SUCCESS or not sight.settled or sight.head is None:
        return False
    base = manifest.previous.run_id if manifest.previous else None
    return not sight.head_reaches(manifest.run_id) and sight.head.run_id != base


def _readable(destination: ObjectDestination, prefix: Prefix, sight: Sight, retain: int) -> dict[str, Manifest]:
    """The deliveries that a reader may still read, from head, marker or what is retained."""
    reached = [m for m in (sight.head, sight.committed) if m is not None]
    for ancestor in sight.head.ancestors[:retain] if sight.head else ():
        record = read_record(destination, prefix, ancestor.run_id)
        reached += [] if record is None else [record.manifest]
    return {m.run_id: m for r in reached for m in deliveries(destination, prefix, r)}


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
    destination: ObjectDestination,
    prefix: Prefix,
    head: Manifest,
    *,
    retain: int,
    spared: frozenset[str],
    kept: frozenset[str],
    log: logging.Logger,
) -> None:
    there = {token_of(m.key) for m in destination.list(prefix.root)}
    for ancestor in head.ancestors[retain:]:
        if ancestor.run_id in spared or ancestor.run_id not in there:
            continue
        record = read_record(destination, prefix, ancestor.run_id)
        # A foreign delivery is replaced, but only what our own manifests name is ever removed.
        if record is None or record.manifest.content is None or record.fingerprint != ancestor.fingerprint:
            continue
        because = f"superseded by {head.run_id}"
        _remove_attempt(destination, prefix, record, kept=kept, because=because, log=log)
