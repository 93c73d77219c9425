"""THE seam: parts → verified → manifest → `_SUCCESS`. Whatever the destination, an export becomes visible so.

The steps are those of the design's section 4: begin, parts, gates, own, swap the head, mark, clean. Before the
request that swaps the head is sent, leaving any other way aborts; from the moment it is sent, nothing of this
attempt is removed but after a proven conflict.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from itertools import count

from rivet_dagster.adoption import Adopted, adopt
from rivet_dagster.attempt import Attempt, CommitSettings, ExportReceipt, Extraction, Head, Verify
from rivet_dagster.cleaning import tidy, tidy_late
from rivet_dagster.contract import Destination, ObjectDestination, Staged
from rivet_dagster.control import SideRecord
from rivet_dagster.errors import CommitConflict, DestinationError, ReadError
from rivet_dagster.layout import Prefix, make_token
from rivet_dagster.manifest import Content, Dataset, Link, Manifest, Part, Status, fingerprint
from rivet_dagster.parts import Uploads, write_part
from rivet_dagster.publish import ProvenConflict, look_again, mark, swap_head, won_by, write_symlink_manifest
from rivet_dagster.readback import Sight, look, remove
from rivet_dagster.receipts import already_committed, receipt_for, with_rows
from rivet_dagster.recovery import settle, take_over_dead_runs
from rivet_dagster.wire import serialise

__all__ = ["Attempt", "CommitSettings", "ExportReceipt", "Extraction", "Head", "Verify", "commit_export"]

Plan = Callable[[Head | None], Extraction]


def commit_export(
    destination: Destination,
    *,
    prefix: Prefix,
    attempt: Attempt,
    plan: Plan,
    settings: CommitSettings,
    log: logging.Logger,
) -> ExportReceipt:
    """Export once, whole or not at all.

    Args:
        destination: where to.
        prefix: the dataset's own directory.
        attempt: who commits.
        plan: fixes window, schema and cursor; given the committed delivery, which is read only once.
        settings: see there.
        log: for what a person may want to know.

    Raises:
        ConfigError: the destination cannot fence commits.
        SourceError: nothing was committed; of a stream, rows may have left.
        DestinationError: see the subclasses for what is left behind.
        ContractError: nothing was committed; of a stream, rows may have left.
    """
    started = time.monotonic()
    token = make_token(attempt.dagster_run_id or "no-run", attempt.partition_key, secrets.token_hex(4))
    if isinstance(destination, ObjectDestination):
        receipt = _Commit(destination, prefix, attempt=attempt, settings=settings, log=log, token=token).run(plan)
    else:
        receipt = _stream(destination, prefix, attempt=attempt, plan=plan, token=token)
    return replace(receipt, duration_seconds=time.monotonic() - started)


def _stream(destination: Destination, prefix: Prefix, *, attempt: Attempt, plan: Plan, token: str) -> ExportReceipt:
    """Write where nothing stays at rest: no manifest, no marker, no cursor."""
    extraction = plan(None)
    numbers = count(1)
    parts: list[Part] = []
    try:
        for encoded in extraction.parts(
            lambda: destination.stage(prefix.part(token, next(numbers), extraction.suffix))
        ):
            parts.append(write_part(destination, encoded, number=len(parts) + 1, prefix=prefix, verify="store"))
        for gate in extraction.gates:
            gate()
    finally:
        extraction.close()
    receipt = receipt_for(destination, attempt, prefix, manifest=None, fingerprint=None)
    return with_rows(receipt, extraction, parts)


def _head(seen: Sight) -> Head | None:
    if seen.committed is None or seen.committed_fingerprint is None:
        return None
    return Head(manifest=seen.committed, fingerprint=seen.committed_fingerprint)


class _Commit:
    """One attempt at a destination that leaves objects at rest."""

    def __init__(
        self,
        destination: ObjectDestination,
        prefix: Prefix,
        *,
        attempt: Attempt,
        settings: CommitSettings,
        log: logging.Logger,
        token: str,
    ) -> None:
        self.destination, self.prefix, self.attempt = destination, prefix, attempt
        self.settings, self.log, self.token = settings, log, token
        self.started_at = datetime.now(timezone.utc)
        self.staged: list[str] = []
        self.notes: tuple[str, ...] = ()

    def run(self, plan: Plan) -> ExportReceipt:
        seen, self.notes = settle(
            self.destination,
            self.prefix,
            self.attempt,
            token=self.token,
            takeover_after=self.settings.takeover_after,
            log=self.log,
        )
        if found := already_committed(self.destination, self.attempt, self.prefix, seen):
            self._clean()
            return replace(found, notes=self.notes + found.notes)
        extraction = plan(_head(seen))
        try:
            return self._export(seen, extraction)
        finally:
            extraction.close()

    def _export(self, seen: Sight, extraction: Extraction) -> ExportReceipt:
        draft = self._draft(seen, extraction.content)
        record = SideRecord(self.destination, self.prefix, draft, log=self.log)
        sent = False
        try:
            adopted = self._begin(seen, record, extraction)
            parts = self._write_parts(seen, extraction, record, adopted.parts)
            for gate in extraction.gates:
                gate()
            if not parts and self._leaves_head_as_it_was(seen, extraction):
                return self._leave(seen, extraction, record)
            final = self._final(draft, seen, parts)
            body = serialise(final)
            adopted.look_again(self.destination)
            record.own(body)
            sent = True
            with self.destination.hold(self.prefix.root):
                swap_head(self.destination, self.prefix, self.token, body, seen=seen)
                mark(self.destination, self.prefix, self.token, body, seen=seen)
        except ProvenConflict as lost:
            record.retract(draft)
            self._remove_own("another run committed first")
            raise CommitConflict(str(lost)) from lost
        except BaseException as e:
            record.stop()
            if not sent and record.fail():
                self._remove_own("the attempt was aborted")
            elif not sent and record.lost:
                self._leave_to_taker(e, record)
            raise
        self._clean()
        receipt = receipt_for(
            self.destination, self.attempt, self.prefix, manifest=final, fingerprint=fingerprint(body)
        )
        return replace(with_rows(receipt, extraction, parts, more=adopted.said), notes=self.notes)

    def _begin(self, seen: Sight, record: SideRecord, extraction: Extraction) -> Adopted:
        destination, prefix, settings, log = self.destination, self.prefix, self.settings, self.log
        record.create(unfenced=settings.unsafe_unfenced_commits)
        taken, notes = take_over_dead_runs(
            destination,
            prefix,
            self.attempt,
            token=self.token,
            head=seen.head,
            takeover_after=settings.takeover_after,
            log=log,
        )
        self._tidy(seen)
        lineage = self.attempt.lineage
        adopted = adopt(destination, prefix, extraction, taken, lineage=lineage, verify=settings.verify, log=log)
        self.notes += notes + adopted.notes
        return adopted

    def _write_parts(
        self, seen: Sight, extraction: Extraction, record: SideRecord, adopted: Sequence[Part]
    ) -> tuple[Part, ...]:
        """Step 2: parts are uploaded while others are read and encoded; all are recorded here."""

        def stage() -> Staged:
            record.check()
            self._head_is_still(seen)
            key = self.prefix.part(self.token, len(self.staged) + 1, extraction.suffix)
            self.staged.append(key)
            return self.destination.stage(key)

        verify, threads = self.settings.verify, extraction.parallel
        with Uploads(self.destination, self.prefix, verify=verify, threads=threads, adopted=adopted) as uploads:
            # Closed before the rest is uploaded: the source is held no longer than it is read, and an attempt that
            # fails stages nothing more.
            with closing(extraction):
                for encoded in extraction.parts(stage):
                    record.add(uploads.add(encoded))
            return uploads.rest()

    def _head_is_still(self, seen: Sight) -> None:
        found = self.destination.head(self.prefix.manifest)
        if (found.version if found else None) != seen.head_version:
            now = look_again(self.destination, self.prefix)
            raise CommitConflict(won_by(self.destination, self.prefix, now))

    def _clean(self) -> None:
        """Whatever fails here is the next run's to finish: what is committed is committed."""
        destination, prefix = self.destination, self.prefix
        try:
            # One that is there is followed by readers, whatever is set now; what it names is removed only after it.
            if self.settings.symlink_manifest or destination.head(prefix.symlink_manifest) is not None:
                write_symlink_manifest(destination, prefix)
            self._tidy(look(destination, prefix))
        except (DestinationError, ReadError) as e:
            self.log.warning("%s: cleaning up is left to the next run: %s", destination.uri(prefix.root), e)
            self.notes += (f"cleaning up is left to the next run: {e}",)

    def _tidy(self, sight: Sight) -> None:
        retain = self.settings.retain
        tidy(self.destination, self.prefix, sight=sight, token=self.token, retain=retain, log=self.log)

    def _remove_own(self, because: str) -> None:
        try:
            remove(self.destination, self.staged, because=because, log=self.log)
            self.destination.discard_unfinished(self.prefix.parts_of(self.token))
        except DestinationError as e:
            self.log.warning("cleaning up is left to the next run: %s", e)

    def _leave_to_taker(self, error: BaseException, record: SideRecord) -> None:
        try:
            if isinstance(error, DestinationError):
                # What whoever took this attempt over has removed is missing here.
                record.check()
        finally:
            retain = self.settings.retain
            tidy_late(self.destination, self.prefix, token=self.token, retain=retain, log=self.log)

    def _leaves_head_as_it_was(self, seen: Sight, extraction: Extraction) -> bool:
        continues = extraction.content.dataset is Dataset.APPEND and seen.committed is not None
        return seen.settled and (continues or extraction.skip_empty)

    def _leave(self, seen: Sight, extraction: Extraction, record: SideRecord) -> ExportReceipt:
        if record.fail():
            remove(self.destination, [self.prefix.side(self.token)], because="no row to export", log=self.log)
        receipt = self._receipt(seen.committed, seen.committed_fingerprint)
        return replace(with_rows(receipt, extraction, ()), unchanged=True)

    def _receipt(self, manifest: Manifest | None, said: str | None) -> ExportReceipt:
        found = receipt_for(self.destination, self.attempt, self.prefix, manifest=manifest, fingerprint=said)
        return replace(found, notes=self.notes)

    def _draft(self, seen: Sight, content: Content) -> Manifest:
        base, said = seen.committed, seen.committed_fingerprint
        return Manifest(
            run_id=self.token,
            export_name=content.export_name,
            status=Status.RUNNING,
            started_at=self.started_at,
            content=content,
            destination_kind=self.destination.kind,
            destination_uri=self.destination.uri(self.prefix.root),
            format=content.format,
            compression=content.compression,
            sequence=base.sequence + 1 if base else 1,
            previous=Link(run_id=base.run_id, fingerprint=said) if base and said else None,
            ancestors=base.as_ancestors(said) if base and said else (),
            dagster_run_id=self.attempt.dagster_run_id,
            partition_key=self.attempt.partition_key,
        )

    def _final(self, draft: Manifest, seen: Sight, parts: tuple[Part, ...]) -> Manifest:
        adds = draft.dataset is Dataset.APPEND and seen.committed is not None
        previous = seen.committed.data_version if adds and seen.committed else None
        final = draft.delivered(parts, finished_at=datetime.now(timezone.utc), previous=previous)
        same = seen.committed if final.content and final.content.rewrites else None
        return final if same is None else replace(final, data_version=same.data_version)
