"""The kinds of check: what each looks at, and how it says so. One path runs all of them, see `checks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.judgement import Look, all_by_listing
from rivet_dagster.orchestration.resources import DatabaseResource
from rivet_dagster.orchestration.schema_change import compare_columns

__all__ = ["KINDS", "Asked", "Kind", "chosen"]

# A piece, what hashes it and what counts in it are there at a time.
_PIECES_AT_A_TIME = 4
_LEAST_PIECE_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One check of one delivery.

    Attributes:
        key: of the asset.
        io_manager: of the destination.
        recorded: what materializations that carry our keys say, the newest first.
        exported: the export and its database, for a kind that counts in the source.
        warns: whether a difference that may be rightful is a warning; `None` leaves it to the kind.
    """

    key: dg.AssetKey
    io_manager: ExportIOManager
    recorded: Sequence[Mapping[str, Any]]
    exported: tuple[Export, DatabaseResource] | None = None
    warns: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of check.

    Attributes:
        name: as Dagster shows it.
        description: likewise.
        look: how one looks at a delivery.
        counts: whether it asks the source.
    """

    name: str
    description: str
    look: Callable[[Asked], Look]
    counts: bool = False


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


def _row_count(asked: Asked) -> Look:
    # As above.
    from rivet_dagster.orchestration.source_rows import compare_rows  # noqa: PLC0415

    if asked.exported is None:
        msg = f"{asked.key.to_user_string()}: the check `row_count` expected an export, found none"
        raise ConfigError(msg)
    export, database = asked.exported
    return partial(
        compare_rows,
        export=export,
        export_name="/".join(asked.key.path),
        source=database.source(),
        warns=asked.warns,
    )


def _schema(asked: Asked) -> Look:
    return partial(compare_columns, recorded=asked.recorded, warns=asked.warns is not False)


_ALL = (
    Kind(
        name="manifest",
        description="Marker, manifest and a listing of the parts are what the latest materialization recorded, and so "
        "are the deliveries that it adds to. Parts are looked at by size and the store's checksum, not by content; see "
        "the check `content`.",
        look=lambda _asked: all_by_listing,
    ),
    Kind(
        name="content",
        description="Every part of the latest delivery is read again: its bytes have the recorded digests, its rows "
        "are counted, and its columns are those of the manifest.",
        look=_content,
    ),
    Kind(
        name="row_count",
        description="The source has as many rows as were delivered: all of them, or those of the delivery's window. "
        "The source moves on, so the result says what another number means.",
        look=_row_count,
        counts=True,
    ),
    Kind(
        name="schema",
        description="The columns of the latest delivery are those of the delivery before, of the same partition.",
        look=_schema,
    ),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ALL}
