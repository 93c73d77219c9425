"""What a destination promises, and the types that cross layers (ADR-0004).

A destination declares its promises in data; whoever plans or recovers reads them without knowing which store it
is. `Destination` stages and writes. `ObjectDestination` also lists, reads, heads, moves and removes, and is what
every destination is whose commit protocol leaves objects at rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, BinaryIO, ClassVar, Protocol, runtime_checkable

__all__ = [
    "ABSENT",
    "ANY",
    "Body",
    "Checksum",
    "Destination",
    "DestinationCapabilities",
    "EncodedPart",
    "Expect",
    "ObjectDestination",
    "ObjectMeta",
    "Precondition",
    "Staged",
    "StoredObject",
    "WriteCommitProtocol",
    "WriteOutcome",
]


class WriteCommitProtocol(str, Enum):
    """When a write is durably committed and visible to readers."""

    ATOMIC = "Atomic"
    FINALIZE_ON_CLOSE = "FinalizeOnClose"
    STREAMING = "Streaming"

    @property
    def leaves_objects_at_rest(self) -> bool:
        """Whether something can be looked at after the write: no manifest, marker or cursor exists without it."""
        match self:
            case WriteCommitProtocol.ATOMIC | WriteCommitProtocol.FINALIZE_ON_CLOSE:
                return True
            case WriteCommitProtocol.STREAMING:
                return False


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationCapabilities:
    """What a write to one destination promises. No defaults: forgetting a promise is a TypeError.

    Attributes:
        commit_protocol: when a write is committed; decides whether manifest, marker and cursor exist at all.
        idempotent_overwrite: one part's upload may be repeated under its own name.
        retry_safe: a failed export may be repeated without cleaning up by hand.
        partial_write_risk: a failed write may have been seen in part, under its own name.
    """

    commit_protocol: WriteCommitProtocol
    idempotent_overwrite: bool
    retry_safe: bool
    partial_write_risk: bool


class Precondition(Enum):
    """What must hold at a key for a write to happen, where it is not one version."""

    ABSENT = "absent"
    ANY = "any"


ABSENT = Precondition.ABSENT
ANY = Precondition.ANY
Expect = Precondition | str
"""`ABSENT`, `ANY`, or the version token that the key must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """What a store computed over an object, never what it echoes.

    Attributes:
        kind: the digest, a key of `Staged.digests`: "md5", "crc32c", "crc64nvme" or "sha256".
        value: its raw bytes.
        level: how a part verified by it is recorded, e.g. "s3-crc64nvme".
    """

    kind: str
    value: bytes
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOutcome:
    """What the store says about a finished write.

    Attributes:
        size_bytes: of the object as stored.
        version: token of the version just written; `None` only where nothing is at rest.
        checksum: the store's own, `None` where it reports none.
        level: how a write is recorded whose `checksum` is `None`: "size", or the name of a per-request check.
    """

    size_bytes: int
    version: str | None
    checksum: Checksum | None = None
    level: str = "size"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """One object as its store describes it.

    Attributes:
        key: relative to the destination, as given to `write`.
        size_bytes: of the object as stored.
        version: token to be used as `expect`.
        modified_at: by the store's clock, with a time zone.
        checksum: the store's own, `None` where it reports none.
    """

    key: str
    size_bytes: int
    version: str
    modified_at: datetime
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object, or the range of it that was asked for, with the description of the same version."""

    meta: ObjectMeta
    body: bytes


@runtime_checkable
class Body(Protocol):
    """Bytes of a known length that can be read again from the start."""

    @property
    def size_bytes(self) -> int:
        """How many bytes `open` yields; fewer or more is an error of the write."""
        ...

    def open(self) -> BinaryIO:
        """Read from the first byte."""
        ...


class Staged(Body, Protocol):
    """A part being encoded: a writable binary file that hashes as it is written, then a `Body`.

    `digests` is complete after `close`: raw bytes by kind, at least "md5" and "xxh3" (8 bytes, big-endian).
    """

    @property
    def key(self) -> str:
        """Where it will be written."""
        ...

    @property
    def digests(self) -> Mapping[str, bytes]:
        """Of all bytes written, by kind."""
        ...

    @property
    def closed(self) -> bool:
        """Whether encoding has ended."""
        ...

    def write(self, data: Any, /) -> int:
        """Append."""
        ...

    def tell(self) -> int:
        """Bytes written so far."""
        ...

    def flush(self) -> None:
        """Hand buffered bytes to the operating system; no durability is promised."""
        ...

    def close(self) -> None:
        """End encoding; the digests and the size are final."""
        ...

    def discard(self) -> None:
        """Remove what is staged. May be called at any time and again; a written object is not touched."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPart:
    """A closed staged part.

    Attributes:
        staged: its bytes.
        rows: how many rows it holds, at least one.
        key_range: the half-open key range it covers, where known.
        order: its place among the export's parts, whichever is finished first.
        last: whether no row of its range, or of the export, follows.
    """

    staged: Staged
    rows: int
    key_range: Mapping[str, Any] | None = None
    order: tuple[int, ...] = (0, 0)
    last: bool = False


