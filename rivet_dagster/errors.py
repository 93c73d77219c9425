"""Every error, grouped by what the caller does next.

::

    RivetError
    ├── ConfigError            fix the definition
    │   └── PlanRejected       the same, with every diagnostic that was found
    ├── SourceError            `transient` → retry; else fix the query or the database
    ├── DestinationError       the store failed; what is left behind is what capabilities say, no more
    │   ├── PreconditionFailed the store holds another version than expected (read back before it is believed)
    │   ├── NoAnswer           the request may or may not have been applied (read back, then repeat)
    │   ├── IntegrityError     the store holds other bytes than were sent
    │   ├── CommitConflict     another run committed first, or took this run over
    │   └── CommitUnknown      no answer, and readback could not settle it: run again
    ├── ContractError          the data or the state is not what was promised
    └── ReadError              the dataset at a prefix is not complete or not ours
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "CommitConflict",
    "CommitUnknown",
    "ConfigError",
    "ContractError",
    "DestinationError",
    "IntegrityError",
    "NoAnswer",
    "PlanRejected",
    "PreconditionFailed",
    "ReadError",
    "RivetError",
    "SourceError",
]


class RivetError(Exception):
    """What every error of this package is.

    A message says what was expected, what was found, where, and the remedy; it never holds a secret.
    """


class ConfigError(RivetError):
    """The definition cannot work as it is written: fix it."""


class PlanRejected(ConfigError):
    """Planning refused an export; carries every diagnostic, not only the first.

    Attributes:
        diagnostics: what was found, each with its level, rule and remedy.
    """

    def __init__(self, message: str, diagnostics: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.diagnostics = tuple(diagnostics)


class SourceError(RivetError):
    """The database refused or failed.

    Attributes:
        transient: whether the same statement may succeed when it is sent again.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class DestinationError(RivetError):
    """The store failed; what is left behind is what the destination's capabilities say, no more."""


class PreconditionFailed(DestinationError):
    """The key holds another version than the write expected; nothing was written by this request."""


class NoAnswer(DestinationError):
    """The store did not confirm: the request may have been applied, or may be applied later."""


class IntegrityError(DestinationError):
    """The store holds other bytes than were sent; nothing of the run becomes visible."""


class CommitConflict(DestinationError):
    """Another run committed first or took this run over; this run's data is not visible."""


class CommitUnknown(DestinationError):
    """No answer, and reading back could not settle it; nothing was deleted, a rerun is safe."""


class ContractError(RivetError):
    """The data or the state is not what was promised: a gate, schema drift or cursor identity."""


class ReadError(RivetError):
    """The dataset at a prefix is not complete, or not ours."""
