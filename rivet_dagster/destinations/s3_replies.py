"""What S3's replies prove, and what they mean when they are errors. Pure, but for the checksum's C code."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from rivet_dagster.contract import Checksum
from rivet_dagster.destinations.answers import BAD_CREDENTIALS, NOT_SENT, Answer
from rivet_dagster.destinations.network import no_answer

__all__ = [
    "Crc64Nvme",
    "answer_of",
    "base64_of",
    "etag_is_md5",
    "etag_of",
    "full_object_checksum",
    "status_of",
    "total_bytes",
]

_MD5 = re.compile(r"[0-9a-f]{32}")
_CONTENT_RANGE = re.compile(r"bytes .*/(\d+)")


class Crc64Nvme:
    """CRC64NVME in the interface of `hashlib`: the one checksum that S3 computes of an object as a whole."""

    def __init__(self, data: bytes = b"") -> None:
        from awscrt.checksums import crc64nvme  # noqa: PLC0415 - an SDK loads only where a destination uses it

        self._crc = crc64nvme
        self._value: int = crc64nvme(data)

    def update(self, data: Any, /) -> None:
        """Take more bytes."""
        self._value = self._crc(data, self._value)

    def digest(self) -> bytes:
        """As S3 writes it: 8 bytes, big-endian."""
        return self._value.to_bytes(8, "big")


def base64_of(digest: bytes) -> str:
    """As in S3's headers."""
    return base64.b64encode(digest).decode()


def full_object_checksum(reply: Mapping[str, Any]) -> Checksum | None:
    """The store's own checksum. Without a type it may be what we sent, said back, and proves nothing."""
    said = reply.get("ChecksumCRC64NVME")
    if said is None or reply.get("ChecksumType") != "FULL_OBJECT":
        return None
    return Checksum(kind="crc64nvme", value=base64.b64decode(said), level="s3-crc64nvme")


def etag_is_md5(reply: Mapping[str, Any], etag: str) -> bool:
    """Whether an ETag is the MD5 of what one request delivered: not of parts together, not of an encrypted object."""
    plain = reply.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in reply
    return plain and _MD5.fullmatch(etag) is not None


def etag_of(reply: Mapping[str, Any]) -> str | None:
    """The version token: without quotes, which not all stores use everywhere."""
    return str(reply.get("ETag") or "").strip('"') or None


def total_bytes(reply: Mapping[str, Any]) -> int:
    """Of the object, where the reply may be of a range of it."""
    total = _CONTENT_RANGE.fullmatch(reply.get("ContentRange") or "")
    return int(total[1]) if total else int(reply["ContentLength"])


def status_of(error: Any) -> int:
    """Of a `ClientError`."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def answer_of(error: Exception) -> Answer | None:
    """What an error of botocore says; `None` if it is not one of botocore or the network."""
    from botocore import exceptions as sdk  # noqa: PLC0415 - as above
    from botocore import parsers  # noqa: PLC0415 - as above

    if isinstance(error, sdk.ClientError):
        said = error.response.get("Error", {})
        return Answer(status=status_of(error), code=said.get("Code", ""), text=said.get("Message", ""))
    lost = (
        sdk.ConnectionError,
        sdk.HTTPClientError,
        sdk.IncompleteReadError,
        sdk.FlexibleChecksumError,
        parsers.ResponseParserError,
        ConnectionError,
        TimeoutError,
    )
    if isinstance(error, lost):
        return no_answer(error)
    credentials = (
        sdk.NoCredentialsError,
        sdk.PartialCredentialsError,
        sdk.CredentialRetrievalError,
        sdk.TokenRetrievalError,
        sdk.NoAuthTokenError,
        sdk.SSOError,
        sdk.LoginError,
        sdk.RefreshWithMFAUnsupportedError,
    )
    if isinstance(error, credentials):
        return Answer(code=BAD_CREDENTIALS, failure=type(error).__name__)
    return Answer(code=NOT_SENT, failure=type(error).__name__) if isinstance(error, sdk.BotoCoreError) else None
