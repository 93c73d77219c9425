"""The kinds of check: what each looks at, and how it says so. One path runs all of them, see `checks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rivet_dagster.errors import ConfigError
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.judgement import Look, by_listing

__all__ = ["KINDS", "Asked", "Kind", "chosen"]

# A piece, what hashes it and what counts in it are there at a time.
_PIECES_AT_A_TIME = 4
_LEAST_PIECE_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One check of one delivery.

    Attributes:
        io_manager: of the destination.
        recorded: what materializations that carry our keys say, the newest first.
    """

    io_manager: ExportIOManager
    recorded: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of check.

    Attributes:
        name: as Dagster shows it.
        description: likewise.
        look: how one looks at a delivery.
    """

    name: str
    description: str
    look: Callable[[Asked], Look]


def chosen(checks: str | Sequence[str]) -> tuple[Kind, ...]:
    """The kinds of these names, each once.

    Raises:
        ConfigError: there is no such kind; names those that there are.
    """
    names = dict.fromkeys([checks] if isinstance(checks, str) else checks)
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        msg = f"checks: expected some of {', '.join(KINDS)}, found {', '.join(map(repr, unknown))}; correct the name"
        raise ConfigError(msg)
    return tuple(KINDS[name] for name in names)


def _content(asked: Asked) -> Look:
    # pyarrow loads only where rows are read or written.
    from rivet_dagster.orchestration.content import PIECE_BYTES, read_again  # noqa: PLC0415

    most = asked.io_manager.settings.output(None).max_memory
    piece = PIECE_BYTES if most is None else max(_LEAST_PIECE_BYTES, min(PIECE_BYTES, most // _PIECES_AT_A_TIME))
    return partial(read_again, piece_bytes=piece)


_ALL = (
    Kind(
        name="manifest",
        description="Marker, manifest and a listing of the parts are what the latest materialization recorded. Parts "
        "are looked at by size and the store's checksum, not by content; see the check `content`.",
        look=lambda _asked: by_listing,
    ),
    Kind(
        name="content",
        description="Every part of the latest delivery is read again: its bytes have the recorded digests, its rows "
        "are counted, and its columns are those of the manifest.",
        look=_content,
    ),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ALL}
