"""Keeping a dataset tidy without exporting: what a run does about runs before it, on its own.

Nothing here removes anything by rules of its own: dead runs are taken over, what they left and what was superseded is
removed, all by the functions that a commit calls. Only what lies in quarantine for too long is in addition.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from rivet_dagster.attempt import Attempt, CommitSettings
from rivet_dagster.cleaning import tidy
from rivet_dagster.contract import ObjectDestination, ObjectMeta
from rivet_dagster.control import SideRecord
from rivet_dagster.layout import Prefix, make_token, token_of
from rivet_dagster.manifest import Content, Identity, Manifest, Status
from rivet_dagster.publish import write_symlink_manifest
from rivet_dagster.readback import Sight, look, records, remove
from rivet_dagster.recovery import settle, take_over_dead_runs

__all__ = ["Maintained", "maintain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """What became of a dataset.

    Attributes:
        alive: attempts that are running, or may be: nothing of them was touched.
        taken_over: attempts that were dead.
        quarantined: objects that stay in quarantine.
        notes: what was decided, and a person may ask about.
    """

    alive: tuple[str, ...] = ()
    taken_over: tuple[str, ...] = ()
    quarantined: int = 0
    notes: tuple[str, ...] = ()


def maintain(
    destination: ObjectDestination,
    prefix: Prefix,
    *,
    attempt: Attempt,
    settings: CommitSettings,
    quarantined_for: timedelta,
    log: logging.Logger,
) -> Maintained:
    """Take dead runs over, and remove what no reader and no run can need any more.

    That is: what dead and failed runs left, superseded deliveries beyond `settings.retain`, and what has been in
    quarantine for longer than `quarantined_for`. A head whose run stopped before its marker is finished first.

    Args:
        destination: where.
        prefix: which dataset.
        attempt: who maintains; of the export whose dataset it is.
        settings: `retain`, `takeover_after` and `unsafe_unfenced_commits` count.
        quarantined_for: by the store's clock.
        log: one line per removed object.

    Raises:
        ContractError: the dataset is another export's; nothing was changed.
        ReadError: head and marker do not belong together; nothing was changed.
        DestinationError: the store failed, or an unmarked head misses a part and its run may be alive.
    """
    token = make_token(attempt.dagster_run_id or "no-run", attempt.partition_key, secrets.token_hex(4))
    sight, notes = settle(destination, prefix, attempt, token=token, takeover_after=settings.takeover_after, log=log)
    if notes and sight.settled and destination.head(prefix.symlink_manifest) is not None:
        write_symlink_manifest(destination, prefix)
    quarantined = list(_quarantined(destination, prefix))
    running = _running(destination, prefix, sight)
    aged: list[ObjectMeta] = []
    taken: Sequence[Manifest] = ()
    if running or quarantined:
        # A taker has a record, which says what has become of it; and only a write tells the store's time.
        draft = _draft(destination, prefix, sight, attempt=attempt, token=token)
        record = SideRecord(destination, prefix, draft, log=log)
        try:
            record.create(unfenced=settings.unsafe_unfenced_commits)
            taken, said = take_over_dead_runs(
                destination,
                prefix,
                attempt,
                token=token,
                head=sight.head,
                takeover_after=settings.takeover_after,
                log=log,
            )
            notes += said
            written = destination.head(prefix.side(token))
            if written is not None:
                aged = [found for found in quarantined if written.modified_at - found.modified_at > quarantined_for]
        finally:
            # With this, what was taken over is nobody's any more.
            record.fail()
    why = f"in quarantine for longer than {quarantined_for}"
    remove(destination, [found.key for found in aged], because=why, log=log)
    tidy(destination, prefix, sight=look(destination, prefix), token=None, retain=settings.retain, log=log)
    return Maintained(
        alive=_running(destination, prefix, sight),
        taken_over=tuple(m.run_id for m in taken),
        quarantined=len(quarantined) - len(aged),
        notes=notes,
    )


def _running(destination: ObjectDestination, prefix: Prefix, sight: Sight) -> tuple[str, ...]:
    found = records(destination, prefix, sight.head)
    return tuple(sorted(t for t, record in found.items() if record.manifest.status is Status.RUNNING))


def _quarantined(destination: ObjectDestination, prefix: Prefix) -> Iterator[ObjectMeta]:
    """What was set aside, by the names that we give; anything else that lies there is not ours."""
    for token in destination.directories(prefix.quarantined):
        directory = prefix.quarantine(token, prefix.data.removeprefix(prefix.root))
        yield from (found for found in destination.list(directory) if token_of(found.key) == token)


def _draft(destination: ObjectDestination, prefix: Prefix, sight: Sight, *, attempt: Attempt, token: str) -> Manifest:
    identity = Identity(export=attempt.export_name)
    content = Content(
        export_name=attempt.export_name,
        identity=identity,
        strategy="maintenance",
        format="parquet",
        compression="none",
        columns=(),
    )
    return Manifest(
        run_id=token,
        export_name=attempt.export_name,
        status=Status.RUNNING,
        started_at=datetime.now(timezone.utc),
        content=content,
        destination_kind=destination.kind,
        destination_uri=destination.uri(prefix.root),
        format=content.format,
        compression=content.compression,
        sequence=sight.head.sequence + 1 if sight.head else 1,
        dagster_run_id=attempt.dagster_run_id,
        partition_key=attempt.partition_key,
    )
