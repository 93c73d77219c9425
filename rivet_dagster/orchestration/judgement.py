"""Judge one delivery by its own record: is what a materialization claims still there, unchanged?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rivet_dagster.contract import ObjectDestination
from rivet_dagster.errors import ReadError
from rivet_dagster.layout import MANIFEST, MARKER, Prefix, token_of
from rivet_dagster.manifest import MAX_ANCESTORS, Dataset, Manifest, fingerprint, marker_fingerprint
from rivet_dagster.readback import Fault, Sight, check_listed, deliveries, look, read_record

__all__ = ["Findings", "Look", "Verdict", "all_by_listing", "by_listing", "judge", "unknown_objects"]

_LOOKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one way to look at a delivery found.

    Attributes:
        said: what was looked at, in a few words, for a delivery without faults.
        faults: what is wrong.
        warns: what is wrong, or noted, is to be looked at, and nothing has to be stopped for it.
        unknown: paths of objects that no manifest and no attempt names, where it was looked for them; they are never
            touched.
        notes: what a person should know and is no fault.
        numbers: what was counted, as metadata.
    """

    said: str
    faults: tuple[Fault, ...] = ()
    warns: bool = False
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)


Look = Callable[[ObjectDestination, Prefix, Manifest], Findings]
"""A way to look at what a manifest claims, once it is known to be the delivery's own."""


def by_listing(destination: ObjectDestination, prefix: Prefix, manifest: Manifest) -> Findings:
    """Compare the parts with one listing and what the store says in it: no part is read."""
    return _listed(destination, prefix, [manifest])


def all_by_listing(destination: ObjectDestination, prefix: Prefix, manifest: Manifest) -> Findings:
    """As `by_listing`, with the deliveries that this one adds to: a dataset is no more whole than its oldest part."""
    broken: list[Fault] = []
    try:
        chain = deliveries(destination, prefix, manifest)
    except ReadError as e:
        broken = [Fault(path=MANIFEST, kind="manifest", expected="the deliveries that it adds to", found=str(e))]
        chain = (manifest,)
    found = _listed(destination, prefix, chain)
    return replace(found, faults=(*found.faults, *broken))


def _listed(destination: ObjectDestination, prefix: Prefix, chain: Sequence[Manifest]) -> Findings:
    parts = [part for manifest in chain for part in manifest.parts]
    unknown = unknown_objects(destination, prefix, chain[-1])
    of = f" of {len(chain)} deliveries" if len(chain) > 1 else ""
    return Findings(
        said=f"{len(parts)} part{'' if len(parts) == 1 else 's'}{of} checked",
        faults=check_listed(destination, prefix, parts),
        unknown=unknown,
        numbers={"rivet/parts_checked": len(parts), "rivet/unknown_objects": len(unknown)},
    )


