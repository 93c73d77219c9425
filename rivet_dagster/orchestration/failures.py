"""How an error becomes Dagster's: whether a policy may repeat the step, what a person reads, and that no secret leaves.

A plain raise leaves it to the user's `RetryPolicy` whether and how often the step runs again; `dg.Failure` with
`allow_retries=False` says that it would fail again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from rivet_dagster.contract import DestinationCapabilities
from rivet_dagster.errors import CommitConflict, CommitUnknown, DestinationError, RivetError, SourceError

__all__ = [
    "LeftOut",
    "as_dagster_failure",
    "exports_failure",
    "leave_out_foreign_texts",
    "left_behind",
    "masked",
    "masked_urls",
    "may_be_repeated",
    "partitions_failure",
    "text_of",
]

_NAMES = (
    r"(?:account_?key|access_?key|private_?key|api_?key|secret|passw|pwd|token|signature|shared_?access|credential"
    r"|\bsig|\bsas)"
)
_URL_MASKS = (
    # A password may hold slashes; what follows a port is none. A container of Azure stands where a user would.
    (re.compile(r"(?<=://)[^\s/:@'\"]*:(?!\d+(?:[/\s]|$))[^\s'\"]*@"), "***@"),
    (re.compile(r"(?<!abfss://)(?<=://)[^\s/]*@"), "***@"),
    (re.compile(r"\?[^\s?'\"]*=[^\s'\"]*"), "?***"),
)
_MASKS = (
    # Where a URL was expected there may have been a key or a connection string; a host with dots is none.
    (re.compile(r"(?i)\b(invalid (?:endpoint|url)\s*:\s*)(?!https?://(?:$|localhost|[\w-]+\.[\w.-]+))\S.*"), r"\1***"),
    *_URL_MASKS,
    (re.compile(r"(?i)\b(authorization\s*[=:]\s*\w+\s+)[^\s'\"]+"), r"\1***"),
    (re.compile(rf"(?i)({_NAMES}\w*['\"]?\s*(?:[=:]|%3d)\s*['\"]?)[^\s;&'\"]+"), r"\1***"),
)


class LeftOut(Exception):
    """Stands in an error's chain for one of a driver or SDK, whose text may hold a secret; keeps its traceback."""


def as_dagster_failure(error: RivetError, *, capabilities: DestinationCapabilities | None, uri: str) -> Exception:
    """What to raise for an error, from `None`: its own chain is kept, without the texts of drivers and SDKs.

    Args:
        error: of this package.
        capabilities: of the destination, for what is left there; `None` where nothing was written.
        uri: of the prefix.
    """
    leave_out_foreign_texts(error)
    if may_be_repeated(error):
        return error
    said = {"rivet/error": type(error).__name__, "dagster/uri": uri}
    if capabilities is not None:
        said["rivet/left_behind"] = left_behind(error, capabilities)
    failure = dg.Failure(description=str(error), metadata=said, allow_retries=False)
    failure.__cause__ = error
    return failure


def may_be_repeated(error: RivetError) -> bool:
    """Whether the same step may succeed when it runs again."""
    if isinstance(error, SourceError):
        return error.transient
    return isinstance(error, DestinationError)


def left_behind(error: RivetError, capabilities: DestinationCapabilities) -> str:
    """What a failed export leaves at its destination, for a person."""
    if isinstance(error, CommitUnknown):
        return "the delivery is visible, or may become so; nothing was deleted; run it again, the next run settles it"
    if isinstance(error, CommitConflict):
        return "nothing of this run is visible; the other run's delivery is"
    if capabilities.partial_write_risk:
        return "part of the output may have been seen; there is nothing to roll back"
    if isinstance(error, DestinationError):
        return "readers see the previous delivery, if any; the next run finishes or removes what this one left"
    return "nothing of this run is visible; the previous delivery, if any, is untouched"


