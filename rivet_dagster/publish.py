"""Steps 5 and 6 of a commit: swap the head, then the marker, and settle what is refused or gets no answer."""

from __future__ import annotations

from rivet_dagster.contract import ABSENT, ObjectDestination
from rivet_dagster.control import swap
from rivet_dagster.errors import CommitConflict, CommitUnknown, DestinationError, ReadError
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import fingerprint, marker_body
from rivet_dagster.readback import Sight, deliveries, look

__all__ = ["ProvenConflict", "look_again", "mark", "swap_head", "won_by", "write_symlink_manifest"]

_ROUNDS = 5


class ProvenConflict(CommitConflict):
    """A different head is there, so that this attempt's request can no longer land: its objects may be removed."""


def swap_head(destination: ObjectDestination, prefix: Prefix, token: str, body: bytes, *, seen: Sight) -> None:
    """Step 5: `manifest.json` := the final bytes, over the head that was seen at the start.

    Raises:
        ProvenConflict: another head is there.
        CommitUnknown: no answer; the request may still land.
    """
    if swap(destination, prefix.manifest, body, expect=seen.expect_head) is not None:
        return
    now = look_again(destination, prefix)
    if not now.head_reaches(token):
        raise ProvenConflict(won_by(destination, prefix, now))


def mark(destination: ObjectDestination, prefix: Prefix, token: str, body: bytes, *, seen: Sight) -> None:
    """Step 6, the commit point: `_SUCCESS` := the fingerprint of `body`, over the marker that was seen at the start.

    Raises:
        ProvenConflict: the head no longer reaches this attempt.
        CommitConflict: the same, after readers could follow our marker: what is there is the next run's to clean.
        CommitUnknown: no answer, and reading back did not settle it.
    """
    expect = seen.expect_marker
    for _ in range(_ROUNDS):
        marked = swap(destination, prefix.marker, marker_body(fingerprint(body)), expect=expect) is not None
        now = look_again(destination, prefix)
        if not now.head_reaches(token):
            raise (CommitConflict if marked else ProvenConflict)(won_by(destination, prefix, now))
        if now.marker_reaches(token):
            return
        expect = now.expect_marker
    msg = f"{destination.uri(prefix.marker)}: the marker kept changing; run again, it is safe"
    raise CommitUnknown(msg)


def write_symlink_manifest(destination: ObjectDestination, prefix: Prefix) -> None:
    """List the URIs of the dataset's parts. What is expected there is read before the head is, so a later run wins."""
    for _ in range(_ROUNDS):
        there = destination.head(prefix.symlink_manifest)
        sight = look(destination, prefix)
        whole = deliveries(destination, prefix, sight.head) if sight.head and sight.settled else ()
        body = "".join(f"{destination.uri(prefix.at(p.path))}\n" for m in whole for p in m.parts)
        expect = there.version if there else ABSENT
        if swap(destination, prefix.symlink_manifest, body.encode(), expect=expect) is not None:
            return


def look_again(destination: ObjectDestination, prefix: Prefix) -> Sight:
    """Read head and marker back.

    Raises:
        CommitUnknown: that failed.
    """
    try:
        return look(destination, prefix)
    except (DestinationError, ReadError) as e:
        msg = f"{destination.uri(prefix.root)}: looking again failed ({e}); run again, it is safe"
        raise CommitUnknown(msg) from e


def won_by(destination: ObjectDestination, prefix: Prefix, now: Sight) -> str:
    """Name the winner of a conflict."""
    winner = f"{now.head.run_id} (Dagster run {now.head.dagster_run_id})" if now.head else "nothing: it was removed"
    where = destination.uri(prefix.manifest)
    return f"{where}: expected the head that was there at the start, found {winner}; nothing of this run is visible"