def unknown_objects(destination: ObjectDestination, prefix: Prefix, manifest: Manifest) -> tuple[str, ...]:
    """Paths of objects that neither a manifest nor any attempt names, in one listing."""
    root = prefix.root
    directories = (root, prefix.data)
    paths = [m.key.removeprefix(root) for d in directories for m in destination.list(d)]
    sides = {token for p in paths if (token := token_of(p)) and p == f"manifest-{token}.json"}
    attempts = {manifest.run_id, *sides, *(a.run_id for a in manifest.ancestors)}
    named = {MANIFEST, MARKER, *(p.path for p in manifest.parts)}
    return tuple(sorted(p for p in paths if p not in named and token_of(p) not in attempts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found of one delivery.

    Attributes:
        manifest: the one that was judged; `None` where none could be, or it was superseded and is gone.
        fingerprint: of its exact bytes.
        faults: what is wrong; empty for a good delivery.
        successor: the attempt whose delivery is the head now, where that is another one.
        superseded: the successor replaced this delivery, so its parts may rightly be gone and were not looked at.
        notes: what a person should know and is no fault.
        found: of the way in which the delivery was looked at; `None` where it was not.
    """

    manifest: Manifest | None = None
    fingerprint: str | None = None
    faults: tuple[Fault, ...] = ()
    successor: str | None = None
    superseded: bool = False
    notes: tuple[str, ...] = ()
    found: Findings | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong; a superseded delivery is not wrong."""
        return not self.faults

    @property
    def unknown(self) -> tuple[str, ...]:
        """Paths of objects that no manifest and no attempt names; they are never touched."""
        return self.found.unknown if self.found is not None else ()

    @property
    def warns(self) -> bool:
        """Whether all there is to say is a warning."""
        looked = self.found
        only_looked = looked is not None and len(self.faults) == len(looked.faults)
        return self.superseded or (looked is not None and looked.warns and only_looked)


def judge(
    destination: ObjectDestination,
    prefix: Prefix,
    *,
    run_id: str | None = None,
    checksum: str | None = None,
    look_at: Look = by_listing,
) -> Verdict:
    """Look at marker and manifest, then in one of several ways at what the manifest claims.

    Args:
        destination: where.
        prefix: of the dataset.
        run_id: the delivery's, as its materialization recorded it; `None` judges whatever the head is.
        checksum: the fingerprint of its manifest, as recorded.
        look_at: the way.

    Raises:
        DestinationError: the store could not be asked, so there is no verdict.
    """
    case = _Case(destination=destination, prefix=prefix, run_id=run_id, checksum=checksum, look_at=look_at)
    for _ in range(_LOOKS):
        before, verdict = case.head(), case.judged()
        # Another run that commits meanwhile removes parts between the look at the head and the listing.
        if verdict.passed or case.head() == before:
            break
    return verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    destination: ObjectDestination
    prefix: Prefix
    run_id: str | None
    checksum: str | None
    look_at: Look

    def head(self) -> str | None:
        """The version of the head."""
        found = self.destination.head(self.prefix.manifest)
        return found.version if found else None

    def judged(self) -> Verdict:
        """By the head as it is now."""
        try:
            sight = look(self.destination, self.prefix)
        except ReadError as e:
            return self.of_torn_controls(e)
        head, run_id = sight.head, self.run_id
        if head is None:
            gone = Fault(path=MANIFEST, kind="manifest", expected=self.checksum or "a manifest", found="nothing")
            return self.of_copy(gone)
        if run_id in (None, head.run_id):
            return self.of_head(sight, head)
        # Beyond its 256 entries, what the ancestors do not name is older, not foreign.
        if not head.reaches(run_id) and len(head.ancestors) < MAX_ANCESTORS:
            found = f"{head.run_id}, which does not descend from it: an older state was restored, or a fork"
            said = f"{run_id} or a delivery after it"
            return self.of_copy(Fault(path=MANIFEST, kind="manifest", expected=said, found=found))
        return self.of_earlier(sight, head)

    def of_head(self, sight: Sight, head: Manifest) -> Verdict:
        """The delivery is the head."""
        found, expected = str(sight.head_fingerprint), self.checksum or str(sight.head_fingerprint)
        faults = []
        if found != expected:
            faults.append(Fault(path=MANIFEST, kind="manifest", expected=expected, found=found))
        if sight.marker != expected:
            faults.append(Fault(path=MARKER, kind="marker", expected=expected, found=sight.marker or "nothing"))
        # A manifest that was changed does not tell which parts there have to be.
        return self._of(head, found, *faults) if found == expected else self.of_copy(*faults)

    def of_earlier(self, sight: Sight, head: Manifest) -> Verdict:
        """The head descends from the delivery: it was replaced, added to, or its successor is being committed."""
        in_flight = sight.committed is not None and sight.committed.run_id == self.run_id
        if not in_flight and not self._still_part_of(head):
            note = f"superseded by {head.run_id}, which replaced it"
            return Verdict(successor=head.run_id, superseded=True, notes=(note,))
        said = "is being committed" if in_flight else "has added to it since"
        judged = self.of_copy()
        if judged.manifest is None:
            side = f"manifest-{self.run_id}.json"
            fault = Fault(path=side, kind="manifest", expected=str(self.checksum), found="no record with these bytes")
            judged = Verdict(faults=(fault,))
        return replace(judged, successor=head.run_id, notes=(f"{head.run_id} {said}", *judged.notes))

    def of_torn_controls(self, why: ReadError) -> Verdict:
        """Manifest and marker do not belong together, or one is unreadable: what was recorded says which."""
        stored, marked = self.destination.read(self.prefix.manifest), self.destination.read(self.prefix.marker)
        found = fingerprint(stored.body) if stored else "nothing"
        marker = marker_fingerprint(marked.body) if marked else None
        expected = self.checksum or marker or found
        faults = []
        if found != expected:
            faults.append(Fault(path=MANIFEST, kind="manifest", expected=expected, found=found))
        if marker != expected:
            named = marker or ("bytes that are no fingerprint" if marked else "nothing")
            faults.append(Fault(path=MARKER, kind="marker", expected=expected, found=named))
        if not faults:
            faults.append(Fault(path=MANIFEST, kind="manifest", expected="a readable manifest", found=str(why)))
        judged = self.of_copy(*faults)
        return replace(judged, notes=(str(why), *judged.notes))

    def of_copy(self, *faults: Fault) -> Verdict:
        """Judge the parts by the delivery's own copy of its manifest, where that is still what was recorded."""
        try:
            copy = read_record(self.destination, self.prefix, self.run_id) if self.run_id else None
        except ReadError:
            copy = None
        if copy is None or copy.fingerprint != self.checksum:
            return Verdict(faults=faults)
        return self._of(copy.manifest, copy.fingerprint, *faults)

    def _of(self, manifest: Manifest, its_fingerprint: str, *faults: Fault) -> Verdict:
        found = self.look_at(self.destination, self.prefix, manifest)
        return Verdict(
            manifest=manifest,
            fingerprint=its_fingerprint,
            faults=(*faults, *found.faults),
            notes=found.notes,
            found=found,
        )

    def _still_part_of(self, head: Manifest) -> bool:
        """Whether only appends lie between: then the dataset of the head still includes the delivery."""
        manifest = head
        while manifest.dataset is Dataset.APPEND and (link := manifest.previous):
            if link.run_id == self.run_id:
                return True
            found = read_record(self.destination, self.prefix, link.run_id)
            if found is None:
                return False
            manifest = found.manifest
        return False
