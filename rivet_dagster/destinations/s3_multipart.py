"""S3's uploads in parts: each ends completed or aborted, whatever happens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rivet_dagster.destinations.receipts import Receipt
from rivet_dagster.destinations.s3_replies import Crc64Nvme, base64_of, etag_is_md5, etag_of, full_object_checksum
from rivet_dagster.errors import IntegrityError, NoAnswer

__all__ = ["MultipartUploads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MultipartUploads:
    """Those of one bucket.

    Attributes:
        client: boto3's.
        bucket: its name.
        page_size: of listings; `None`: the store's own.
        unclear: makes the error for a reply that does not say what it must: (name, what it lacks).
        damaged: makes the error for a part that arrived changed: (name, what was found).
    """

    client: Any
    bucket: str
    page_size: int | None
    unclear: Callable[[str, str], NoAnswer]
    damaged: Callable[[str, str], IntegrityError]

    def send(self, name: str, pieces: Iterable[bytes], *, size_bytes: int, condition: dict[str, str]) -> Receipt:
        """Upload the pieces as one object, under a condition that is checked when it is completed.

        Left in any other way the upload is aborted, after a lost answer to its completion too: either that has
        happened, or it must not happen later.
        """
        upload_id: str | None = None
        try:
            upload_id = self._begin(name)
            whole, parts, all_compared = Crc64Nvme(), [], True
            for number, piece in enumerate(pieces, start=1):
                whole.update(piece)
                part, compared = self._send_part(name, upload_id, number, piece)
                parts.append(part)
                all_compared &= compared
            reply = self.client.complete_multipart_upload(
                Bucket=self.bucket,
                Key=name,
                UploadId=upload_id,
                MultipartUpload={"Parts": parts},
                ChecksumCRC64NVME=base64_of(whole.digest()),
                ChecksumType="FULL_OBJECT",
                MpuObjectSize=size_bytes,
                **condition,
            )
            version = etag_of(reply)
            if version is None:
                raise self.unclear(name, "answered without an ETag")  # noqa: TRY301 - leaves by the same way
            return Receipt(
                version=version,
                checksum=full_object_checksum(reply),
                level="s3-part-md5" if all_compared else "size",
                sent={"crc64nvme": whole.digest()},
            )
        except BaseException:
            # What fails here must not hide why; `discard_unfinished` is the second chance.
            with suppress(Exception):
                self._discard(name, upload_id)
            raise

    def open(self, name_prefix: str) -> Iterator[tuple[str, str]]:
        """Name and id of each upload that is neither completed nor aborted."""
        pages = self.client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self.bucket, Prefix=name_prefix, PaginationConfig={"PageSize": self.page_size}
        )
        for page in pages:
            for upload in page.get("Uploads", ()):
                yield upload["Key"], upload["UploadId"]

    def abort(self, name: str, upload_id: str) -> None:
        """Abort one; it is no error if it is not open any more."""
        with suppress(self.client.exceptions.NoSuchUpload):
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=name, UploadId=upload_id)

    def _begin(self, name: str) -> str:
        reply = self.client.create_multipart_upload(
            Bucket=self.bucket, Key=name, ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT"
        )
        upload_id: str | None = reply.get("UploadId")
        if upload_id is None:
            raise self.unclear(name, "answered without an upload id")
        return upload_id

    def _send_part(self, name: str, upload_id: str, number: int, piece: bytes) -> tuple[dict[str, Any], bool]:
        """Upload one part; also say whether its ETag was an MD5, and so proved what arrived."""
        md5, crc = hashlib.md5(piece, usedforsecurity=False), base64_of(Crc64Nvme(piece).digest())
        reply = self.client.upload_part(
            Bucket=self.bucket,
            Key=name,
            UploadId=upload_id,
            PartNumber=number,
            Body=piece,
            ContentMD5=base64_of(md5.digest()),
            ChecksumCRC64NVME=crc,
        )
        etag = etag_of(reply)
        if etag is None:
            raise self.unclear(name, "answered without an ETag")
        compared = etag_is_md5(reply, etag)
        if compared and etag != md5.hexdigest():
            raise self.damaged(name, f"sent part {number} with MD5 {md5.hexdigest()}, the store received {etag}")
        return {"PartNumber": number, "ETag": f'"{etag}"', "ChecksumCRC64NVME": crc}, compared

    def _discard(self, name: str, upload_id: str | None) -> None:
        if upload_id is not None:
            self.abort(name, upload_id)
            return
        # The answer that had its id is lost. Only parts are uploaded so, and a part's key has one writer.
        for found, open_id in [*self.open(name)]:
            if found == name:
                self.abort(found, open_id)