def partitions_failure(
    errors: Mapping[str | None, RivetError], *, of: int, capabilities: DestinationCapabilities, uri: str
) -> Exception:
    """What to raise when some partitions of one step failed and the others are committed.

    Args:
        errors: by partition key.
        of: how many partitions there were.
        capabilities: of the destination.
        uri: of the asset.
    """
    if len(errors) == of == 1:
        return as_dagster_failure(next(iter(errors.values())), capabilities=capabilities, uri=uri)
    return _some_failed(errors, of=of, what="partitions", capabilities=capabilities, uri=uri)


def exports_failure(
    errors: Mapping[str, Exception], *, of: int, capabilities: DestinationCapabilities, uri: str
) -> Exception:
    """What to raise when some exports of one step failed and the others are committed.

    Args:
        errors: by export; one that is not of this package may pass when the step is repeated.
        of: how many exports there were.
        capabilities: of the destination.
        uri: where all of them are.
    """
    first = next(iter(errors.values()))
    if len(errors) == of == 1 and isinstance(first, RivetError):
        return as_dagster_failure(first, capabilities=capabilities, uri=uri)
    return _some_failed(errors, of=of, what="exports", capabilities=capabilities, uri=uri)


def _some_failed(
    errors: Mapping[Any, Exception], *, of: int, what: str, capabilities: DestinationCapabilities, uri: str
) -> Exception:
    said = "\n".join(f"  {key}: {text_of(error)}" for key, error in errors.items())
    rest = (
        "the others are committed; re-execute from failure to export only these"
        if len(errors) < of
        else "none is committed"
    )
    text = f"{uri}: {len(errors)} of {of} {what} failed, {rest}:\n{said}"
    passes = any(not isinstance(e, RivetError) or may_be_repeated(e) for e in errors.values())
    whole = (DestinationError if passes else RivetError)(text)
    whole.__cause__ = next(iter(errors.values()))
    failure = as_dagster_failure(whole, capabilities=capabilities, uri=uri)
    if isinstance(failure, dg.Failure):
        names = sorted({type(e).__name__ for e in errors.values()})
        said_of = {"rivet/error": ", ".join(names)}
        if len(errors) < of:
            said_of["rivet/left_behind"] = f"of those that failed: {left_behind(whole, capabilities)}"
        failure.metadata = {**failure.metadata, **{name: dg.MetadataValue.text(x) for name, x in said_of.items()}}
    return failure


def text_of(error: Exception) -> str:
    """What a person reads of an error, without secrets."""
    return str(error) if isinstance(error, RivetError) else f"{type(error).__name__}: {masked(str(error))}"


def masked(text: str) -> str:
    """The text of an SDK without what can carry a secret: queries of URLs, credentials in them, key=value pairs."""
    return _without(_MASKS, text)


def masked_urls(text: str) -> str:
    """A text of our own without what a URL in it can carry: we write no keys into any, but may repeat a URL."""
    return _without(_URL_MASKS, text)


def _without(masks: Iterable[tuple[re.Pattern[str], str]], text: str) -> str:
    for pattern, shown in masks:
        text = pattern.sub(shown, text)
    return text


def leave_out_foreign_texts(error: BaseException) -> None:
    """Put `LeftOut` where an error's chain has one of a driver or SDK; Dagster stores the text of the whole chain."""
    above = error
    seen = {id(error)}
    while True:
        below = above.__cause__ or (None if above.__suppress_context__ else above.__context__)
        if below is None or id(below) in seen:
            return
        seen.add(id(below))
        if not isinstance(below, RivetError | LeftOut):
            kind = f"{type(below).__module__}.{type(below).__qualname__}"
            shown = LeftOut(f"{kind}: its own text is left out, since it may hold a secret")
            shown.__cause__ = below.__cause__ or (None if below.__suppress_context__ else below.__context__)
            below = shown.with_traceback(below.__traceback__)
        above.__cause__ = below
        above = below
