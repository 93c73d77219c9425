"""Amazon S3, and what speaks its protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, ClassVar

from rivet_dagster.contract import ABSENT, ANY, Checksum, Expect, ObjectMeta, StoredObject
from rivet_dagster.destinations.answers import Answer
from rivet_dagster.destinations.network import shown_host
from rivet_dagster.destinations.object_store import MIB, ObjectStoreDestination
from rivet_dagster.destinations.receipts import Receipt
from rivet_dagster.destinations.s3_multipart import MultipartUploads
from rivet_dagster.destinations.s3_replies import (
    Crc64Nvme,
    answer_of,
    base64_of,
    etag_is_md5,
    etag_of,
    full_object_checksum,
    status_of,
    total_bytes,
)
from rivet_dagster.destinations.staging import Hasher
from rivet_dagster.errors import ConfigError, DestinationError

__all__ = ["S3Destination"]

_MIN_PART_BYTES = 5 * MIB
_MAX_PARTS = 10_000
_MAX_COPY_BYTES = 5 << 30
_NOT_FOUND, _OUT_OF_RANGE, _NOT_IMPLEMENTED = 404, 416, 501


class S3Destination(ObjectStoreDestination):
    """A bucket behind a boto3 S3 client.

    Parts are checked by the store on arrival (Content-MD5 and CRC64NVME), and its own full-object CRC64NVME is
    compared. A store that reports none is taken at the MD5 that its ETag is: of the object written in one request,
    or of each part as it arrived; never for objects encrypted by KMS or a customer's key, whose ETag is no MD5.
    """

    kind: ClassVar[str] = "s3"
    scheme: ClassVar[str] = "s3"

    def __init__(
        self,
        client: Any,
        *,
        bucket: str,
        prefix: str = "",
        single_put_bytes: int = 16 * MIB,
        part_bytes: int = 16 * MIB,
        page_size: int | None = None,
        spool_directory: str | None = None,
    ) -> None:
        """Take a client; no request is made.

        Args:
            client: boto3's; its region, credentials, endpoint, timeouts and retries are used as they are.
            bucket: it must exist.
            prefix: the directory that keys are relative to.
            single_put_bytes: bodies up to this size are sent in one request.
            part_bytes: of an upload in parts, at least 5 MiB; grows where 10,000 parts would not do.
            page_size: of listings; `None`: the store's own.
            spool_directory: where parts are staged; `None`: the system's temporary directory.

        Raises:
            ConfigError: one of them cannot be used.
        """
        if part_bytes < _MIN_PART_BYTES:
            msg = f"s3: part_bytes is {part_bytes}; S3 takes parts of at least {_MIN_PART_BYTES} bytes"
            raise ConfigError(msg)
        super().__init__(
            container=bucket,
            prefix=prefix,
            endpoint=shown_host(client.meta.endpoint_url),
            single_put_bytes=single_put_bytes,
            part_bytes=part_bytes,
            page_size=page_size,
            spool_directory=spool_directory,
        )
        self._client = client
        self._uploads = MultipartUploads(
            client=client, bucket=bucket, page_size=page_size, unclear=self._unclear, damaged=self._damaged
        )

    def unfinished(self, key_prefix: str) -> Iterator[str]:
        """Open multipart uploads, as `<key>?uploadId=<id>`; the id alone opens nothing."""
        name_prefix = self._name_prefix(key_prefix)

        def names() -> Iterator[str]:
            with self._asking("list the open uploads of", key_prefix):
                for name, upload_id in self._uploads.open(name_prefix):
                    yield f"{self._key(name)}?uploadId={upload_id}"

        return names()

    def discard_unfinished(self, key_prefix: str) -> None:
        """Abort open multipart uploads; one that was finished or aborted meanwhile is no error."""
        name_prefix = self._name_prefix(key_prefix)
        with self._asking("abort the open uploads of", key_prefix):
            for name, upload_id in [*self._uploads.open(name_prefix)]:
                self._uploads.abort(name, upload_id)

    def _hashers(self) -> Mapping[str, Hasher]:
        return {"crc64nvme": Crc64Nvme()}

    def _part_size(self, size_bytes: int) -> int:
        return max(self._part_bytes, -(-size_bytes // _MAX_PARTS))

    def _put(self, name: str, data: bytes, *, md5: bytes, expect: Expect) -> Receipt:
        crc = Crc64Nvme(data).digest()
        reply = self._client.put_object(
            **self._at(name),
            Body=data,
            ContentMD5=base64_of(md5),
            ChecksumCRC64NVME=base64_of(crc),
            **_condition(expect),
        )
        etag = self._etag(name, reply)
        checksum = full_object_checksum(reply)
        if checksum is None and etag_is_md5(reply, etag):
            checksum = Checksum(kind="md5", value=bytes.fromhex(etag), level="etag-md5")
        return Receipt(version=etag, checksum=checksum, sent={"crc64nvme": crc})

    def _put_in_parts(
        self, name: str, pieces: Iterable[bytes], *, step: int, size_bytes: int, md5: bytes, expect: Expect
    ) -> Receipt:
        del step, md5
        return self._uploads.send(name, pieces, size_bytes=size_bytes, condition=_condition(expect))

    def _head(self, name: str) -> ObjectMeta | None:
        try:
            reply = self._client.head_object(**self._at(name), ChecksumMode="ENABLED")
        except self._client.exceptions.ClientError as e:
            if status_of(e) != _NOT_FOUND:
                raise
            self._require_container()
            return None
        return self._meta(name, reply, size_bytes=reply["ContentLength"])

    def _get(self, name: str, start: int, length: int | None) -> StoredObject | None:
        if length == 0:
            meta = self._head(name)
            return None if meta is None else StoredObject(meta=meta, body=b"")
        try:
            reply = self._client.get_object(**self._at(name), **_range(start, length))
        except self._client.exceptions.NoSuchKey:
            return None
        except self._client.exceptions.ClientError as e:
            if status_of(e) != _OUT_OF_RANGE:
                raise
            meta = self._head(name)
            return None if meta is None else StoredObject(meta=meta, body=b"")
        # Not `with reply["Body"]`: that gives the raw stream, which checks neither length nor digest.
        with closing(reply["Body"]) as stream:
            body = stream.read()
        return StoredObject(meta=self._meta(name, reply, size_bytes=total_bytes(reply)), body=body)

    def _page_through(self, name_prefix: str) -> Iterator[ObjectMeta]:
        for page in self._pages(name_prefix):
            for found in page.get("Contents", ()):
                yield self._meta(found["Key"], found, size_bytes=found["Size"])

    def _page_through_directories(self, name_prefix: str) -> Iterator[str]:
        for page in self._pages(name_prefix):
            yield from (found["Prefix"] for found in page.get("CommonPrefixes", ()))

    def _pages(self, name_prefix: str) -> Iterator[Mapping[str, Any]]:
        pages: Iterator[Mapping[str, Any]] = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._container, Prefix=name_prefix, Delimiter="/", PaginationConfig={"PageSize": self._page_size}
        )
        return pages

    def _copy(self, source: str, target: str, found: ObjectMeta) -> None:
        if found.size_bytes > _MAX_COPY_BYTES:
            msg = (
                f"{self.uri(found.key)}: holds {found.size_bytes} bytes, S3 copies at most {_MAX_COPY_BYTES} in one "
                "request; move it by hand"
            )
            raise DestinationError(msg)
        self._client.copy_object(
            **self._at(target),
            CopySource=self._at(source),
            CopySourceIfMatch=f'"{found.version}"',
            IfNoneMatch="*",
        )

    def _delete(self, name: str, version: str | None) -> None:
        if version is not None:
            try:
                self._client.delete_object(**self._at(name), IfMatch=f'"{version}"')
                return
            except self._client.exceptions.ClientError as e:
                # Many stores have no conditional removal; 404: gone already.
                if status_of(e) == _NOT_FOUND:
                    return
                if status_of(e) != _NOT_IMPLEMENTED:
                    raise
        self._client.delete_object(**self._at(name))

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._container, "Key": name}

    def _etag(self, name: str, reply: Mapping[str, Any]) -> str:
        etag = etag_of(reply)
        if etag is None:
            raise self._unclear(name, "answered without an ETag")
        return etag

    def _meta(self, name: str, reply: Mapping[str, Any], *, size_bytes: int) -> ObjectMeta:
        return ObjectMeta(
            key=self._key(name),
            size_bytes=size_bytes,
            version=self._etag(name, reply),
            modified_at=reply["LastModified"],
            checksum=full_object_checksum(reply),
        )

    def _answer(self, error: Exception) -> Answer | None:
        return answer_of(error)


def _condition(expect: Expect) -> dict[str, str]:
    if expect is ANY:
        return {}
    return {"IfNoneMatch": "*"} if expect is ABSENT else {"IfMatch": f'"{expect}"'}


def _range(start: int, length: int | None) -> dict[str, str]:
    if not start and length is None:
        return {}
    return {"Range": f"bytes={start}-{'' if length is None else start + length - 1}"}
