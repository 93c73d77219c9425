"""What a store's answer means: one table for all of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from rivet_dagster.errors import DestinationError, IntegrityError, NoAnswer, PreconditionFailed

__all__ = ["BAD_CREDENTIALS", "NOT_SENT", "NO_REPLY", "OTHER_BYTES", "UNREACHABLE", "UNTRUSTED", "Answer", "as_error"]

# What there is to say where no answer came, in place of the store's own code.
NO_REPLY = "gave no whole reply"
UNREACHABLE = "cannot be reached"
UNTRUSTED = "shows no certificate that is trusted here"
BAD_CREDENTIALS = "was shown no usable credentials"
OTHER_BYTES = "reports other bytes than were sent"
NOT_SENT = "was not asked, the request could not be built"

_SHOWN = 200
_QUERY = re.compile(r"\?\S*")
_SECRET = re.compile(r"(?i)\b(sig|signature|token|key|password|credential|authorization|upload_?id)\S*\s*[=:]\s*\S+")
_DAMAGED = re.compile(r"(?i)(md5|crc|checksum|digest|hash).*(match|mismatch)")
_REPEAT = "the request may or may not have been applied: look at the object, then repeat it"
_CREDENTIAL = "check the credential of this destination: wrong, expired, or for another account"
_PERMISSION = (
    "grant the credential permission to read, write, list and remove below the prefix "
    "(S3 answers 403 for a missing key too where s3:ListBucket is not granted)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back from a request, in no SDK's words.

    Attributes:
        status: of HTTP; `None` where no whole answer came.
        code: the store's own word, or one of the constants of this module.
        text: the store's sentence. May hold what nobody should read; never shown where credentials are at fault.
        failure: the SDK's name of it, for people.
    """

    status: int | None = None
    code: str = ""
    text: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One meaning.

    Attributes:
        statuses: that it is about, empty: any.
        codes: that it is about, empty: any.
        text: to be found in the store's sentence; `None`: any.
        error: what it is raised as.
        remedy: what to do.
        quote: whether the store's sentence helps, and can hold no secret.
    """

    error: type[DestinationError]
    remedy: str
    statuses: Collection[int | None] = ()
    codes: Collection[str] = ()
    text: re.Pattern[str] | None = None
    quote: bool = False

    def covers(self, answer: Answer) -> bool:
        return (
            (not self.statuses or answer.status in self.statuses)
            and (not self.codes or answer.code in self.codes)
            and (self.text is None or self.text.search(answer.text) is not None)
        )


# The first row that covers an answer counts.
_TABLE = (
    _Row(
        statuses=(412,),
        # A HEAD has no body, so S3 has no word for it; Google's word is not always delivered.
        codes=("PreconditionFailed", "ConditionNotMet", "TargetConditionNotMet", "conditionNotMet", "412", ""),
        error=PreconditionFailed,
        remedy="it holds another version than expected",
    ),
    _Row(
        statuses=(409,),
        codes=("BlobAlreadyExists",),
        error=PreconditionFailed,
        remedy="it exists, and was expected not to",
    ),
    _Row(
        # Of a write that expects a version; who reads or removes takes it for an absent object.
        statuses=(404,),
        codes=("NoSuchKey", "BlobNotFound"),
        error=PreconditionFailed,
        remedy="it does not exist, and was expected to",
    ),
    _Row(
        statuses=(409,),
        codes=("ConditionalRequestConflict", "OperationAborted"),
        error=NoAnswer,
        remedy="another request for the same key is being served: repeat with the same expectation",
    ),
    _Row(
        codes=("NoSuchUpload",),
        error=NoAnswer,
        remedy="completed by a request whose answer was lost, or discarded by another run: look at the object",
    ),
    _Row(
        statuses=(400,),
        codes=(
            "BadDigest",
            "InvalidDigest",
            "XAmzContentChecksumMismatch",
            "XAmzContentSHA256Mismatch",
            "Md5Mismatch",
            "Crc64Mismatch",
        ),
        error=IntegrityError,
        remedy="the bytes changed on the way and nothing was stored: repeat; if it recurs, check what is in between",
    ),
    _Row(
        statuses=(400,),
        text=_DAMAGED,
        error=IntegrityError,
        remedy="the bytes changed on the way and nothing was stored: repeat; if it recurs, check what is in between",
    ),
    _Row(statuses=(400,), codes=("RequestTimeout", "IncompleteBody"), error=NoAnswer, remedy=_REPEAT),
    _Row(
        # Stores that speak a part of the protocol refuse a header so, and nothing was applied.
        statuses=(501,),
        error=DestinationError,
        remedy="this store lacks something that commits rest on, such as conditional writes or checksums of a write; "
        "use another one",
        quote=True,
    ),
    _Row(statuses=(408, 410, 429, *range(500, 600)), error=NoAnswer, remedy=_REPEAT),
    _Row(codes=(OTHER_BYTES,), error=IntegrityError, remedy="remove the object and write it again"),
    _Row(codes=(NO_REPLY,), error=NoAnswer, remedy=_REPEAT),
    _Row(
        codes=(UNREACHABLE,),
        error=DestinationError,
        remedy="check the endpoint's host and port, its name service, and the way there",
    ),
    _Row(codes=(UNTRUSTED,), error=DestinationError, remedy="check the endpoint, and the CA bundle of this machine"),
    _Row(
        codes=(NOT_SENT,),
        error=DestinationError,
        remedy="correct the endpoint's URL (not a key or connection string) or the client's other settings",
    ),
    _Row(codes=(BAD_CREDENTIALS,), error=DestinationError, remedy=_CREDENTIAL),
    _Row(
        # Absent objects are no error, and are taken care of before.
        statuses=(404,),
        error=DestinationError,
        remedy="create the bucket or container, or correct its name",
    ),
    _Row(
        statuses=(301, 307, 308),
        error=DestinationError,
        remedy="the bucket is elsewhere: set its own region and endpoint",
    ),
    _Row(
        codes=("AccessDenied", "AllAccessDisabled", "AuthorizationPermissionMismatch", "forbidden"),
        error=DestinationError,
        remedy=_PERMISSION,
    ),
    _Row(
        codes=("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "RequestTimeTooSkewed"),
        error=DestinationError,
        remedy=f"{_CREDENTIAL}; check this machine's clock too",
    ),
    _Row(
        # A HEAD has no body: this is all that S3 says of a token that has expired meanwhile.
        statuses=(400,),
        codes=("400",),
        error=DestinationError,
        remedy=f"{_CREDENTIAL} or region (of an expired token there is no other word where an object is looked at)",
    ),
    _Row(statuses=(401,), error=DestinationError, remedy=_CREDENTIAL),
    _Row(statuses=(403,), error=DestinationError, remedy=f"{_CREDENTIAL}; or {_PERMISSION}"),
    _Row(error=DestinationError, remedy="see the store's own documentation of this answer", quote=True),
)


def as_error(answer: Answer, *, doing: str, uri: str, endpoint: str) -> DestinationError:
    """Say what could not be done, where, what was answered, and the remedy; without any secret.

    Args:
        answer: what came back.
        doing: a verb, as after "cannot".
        uri: of the object.
        endpoint: host and port of the store, nothing else of its address.
    """
    row = next(row for row in _TABLE if row.covers(answer))
    found = f"{endpoint} answered {answer.status} {answer.code}".rstrip() if answer.status else answer.code
    if answer.status is None:
        found = f"{endpoint} {answer.code} ({answer.failure})" if answer.failure else f"{endpoint} {answer.code}"
    if row.quote and answer.text:
        found = f"{found}: {_shown(answer.text)}"
    return row.error(f"{uri}: cannot {doing}: {found}; {row.remedy}")


def _shown(text: str) -> str:
    """The first line, without queries and anything that looks like a secret."""
    line = next(iter(text.strip().splitlines()), "")
    return _SECRET.sub("…", _QUERY.sub("?…", line))[:_SHOWN]
