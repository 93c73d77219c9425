"""What a store says of a finished upload, compared with what was sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rivet_dagster.contract import Checksum, ObjectMeta, WriteOutcome
from rivet_dagster.errors import IntegrityError

__all__ = ["Receipt", "verified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A store's answer to a finished upload.

    Attributes:
        version: of the object just written.
        size_bytes: `None` where the answer does not say it: the object is then looked at.
        checksum: what the store computed, `None` where it says none.
        level: how the write was verified where `checksum` is `None`.
        sent: what was computed over the bytes that were sent, by kind, besides MD5.
    """

    version: str
    size_bytes: int | None = None
    checksum: Checksum | None = None
    level: str = "size"
    sent: Mapping[str, bytes] = field(default_factory=dict)


def verified(
    receipt: Receipt, seen: ObjectMeta | None, *, uri: str, size_bytes: int, digests: Mapping[str, bytes]
) -> WriteOutcome:
    """Hold what was sent against the receipt and, where it says too little, against what was seen afterwards.

    Args:
        receipt: the store's answer.
        seen: the object as described after the upload. Another version, or none, is another writer's doing and says
            nothing: the answer to our request still holds.
        uri: of the object.
        size_bytes: what was sent.
        digests: of what was sent, by kind.

    Raises:
        IntegrityError: they differ; the object is there.
    """
    stored, checksum = receipt.size_bytes, receipt.checksum
    if seen is not None and seen.version == receipt.version:
        stored = seen.size_bytes if stored is None else stored
        checksum = checksum or seen.checksum
    if stored is not None and stored != size_bytes:
        msg = f"{uri}: sent {size_bytes} bytes, the store holds {stored}; remove it and write again"
        raise IntegrityError(msg)
    sent = {**digests, **receipt.sent}
    if checksum is not None and sent.get(checksum.kind, checksum.value) != checksum.value:
        msg = (
            f"{uri}: sent bytes with {checksum.kind} {sent[checksum.kind].hex()}, the store holds some with "
            f"{checksum.value.hex()} ({checksum.level}); remove it and write again"
        )
        raise IntegrityError(msg)
    return WriteOutcome(size_bytes=size_bytes, version=receipt.version, checksum=checksum, level=receipt.level)
