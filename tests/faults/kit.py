"""What the seam's tests share: rows without a database, a store that fails on purpose, and a look behind its back."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import xxhash

from rivet_dagster.commit import Attempt, CommitSettings, ExportReceipt, commit_export
from rivet_dagster.contract import (
    Body,
    EncodedPart,
    Expect,
    ObjectDestination,
    ObjectMeta,
    Staged,
    StoredObject,
    WriteOutcome,
)
from rivet_dagster.errors import DestinationError, NoAnswer, PreconditionFailed
from rivet_dagster.layout import Prefix
from rivet_dagster.manifest import Column, Content, Dataset, Identity, Manifest

LOG = logging.getLogger("tests.faults")
PREFIX = Prefix("orders/")
ROWS_PER_PART = 10


class Killed(BaseException):
    """The process is gone: nothing that follows has any effect."""


@dataclass
class Rows:
    """An extraction of ready-made bodies, `ROWS_PER_PART` rows each."""

    bodies: Sequence[bytes]
    dataset: Dataset = Dataset.SNAPSHOT
    export: str = "orders"
    skip_empty: bool = False
    gates: Sequence[Callable[[], None]] = ()
    before_part: Callable[[int], None] = lambda _n: None
    suffix: str = ".csv"
    parallel: int = 1
    resume: Any = None
    closed: int = 0

    @property
    def content(self) -> Content:
        return Content(
            export_name=self.export,
            identity=Identity(export=self.export, database="shop", relation="public.orders"),
            dataset=self.dataset,
            engine="postgresql",
            table="orders",
            format="csv",
            compression="none",
            columns=(Column(name="id", type="int64", source_type="bigint", nullable=False),),
        )

    def parts(self, stage: Callable[[], Staged]) -> Iterator[EncodedPart]:
        written = threading.Event()
        for n, body in enumerate(self.bodies):
            if n:
                # So that a test knows what is at the store: uploads run beside the encoding.
                assert written.wait(60), f"part {n} was never written"
            written = threading.Event()
            self.before_part(n)
            staged = _telling(stage(), written)
            half = len(body) // 2
            staged.write(body[:half])
            staged.write(body[half:])
            staged.close()
            yield EncodedPart(staged=staged, rows=ROWS_PER_PART)
        assert not self.bodies or written.wait(60)
        self.before_part(len(self.bodies))

    def counters(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        self.closed += 1


def _telling(staged: Any, written: threading.Event) -> Staged:
    """Tell when a part has been written, or given up: the seam discards what is staged then."""
    discard = staged.discard

    def discarded() -> None:
        discard()
        written.set()

    staged.discard = discarded
    return staged


def export(
    destination: ObjectDestination,
    rows: Rows,
    *,
    run_id: str = "run-1",
    lineage: frozenset[str] | None = None,
    over: Sequence[str] = (),
    partition_key: str | None = None,
    settings: CommitSettings | None = None,
    prefix: Prefix = PREFIX,
) -> ExportReceipt:
    """One run of the seam as orchestration would start it."""
    return commit_export(
        destination,
        prefix=prefix,
        attempt=Attempt(
            export_name=rows.export,
            dagster_run_id=run_id,
            lineage=frozenset({run_id}) if lineage is None else lineage,
            partition_key=partition_key,
            is_over=lambda other: other in over,
        ),
        plan=lambda _committed: rows,
        settings=settings or CommitSettings(),
        log=LOG,
    )


@dataclass
class Trouble:
    """At the nth call that matches, something goes wrong.

    `when` is "before" or "after" the call took effect, "late" (a write that is applied by `FaultyStore.release`), or
    "dead": from there on every call of every kind raises `error`, before its effect ("dead") or after ("dead-after").
    """

    when: str
    nth: int = 1
    operation: str | None = None
    key: Callable[[str], bool] = lambda _key: True
    error: type[BaseException] = NoAnswer
    times: int = 1
    changes_only: bool = False
    seen: int = 0

    def strikes(self, operation: str, key: str) -> bool:
        if self.changes_only and operation not in ("write", "remove", "discard"):
            return False
        if self.operation not in (None, operation) or not self.key(key):
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


@dataclass
class FaultyStore(ObjectDestination):
    """A destination that fails where it is told to, and remembers the requests in their order."""

    inner: ObjectDestination
    troubles: list[Trouble] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    delayed: list[Callable[[], object]] = field(default_factory=list)
    before: Callable[[str, str], None] = lambda _operation, _key: None
    after: Callable[[str, str], None] = lambda _operation, _key: None
    dead: type[BaseException] | None = None
    struck: int = 0

    def __post_init__(self) -> None:
        self.capabilities = type(self.inner).capabilities  # type: ignore[misc]
        self.kind = type(self.inner).kind  # type: ignore[misc]

    def _call(self, operation: str, key: str, act: Callable[[], Any]) -> Any:
        if self.dead:
            raise self.dead(f"{operation} {key}: dead")
        self.calls.append((operation, key))
        self.before(operation, key)
        for trouble in self.troubles:
            if not trouble.strikes(operation, key):
                continue
            self.struck += 1
            if trouble.when.startswith("dead"):
                self.dead = trouble.error
            if trouble.when in ("after", "dead-after"):
                act()
            if trouble.when == "late" and operation == "write":
                self.delayed.append(act)
            raise trouble.error(f"{operation} {key}: made to fail {trouble.when}")
        try:
            return act()
        finally:
            self.after(operation, key)

    def release(self) -> list[str]:
        """Let the delayed writes reach the store, in order; those whose precondition no longer holds do nothing."""
        outcome = []
        for act in self.delayed:
            try:
                act()
                outcome.append("applied")
            except PreconditionFailed:
                outcome.append("refused")
        self.delayed.clear()
        return outcome

    def uri(self, key: str = "") -> str:
        return self.inner.uri(key)

    def stage(self, key: str) -> Staged:
        return self.inner.stage(key)

    def write(self, key: str, body: Body | bytes, *, md5: bytes, expect: Expect) -> WriteOutcome:
        return self._call("write", key, lambda: self.inner.write(key, body, md5=md5, expect=expect))

    def head(self, key: str) -> ObjectMeta | None:
        return self._call("head", key, lambda: self.inner.head(key))

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> StoredObject | None:
        return self._call("read", key, lambda: self.inner.read(key, start=start, length=length))

    def directories(self, directory: str) -> Iterator[str]:
        return self._call("directories", directory, lambda: iter(list(self.inner.directories(directory))))

    def list(self, directory: str) -> Iterator[ObjectMeta]:
        return iter(self._call("list", directory, lambda: [*self.inner.list(directory)]))

    def move(self, source: str, target: str) -> None:
        self._call("move", source, lambda: self.inner.move(source, target))

    def remove(self, key: str) -> None:
        self._call("remove", key, lambda: self.inner.remove(key))

    def unfinished(self, key_prefix: str) -> Iterator[str]:
        return iter(self._call("unfinished", key_prefix, lambda: [*self.inner.unfinished(key_prefix)]))

    def discard_unfinished(self, key_prefix: str) -> None:
        self._call("discard", key_prefix, lambda: self.inner.discard_unfinished(key_prefix))

    def hold(self, directory: str) -> AbstractContextManager[None]:
        return self.inner.hold(directory)


def is_head(key: str) -> bool:
    return key.endswith("/manifest.json")


def is_marker(key: str) -> bool:
    return key.endswith("_SUCCESS")


def is_side(key: str) -> bool:
    return "/manifest-" in key


def is_part(key: str) -> bool:
    return "/data/part-" in key


def followed(raw: Mapping[str, bytes], root: str = "orders/") -> list[dict[str, Any]] | None:
    """The manifests that a reader follows, the oldest first, from nothing but raw objects."""
    marker = raw.get(f"{root}_SUCCESS")
    if marker is None:
        return None
    said = marker.decode().removesuffix("\n")
    head = raw[f"{root}manifest.json"]
    body = head
    if fingerprint(head) != said:
        previous = json.loads(head)["previous"]
        assert previous["fingerprint"] == said, "the marker names neither the head nor its previous"
        body = raw[f"{root}manifest-{previous['run_id']}.json"]
        assert fingerprint(body) == said, "the copy of the marker's manifest differs from it"
    chain: list[dict[str, Any]] = [json.loads(body)]
    while chain[-1]["dataset"] == "append" and chain[-1].get("previous"):
        copy = raw[f"{root}manifest-{chain[-1]['previous']['run_id']}.json"]
        assert fingerprint(copy) == chain[-1]["previous"]["fingerprint"]
        chain.append(json.loads(copy))
    return chain[::-1]


def read_as_a_reader(raw: Mapping[str, bytes], root: str = "orders/") -> list[bytes] | None:
    """The dataset's parts as a reader gets them; asserts all that a reader may rely on."""
    chain = followed(raw, root)
    if chain is None:
        return None
    out = []
    for manifest in chain:
        assert manifest["status"] == "success"
        assert manifest["row_count"] == sum(p["rows"] for p in manifest["parts"])
        for part in manifest["parts"]:
            data = raw[f"{root}{part['path']}"]
            assert len(data) == part["size_bytes"]
            assert base64.b64encode(hashlib.md5(data).digest()).decode() == part["content_md5"]
            assert fingerprint(data) == part["content_fingerprint"]
            out.append(data)
    return out


