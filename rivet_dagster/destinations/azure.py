"""Azure Blob Storage."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from rivet_dagster.contract import ABSENT, ANY, Checksum, Expect, ObjectMeta, StoredObject
from rivet_dagster.destinations.answers import BAD_CREDENTIALS, OTHER_BYTES, Answer
from rivet_dagster.destinations.network import no_answer, reasons, shown_host
from rivet_dagster.destinations.object_store import MIB, ObjectStoreDestination
from rivet_dagster.destinations.receipts import Receipt

__all__ = ["AzureDestination"]

_MAX_BLOCKS = 50_000
_OUT_OF_RANGE = 416
_COPY_POLL_S = 1.0
_COPY_POLLS = 600


class AzureDestination(ObjectStoreDestination):
    """A container behind an azure-storage-blob service client.

    Every request carries the MD5 of its bytes, which the service checks. Of what one request wrote the service
    keeps its own MD5, which is compared; of blocks it keeps none, so no MD5 is set there either: it would be a
    label of ours that the service never checked, and look like proof to whoever reads it. (What another tool wrote
    in blocks may carry such a label, and cannot be told apart.)
    Blocks that were never committed are invisible, cannot be discarded, and are dropped by the service after a week.
    """

    kind: ClassVar[str] = "azure"
    scheme: ClassVar[str] = "az"

    def __init__(
        self,
        client: Any,
        *,
        container: str,
        prefix: str = "",
        single_put_bytes: int = 16 * MIB,
        part_bytes: int = 16 * MIB,
        page_size: int | None = None,
        spool_directory: str | None = None,
    ) -> None:
        """Take a client; no request is made.

        Args:
            client: a `BlobServiceClient`; its credential, timeouts and retries are used as they are.
            container: it must exist.
            prefix: the directory that keys are relative to.
            single_put_bytes: bodies up to this size are sent in one request, if the client's own
                `max_single_put_size` (64 MiB) allows it.
            part_bytes: of a block; grows where 50,000 blocks would not do.
            page_size: of listings; `None`: the service's own.
            spool_directory: where parts are staged; `None`: the system's temporary directory.

        Raises:
            ConfigError: one of them cannot be used.
        """
        super().__init__(
            container=container,
            prefix=prefix,
            endpoint=shown_host(f"//{client.primary_hostname}"),
            single_put_bytes=single_put_bytes,
            part_bytes=part_bytes,
            page_size=page_size,
            spool_directory=spool_directory,
        )
        self._blobs = client.get_container_client(container)

    def _part_size(self, size_bytes: int) -> int:
        return max(self._part_bytes, -(-size_bytes // _MAX_BLOCKS))

    def _put(self, name: str, data: bytes, *, md5: bytes, expect: Expect) -> Receipt:
        del md5
        in_blocks = []
        reply = self._blobs.get_blob_client(name).upload_blob(
            data,
            length=len(data),
            overwrite=True,
            validate_content=True,
            max_concurrency=1,
            # A client set to smaller requests sends blocks all the same; the MD5 in that answer is of their list.
            raw_response_hook=lambda exchange: in_blocks.append("comp=blocklist" in exchange.http_request.url),
            **_condition(expect),
        )
        said = reply.get("content_md5")
        if any(in_blocks) or not said:
            return Receipt(version=self._version(name, reply), level="azure-block-md5" if any(in_blocks) else "size")
        return Receipt(version=self._version(name, reply), checksum=_azure_md5(said))

    def _put_in_parts(
        self, name: str, pieces: Iterable[bytes], *, step: int, size_bytes: int, md5: bytes, expect: Expect
    ) -> Receipt:
        from azure.storage.blob import BlobBlock, BlockState  # noqa: PLC0415 - the SDK loads only where it is used

        del step, size_bytes, md5
        blob = self._blobs.get_blob_client(name)
        # Another writer of the same key stages blocks beside ours: the names must not meet.
        mine, blocks = secrets.token_hex(8), []
        for number, piece in enumerate(pieces):
            block_id = f"{mine}-{number:06d}"
            blob.stage_block(block_id, piece, length=len(piece), validate_content=True)
            blocks.append(BlobBlock(block_id, state=BlockState.UNCOMMITTED))
        reply = blob.commit_block_list(blocks, validate_content=True, **_condition(expect))
        return Receipt(version=self._version(name, reply), level="azure-block-md5")

    def _head(self, name: str) -> ObjectMeta | None:
        from azure.core.exceptions import ResourceNotFoundError  # noqa: PLC0415 - as above

        try:
            return self._meta(self._blobs.get_blob_client(name).get_blob_properties())
        except ResourceNotFoundError as e:
            _require_container(e)
            return None

    def _get(self, name: str, start: int, length: int | None) -> StoredObject | None:
        from azure.core.exceptions import HttpResponseError, ResourceNotFoundError  # noqa: PLC0415 - as above

        meta = None
        if length != 0:
            try:
                stream = self._blobs.get_blob_client(name).download_blob(
                    start or None if length is None else start, length, max_concurrency=1
                )
                # The SDK holds all its requests to the version that the first one met.
                body = stream.readall()
            except ResourceNotFoundError as e:
                _require_container(e)
                return None
            except HttpResponseError as e:
                if e.status_code != _OUT_OF_RANGE:
                    raise
            else:
                total = int(stream.properties.content_range.rpartition("/")[2])
                return StoredObject(meta=self._meta(stream.properties, size_bytes=total), body=body)
        meta = self._head(name)
        return None if meta is None else StoredObject(meta=meta, body=b"")

    def _page_through(self, name_prefix: str) -> Iterator[ObjectMeta]:
        from azure.storage.blob import BlobProperties  # noqa: PLC0415 - as above

        for item in self._walk(name_prefix):
            # Accounts with a hierarchical namespace show directories as blobs.
            if isinstance(item, BlobProperties) and (item.metadata or {}).get("hdi_isfolder") != "true":
                yield self._meta(item)

    def _page_through_directories(self, name_prefix: str) -> Iterator[str]:
        from azure.storage.blob import BlobPrefix  # noqa: PLC0415 - as above

        yield from (item.name for item in self._walk(name_prefix) if isinstance(item, BlobPrefix))

    def _walk(self, name_prefix: str) -> Iterator[Any]:
        found: Iterator[Any] = self._blobs.walk_blobs(
            name_starts_with=name_prefix or None, include=["metadata"], delimiter="/", results_per_page=self._page_size
        )
        return found

    def _copy(self, source: str, target: str, found: ObjectMeta) -> None:
        from azure.core import MatchConditions  # noqa: PLC0415 - as above

        copy = self._blobs.get_blob_client(target)
        status = copy.start_copy_from_url(
            self._blobs.get_blob_client(source).url,
            source_etag=f'"{found.version}"',
            source_match_condition=MatchConditions.IfNotModified,
            **_condition(ABSENT),
        )["copy_status"]
        for _ in range(_COPY_POLLS):
            if status != "pending":
                break
            time.sleep(_COPY_POLL_S)
            status = copy.get_blob_properties().copy.status
        if status != "success":
            raise self._unclear(target, f"says that the copy is {status}")

    def _delete(self, name: str, version: str | None) -> None:
        from azure.core.exceptions import ResourceNotFoundError  # noqa: PLC0415 - as above

        try:
            self._blobs.get_blob_client(name).delete_blob(**_condition(ANY if version is None else version))
        except ResourceNotFoundError as e:
            _require_container(e)

    def _version(self, name: str, reply: Any) -> str:
        """The entity tag without quotes: listings give it so, requests want them."""
        etag = str(reply.get("etag") or "").strip('"')
        if not etag:
            raise self._unclear(name, "answered without an ETag")
        return etag

    def _meta(self, found: Any, *, size_bytes: int | None = None) -> ObjectMeta:
        said = found.content_settings.content_md5
        return ObjectMeta(
            key=self._key(found.name),
            size_bytes=found.size if size_bytes is None else size_bytes,
            version=self._version(found.name, found),
            modified_at=found.last_modified,
            checksum=_azure_md5(said) if said else None,
        )

    def _answer(self, error: Exception) -> Answer | None:
        from azure.core import exceptions as sdk  # noqa: PLC0415 - as above
        from urllib3.exceptions import LocationParseError  # noqa: PLC0415 - as above

        # The SDK stumbles over some error bodies, after it has understood the status.
        said = next((r for r in reasons(error) if isinstance(r, sdk.HttpResponseError) and r.status_code), None)
        if said is not None:
            return Answer(status=said.status_code, code=_code(said), text=str(said.message))
        if isinstance(error, sdk.AzureError) and str(error).startswith("MD5 mismatch"):
            # The SDK compares what the service answers to a request that carried an MD5.
            return Answer(code=OTHER_BYTES)
        if isinstance(error, sdk.ClientAuthenticationError):
            return Answer(code=BAD_CREDENTIALS, failure=type(error).__name__)
        # The SDK lets the HTTP library's own word on an address through, which repeats it.
        known = (sdk.AzureError, LocationParseError, ConnectionError, TimeoutError)
        return no_answer(error) if isinstance(error, known) else None


def _condition(expect: Expect) -> dict[str, Any]:
    from azure.core import MatchConditions  # noqa: PLC0415 - as above

    if expect is ANY:
        return {}
    if expect is ABSENT:
        return {"match_condition": MatchConditions.IfMissing}
    return {"etag": f'"{expect}"', "match_condition": MatchConditions.IfNotModified}


def _azure_md5(said: bytes) -> Checksum:
    return Checksum(kind="md5", value=bytes(said), level="azure-md5")


def _require_container(error: Any) -> None:
    """A missing object is no error; a missing container is."""
    if _code(error) != "BlobNotFound":
        raise error


def _code(error: Any) -> str:
    """The service's word; an enumeration where the SDK knows it."""
    code = getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))
