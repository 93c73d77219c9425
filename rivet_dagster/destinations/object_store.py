"""What S3, GCS and Azure Blob Storage share: everything but the requests themselves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

from rivet_dagster.contract import (
    Body,
    DestinationCapabilities,
    Expect,
    ObjectDestination,
    ObjectMeta,
    Staged,
    StoredObject,
    WriteCommitProtocol,
    WriteOutcome,
)
from rivet_dagster.destinations.answers import Answer, as_error
from rivet_dagster.destinations.bodies import as_body, checked
from rivet_dagster.destinations.keys import directory_segments, key_segments
from rivet_dagster.destinations.receipts import Receipt, verified
from rivet_dagster.destinations.staging import Hasher, StagedFile, os_failure
from rivet_dagster.errors import (
    ConfigError,
    DestinationError,
    IntegrityError,
    NoAnswer,
    PreconditionFailed,
    RivetError,
)

__all__ = ["MIB", "ObjectStoreDestination"]

MIB = 1 << 20
_LONGEST_NAME = 1024


class ObjectStoreDestination(ObjectDestination):
    """A bucket or container. An object is there when its upload is finished, and never in part.

    No request is repeated here: that is the client's setting, and the caller's decision. May be used from several
    threads, as far as the client may.
    """

    capabilities: ClassVar[DestinationCapabilities] = DestinationCapabilities(
        commit_protocol=WriteCommitProtocol.FINALIZE_ON_CLOSE,
        idempotent_overwrite=True,
        retry_safe=True,
        partial_write_risk=False,
    )
    scheme: ClassVar[str]

    def __init__(
        self,
        *,
        container: str,
        prefix: str,
        endpoint: str,
        single_put_bytes: int,
        part_bytes: int,
        page_size: int | None,
        spool_directory: str | None,
    ) -> None:
        """See the subclasses, which also give `endpoint`: host and port, for messages.

        Raises:
            ConfigError: no container, or a prefix that is no directory. No request was made.
        """
        if not container or "/" in container:
            msg = f"{self.kind}: {container!r} is no bucket or container; expected its name alone"
            raise ConfigError(msg)
        directory = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
        try:
            directory_segments(directory)
        except DestinationError as e:
            msg = f"{self.kind}: the prefix {prefix!r} cannot be used: {e}"
            raise ConfigError(msg) from e
        if single_put_bytes < 0 or part_bytes < 1:
            msg = f"{self.kind}: single_put_bytes {single_put_bytes} and part_bytes {part_bytes} must be positive"
            raise ConfigError(msg)
        self._container = container
        self._prefix = directory
        self._endpoint = endpoint
        self._single_put_bytes = single_put_bytes
        self._part_bytes = part_bytes
        self._page_size = page_size
        self._spool_directory = spool_directory
        self._container_seen = False

    def uri(self, key: str = "") -> str:
        """`<scheme>://<bucket or container>/<prefix><key>`."""
        return f"{self.scheme}://{self._container}/{self._prefix}{key}"

    def stage(self, key: str) -> Staged:
        """A nameless temporary on this machine; the store hears nothing of it."""
        self._name(key)
        return StagedFile.spool(key, directory=self._spool_directory, hashers=self._hashers())

    def write(self, key: str, body: Body | bytes, *, md5: bytes, expect: Expect) -> WriteOutcome:
        """Upload in one request, or in parts where a body is larger than that; a few parts are in memory at a time.

        Bytes always go in one request. Length and MD5 are checked before what finishes the upload is sent.
        """
        name, source = self._name(key), as_body(body)
        size = source.size_bytes
        with self._asking("write", key):
            if isinstance(body, bytes) or size <= self._single_put_bytes:
                data = b"".join(checked(key, source, md5=md5, step=size + 1))
                receipt = self._put(name, data, md5=md5, expect=expect)
            else:
                step = self._part_size(size)
                pieces = checked(key, source, md5=md5, step=step)
                receipt = self._put_in_parts(name, pieces, step=step, size_bytes=size, md5=md5, expect=expect)
            seen = self._head(name) if receipt.size_bytes is None else None
        return verified(receipt, seen, uri=self.uri(key), size_bytes=size, digests={"md5": md5})

    def head(self, key: str) -> ObjectMeta | None:
        """One request."""
        name = self._name(key)
        with self._asking("look at", key):
            return self._head(name)

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> StoredObject | None:
        """The whole answer is held in memory."""
        name = self._name(key)
        if start < 0 or (length is not None and length < 0):
            msg = f"{self.uri(key)}: cannot read {length} bytes from {start}; expected no negative number"
            raise DestinationError(msg)
        with self._asking("read", key):
            return self._get(name, start, length)

    def list(self, directory: str) -> Iterator[ObjectMeta]:
        """Page by page, as it is iterated; with a delimiter, so that the store itself leaves deeper ones out."""
        directory_segments(directory)
        return self._listing(directory)

    def directories(self, directory: str) -> Iterator[str]:
        """What the store itself puts together up to the next `/`, page by page."""
        directory_segments(directory)
        return self._directories(directory)

    def move(self, source: str, target: str) -> None:
        """Copy inside the store, then remove the source; after a failure in between both are there.

        The target is created, never replaced, as far as the store can promise it; the source is removed in the
        version that was copied.
        """
        source_name, target_name = self._name(source), self._name(target)
        with self._asking(f"move {self.uri(source)} to", target):
            found = self._head(source_name)
            if found is None:
                msg = f"{self.uri(source)}: expected an object to move to {target}, found none"
                raise DestinationError(msg)
            if self._head(target_name) is not None:
                msg = f"{self.uri(target)}: expected no object before {source} is moved there, found one"
                raise PreconditionFailed(msg)
            self._copy(source_name, target_name, found)
            self._delete(source_name, found.version)

    def remove(self, key: str) -> None:
        """One request."""
        name = self._name(key)
        with self._asking("remove", key):
            self._delete(name, None)

    def unfinished(self, key_prefix: str) -> Iterator[str]:
        """Nothing, where a store cannot list it (GCS sessions, Azure blocks): it drops them itself after a week."""
        self._name_prefix(key_prefix)
        return iter(())

    def discard_unfinished(self, key_prefix: str) -> None:
        """Do nothing where nothing can be listed."""
        self._name_prefix(key_prefix)

    @abstractmethod
    def _put(self, name: str, data: bytes, *, md5: bytes, expect: Expect) -> Receipt:
        """Create or replace an object in one request."""

    @abstractmethod
    def _put_in_parts(
        self, name: str, pieces: Iterable[bytes], *, step: int, size_bytes: int, md5: bytes, expect: Expect
    ) -> Receipt:
        """Create or replace an object from pieces of `step` bytes; left in any other way, there is none."""

    @abstractmethod
    def _head(self, name: str) -> ObjectMeta | None: ...

    @abstractmethod
    def _get(self, name: str, start: int, length: int | None) -> StoredObject | None: ...

    @abstractmethod
    def _page_through(self, name_prefix: str) -> Iterator[ObjectMeta]:
        """List up to the next `/`."""

    @abstractmethod
    def _page_through_directories(self, name_prefix: str) -> Iterator[str]:
        """List what goes on behind the next `/`, each with that slash."""

    @abstractmethod
    def _copy(self, source: str, target: str, found: ObjectMeta) -> None:
        """Copy the version that was found; an existing target is a failed precondition where the store can tell."""

    @abstractmethod
    def _delete(self, name: str, version: str | None) -> None:
        """Remove an object, in this version only where one is given; an absent one is no error."""

    @abstractmethod
    def _answer(self, error: Exception) -> Answer | None:
        """What the SDK's error says; `None` if it is no error of the SDK or the network."""

    def _hashers(self) -> Mapping[str, Hasher]:
        """What to hash while staging, besides MD5, because the store computes it too."""
        return {}

    def _part_size(self, size_bytes: int) -> int:
        """For a body of this size; a store limits the number of parts."""
        del size_bytes
        return self._part_bytes

    def _name(self, key: str) -> str:
        """The object's own name.

        Raises:
            DestinationError: it is no key. No request was made.
        """
        key_segments(key)
        name = f"{self._prefix}{key}"
        if len(name.encode()) > _LONGEST_NAME:
            msg = (
                f"{key!r} is too long below {self.uri()}: a name has at most {_LONGEST_NAME} bytes; shorten the prefix"
            )
            raise DestinationError(msg)
        return name

    def _name_prefix(self, key_prefix: str) -> str:
        if not key_prefix or key_prefix.endswith("/"):
            directory_segments(key_prefix)
            return f"{self._prefix}{key_prefix}"
        return self._name(key_prefix)

    def _key(self, name: str) -> str:
        return name[len(self._prefix) :]

    def _listing(self, directory: str) -> Iterator[ObjectMeta]:
        whole = f"{self._prefix}{directory}"
        with self._asking("list", directory):
            for found in self._page_through(whole):
                # Consoles make an empty object of the directory's own name to show it.
                if found.key and not found.key.endswith("/"):
                    yield found

    def _directories(self, directory: str) -> Iterator[str]:
        whole = f"{self._prefix}{directory}"
        with self._asking("list", directory):
            for found in self._page_through_directories(whole):
                if name := found[len(whole) :].rstrip("/"):
                    yield name

    def _require_container(self) -> None:
        """Tell a missing container from a missing object where the same answer means both; asked once."""
        if not self._container_seen:
            next(self._page_through(self._prefix), None)
            self._container_seen = True

    def _unclear(self, name: str, found: str) -> NoAnswer:
        """For a reply that came and does not say what it must."""
        return NoAnswer(
            f"{self.uri(self._key(name))}: {self._endpoint} {found}; "
            "the request may or may not have been applied: look at the object, then repeat it"
        )

    def _damaged(self, name: str, found: str) -> IntegrityError:
        """For a store that says it received something else, before anything was published."""
        return IntegrityError(f"{self.uri(self._key(name))}: {found}; nothing was published, write again")

    @contextmanager
    def _asking(self, doing: str, key: str) -> Iterator[None]:
        """Turn what the SDK raises into errors of ours."""
        try:
            yield
        except RivetError:
            raise
        except Exception as error:
            answer = self._answer(error)
            if answer is not None:
                # Not chained: an SDK's own text and traceback may show a signed URL.
                raise as_error(answer, doing=doing, uri=self.uri(key), endpoint=self._endpoint) from None
            if isinstance(error, OSError):
                raise os_failure(error, doing=f"read what is staged for {key!r}", where=self.uri(key)) from error
            raise
