"""Google Cloud Storage."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, ClassVar

from rivet_dagster.contract import ABSENT, ANY, Checksum, Expect, ObjectMeta, StoredObject
from rivet_dagster.destinations.answers import BAD_CREDENTIALS, NO_REPLY, Answer
from rivet_dagster.destinations.network import no_answer, shown_host
from rivet_dagster.destinations.object_store import MIB, ObjectStoreDestination
from rivet_dagster.destinations.receipts import Receipt
from rivet_dagster.errors import ConfigError

__all__ = ["GCSDestination"]

# The SDK sends larger bodies in an upload session, whatever it is asked.
_MAX_SINGLE_PUT_BYTES = 8 * MIB
_QUANTUM_BYTES = 256 << 10
_NO_GENERATION = 1
_LAST_GENERATION = (1 << 63) - 1
# The service takes about one update of an object per second, so two would do there.
_READ_ATTEMPTS = 20


class GCSDestination(ObjectStoreDestination):
    """A bucket behind a google-cloud-storage client.

    Every upload names the MD5 that it must have, which the service checks before it publishes; the MD5 that the
    service itself reports is compared. Larger bodies go through an upload session, which is finished only by its
    last byte and dropped by the service a week after it was left.
    """

    kind: ClassVar[str] = "gcs"
    scheme: ClassVar[str] = "gs"

    def __init__(
        self,
        client: Any,
        *,
        bucket: str,
        prefix: str = "",
        single_put_bytes: int = _MAX_SINGLE_PUT_BYTES,
        part_bytes: int = 16 * MIB,
        page_size: int | None = None,
        spool_directory: str | None = None,
        timeout_s: float = 60.0,
        retries: bool = True,
    ) -> None:
        """Take a client; no request is made.

        Args:
            client: google-cloud-storage's; its credentials and endpoint are used as they are.
            bucket: it must exist.
            prefix: the directory that keys are relative to.
            single_put_bytes: bodies up to this size are sent in one request; at least 8 MiB is taken.
            part_bytes: of an upload session's requests, a multiple of 256 KiB.
            page_size: of listings; `None`: the service's own.
            spool_directory: where parts are staged; `None`: the system's temporary directory.
            timeout_s: for connecting, and for each wait for the service to go on. This SDK takes it, and `retries`,
                with each request, where others have them set at the client.
            retries: whether the SDK repeats requests that failed in passing, for two minutes at most.

        Raises:
            ConfigError: one of them cannot be used.
        """
        from google.cloud.storage.retry import DEFAULT_RETRY  # noqa: PLC0415 - the SDK loads only where it is used

        if part_bytes % _QUANTUM_BYTES:
            msg = f"gcs: part_bytes is {part_bytes}; the service takes multiples of {_QUANTUM_BYTES} bytes"
            raise ConfigError(msg)
        super().__init__(
            container=bucket,
            prefix=prefix,
            endpoint=shown_host(client.api_endpoint),
            single_put_bytes=max(single_put_bytes, _MAX_SINGLE_PUT_BYTES),
            part_bytes=part_bytes,
            page_size=page_size,
            spool_directory=spool_directory,
        )
        self._client = client
        self._bucket = client.bucket(bucket)
        self._sending = {"timeout": timeout_s, "retry": DEFAULT_RETRY if retries else None}

    def _put(self, name: str, data: bytes, *, md5: bytes, expect: Expect) -> Receipt:
        return self._upload(name, io.BytesIO(data), step=None, size_bytes=len(data), md5=md5, expect=expect)

    def _put_in_parts(
        self, name: str, pieces: Iterable[bytes], *, step: int, size_bytes: int, md5: bytes, expect: Expect
    ) -> Receipt:
        # Not the SDK's writer: as a context manager it publishes what it has when it is left by an error.
        return self._upload(name, _Pieces(pieces), step=step, size_bytes=size_bytes, md5=md5, expect=expect)

    def _upload(
        self, name: str, body: Any, *, step: int | None, size_bytes: int, md5: bytes, expect: Expect
    ) -> Receipt:
        blob = self._bucket.blob(name, chunk_size=step)
        blob.md5_hash = base64.b64encode(md5).decode()
        # `checksum=None`: the service checks the MD5 above; the SDK, when it finds a difference, removes whatever
        # is at that name by then.
        blob.upload_from_file(body, size=size_bytes, checksum=None, **_condition(expect), **self._sending)
        if blob.generation is None or blob.size is None:
            raise self._unclear(name, "answered without a generation and a size")
        return Receipt(version=str(blob.generation), size_bytes=int(blob.size), checksum=_checksum(blob))

    def _head(self, name: str) -> ObjectMeta | None:
        from google.api_core.exceptions import NotFound  # noqa: PLC0415 - as above

        blob = self._bucket.blob(name)
        try:
            blob.reload(**self._sending)
        except NotFound:
            self._require_container()
            return None
        return self._meta(blob)

    def _get(self, name: str, start: int, length: int | None) -> StoredObject | None:
        from google.api_core.exceptions import NotFound  # noqa: PLC0415 - as above

        for _ in range(_READ_ATTEMPTS):
            meta = self._head(name)
            if meta is None:
                return None
            last = meta.size_bytes - 1 if length is None else min(start + length, meta.size_bytes) - 1
            if last < start:
                return StoredObject(meta=meta, body=b"")
            try:
                body = self._bucket.blob(name, generation=int(meta.version)).download_as_bytes(
                    start=start or None,
                    end=None if last == meta.size_bytes - 1 else last,
                    raw_download=True,
                    **self._sending,
                )
            except NotFound:
                # Replaced since it was looked at.
                continue
            return StoredObject(meta=meta, body=body)
        raise self._unclear(name, "lost each version while it was being read")

    def _page_through(self, name_prefix: str) -> Iterator[ObjectMeta]:
        yield from map(self._meta, self._blobs_at(name_prefix))

    def _page_through_directories(self, name_prefix: str) -> Iterator[str]:
        found = self._blobs_at(name_prefix)
        for _page in found.pages:
            pass
        # Gathered from all pages.
        yield from sorted(found.prefixes)

    def _blobs_at(self, name_prefix: str) -> Any:
        return self._client.list_blobs(
            self._bucket, prefix=name_prefix, delimiter="/", page_size=self._page_size, **self._sending
        )

    def _copy(self, source: str, target: str, found: ObjectMeta) -> None:
        generation = int(found.version)
        origin, copy, token = self._bucket.blob(source, generation=generation), self._bucket.blob(target), None
        while True:
            token, _, _ = copy.rewrite(
                origin, token=token, if_generation_match=0, if_source_generation_match=generation, **self._sending
            )
            if token is None:
                return

    def _delete(self, name: str, version: str | None) -> None:
        from google.api_core.exceptions import NotFound  # noqa: PLC0415 - as above

        try:
            self._bucket.blob(name).delete(**({} if version is None else _condition(version)), **self._sending)
        except NotFound:
            self._require_container()

    def _meta(self, blob: Any) -> ObjectMeta:
        if blob.generation is None or blob.size is None or blob.updated is None:
            raise self._unclear(blob.name, "described it without generation, size or time")
        return ObjectMeta(
            key=self._key(blob.name),
            size_bytes=int(blob.size),
            version=str(blob.generation),
            modified_at=blob.updated,
            checksum=_checksum(blob),
        )

    def _answer(self, error: Exception) -> Answer | None:
        import google.auth.exceptions as auth  # noqa: PLC0415 - as above
        import requests  # noqa: PLC0415 - as above
        import urllib3.exceptions as http  # noqa: PLC0415 - as above
        from google.api_core import exceptions as api  # noqa: PLC0415 - as above
        from google.cloud.storage import exceptions as storage  # noqa: PLC0415 - as above

        failure = type(error).__name__
        if isinstance(error, api.RetryError) and isinstance(error.cause, Exception):
            return self._answer(error.cause)
        if isinstance(error, api.GoogleAPICallError):
            return _said(error)
        if isinstance(error, (storage.DataCorruption, storage.InvalidResponse)):
            return Answer(code=NO_REPLY, failure=failure)
        if isinstance(error, auth.GoogleAuthError) and not isinstance(error, auth.TransportError):
            return Answer(code=BAD_CREDENTIALS, failure=failure)
        lost = (requests.RequestException, http.HTTPError, auth.TransportError, ConnectionError, TimeoutError)
        return no_answer(error) if isinstance(error, (*lost, json.JSONDecodeError)) else None


class _Pieces:
    """Pieces as the SDK reads a file: one per call, of just the size it asks for."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._at = 0

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        del size
        piece = next(self._pieces, b"")
        self._at += len(piece)
        return piece


def _condition(expect: Expect) -> dict[str, int]:
    if expect is ANY:
        return {}
    if expect is ABSENT:
        return {"if_generation_match": 0}
    # What is no generation matches none; a request is made all the same, so that the service decides.
    token = str(expect)
    known = token.isascii() and token.isdecimal() and 0 < int(token) <= _LAST_GENERATION
    return {"if_generation_match": int(token) if known else _NO_GENERATION}


def _checksum(blob: Any) -> Checksum | None:
    """The service's own: of a composed object it has no MD5."""
    if blob.md5_hash:
        return Checksum(kind="md5", value=base64.b64decode(blob.md5_hash), level="gcs-md5")
    if blob.crc32c:
        return Checksum(kind="crc32c", value=base64.b64decode(blob.crc32c), level="gcs-crc32c")
    return None


def _said(error: Any) -> Answer:
    """The service's words, without the URL that the SDK puts before them: it may name an upload session."""
    status, text, reason = int(error.code), "", ""
    # Proxies and emulators answer in other forms, too.
    with suppress(ValueError, AttributeError, TypeError, LookupError):
        said = error.response.json()["error"]
        text = str(said["message"])
        reason = str(said["errors"][0]["reason"])
    return Answer(status=status, code=reason, text=text)