class Destination(ABC):
    """A place that exports are written to.

    Keys are relative, `/`-separated and below the destination's own prefix; a key that leads out of it (`..`,
    absolute, empty segment, NUL) is a `DestinationError` before anything is touched.
    """

    capabilities: ClassVar[DestinationCapabilities]
    kind: ClassVar[str]

    @abstractmethod
    def uri(self, key: str = "") -> str:
        """Where `key` is, for people and for the manifest. Holds no secret."""

    @abstractmethod
    def stage(self, key: str) -> Staged:
        """A file to encode into, not visible under `key` before `write`; the bytes of a stream leave as they come."""

    @abstractmethod
    def write(self, key: str, body: Body | bytes, *, md5: bytes, expect: Expect) -> WriteOutcome:
        """Write all of `body` to `key` by this destination's commit protocol.

        Args:
            key: where to.
            body: what `stage` gave, any other body, or bytes of a control object.
            md5: the raw digest that the body must have.
            expect: what must hold at `key`.

        Raises:
            PreconditionFailed: `expect` does not hold; nothing was written.
            NoAnswer: it may or may not have been, or be, applied.
            IntegrityError: body, declared digest and stored bytes disagree. Where the store found out, nothing is
                there; where this side did, the object just written is there and is the caller's to remove.
            DestinationError: the store failed. What is left behind is what `capabilities` says, no more.
        """


class ObjectDestination(Destination):
    """A destination whose objects stay and can be looked at."""

    @abstractmethod
    def head(self, key: str) -> ObjectMeta | None:
        """Describe an object; `None` where there is none. Any other failure is raised."""

    @abstractmethod
    def read(self, key: str, *, start: int = 0, length: int | None = None) -> StoredObject | None:
        """Bytes `start` to `start + length` (or the end) of one version; `None` where there is no object."""

    @abstractmethod
    def list(self, directory: str) -> Iterator[ObjectMeta]:
        """The objects directly in a directory (`""` or ending in `/`), and in no other that begins alike; any order.

        Temporaries and unfinished uploads are not among them.
        """

    @abstractmethod
    def directories(self, directory: str) -> Iterator[str]:
        """The names of the directories directly in one, at least of those with objects below them; any order."""

    @abstractmethod
    def move(self, source: str, target: str) -> None:
        """Move an object; it counts as modified. An existing target is a `PreconditionFailed`, no source an error."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""

    @abstractmethod
    def unfinished(self, key_prefix: str) -> Iterator[str]:
        """Name, for `discard_unfinished` and people, what unfinished writes left for keys that begin so."""

    @abstractmethod
    def discard_unfinished(self, key_prefix: str) -> None:
        """Discard what `unfinished` names. Where a store cannot (Azure blocks), nothing happens."""

    def hold(self, directory: str) -> AbstractContextManager[None]:
        """Keep others from writing a directory's control objects for a moment, where it can; only local needs that."""
        del directory
        return nullcontext()

    def forget(self, directory: str) -> None:
        """Leave no trace of a directory that only this destination has used, and whose objects are removed."""