def fingerprint(body: bytes) -> str:
    return f"xxh3:{xxhash.xxh3_64_hexdigest(body)}"


def litter(raw: Mapping[str, bytes], root: str = "orders/") -> list[str]:
    """Objects of the prefix that neither the head's chain nor the layout accounts for."""
    head = json.loads(raw[f"{root}manifest.json"])
    known = {f"{root}manifest.json", f"{root}_SUCCESS", f"{root}.rivet.lock"}
    manifest: dict[str, Any] | None = head
    while manifest:
        known |= {f"{root}manifest-{manifest['run_id']}.json"} | {f"{root}{p['path']}" for p in manifest["parts"]}
        link = manifest.get("previous") if manifest["dataset"] == "append" else None
        manifest = json.loads(raw[f"{root}manifest-{link['run_id']}.json"]) if link else None
    return sorted(k for k in raw if k.startswith(root) and k not in known)


def manifest_of(receipt: ExportReceipt) -> Manifest:
    assert receipt.manifest is not None
    return receipt.manifest


__all__ = [
    "LOG",
    "PREFIX",
    "DestinationError",
    "FaultyStore",
    "Killed",
    "Rows",
    "Trouble",
    "export",
    "followed",
    "is_head",
    "is_marker",
    "is_part",
    "is_side",
    "litter",
    "manifest_of",
    "read_as_a_reader",
]
