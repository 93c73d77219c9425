"""What a manifest holds of a cursor: its value with full precision and kind, and whose value it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timezone
from typing import Any

import xxhash

from rivet_dagster.errors import ContractError
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.windows import Cursor, CursorKind, CursorTerm, Window

__all__ = [
    "column_name",
    "known_nulls_of",
    "read_window",
    "recorded_cursor",
    "recorded_window",
    "start_of",
    "term_name",
    "type_name",
    "written",
]


def column_name(mode: Incremental) -> str:
    """Which cursor it is, for the dataset's identity: the column's name, or a hash of the expression's text."""
    return term_name(mode.term)


def term_name(term: CursorTerm) -> str:
    """What a manifest calls a term: the column's name, or a hash of the expression's text."""
    if term.expression is None:
        return str(term.column)
    return f"expression:xxh3:{xxhash.xxh3_64_hexdigest(' '.join(term.expression.split()).encode())}"


def type_name(mode: Incremental, cursor: Cursor) -> str:
    """Of what type its values are, for the dataset's identity; whole numbers that count time, with their unit."""
    return f"{cursor.type_name} in {mode.unit} since 1970" if mode.unit else cursor.type_name


def written(value: Any) -> Any:
    """A cursor value as JSON has it: whole numbers and texts as such, instants as ISO in UTC, other times as ISO."""
    if isinstance(value, datetime):
        aware = value.tzinfo is not None
        text = (value.astimezone(timezone.utc) if aware else value).isoformat(timespec="microseconds")
        return text.replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


def recorded_cursor(mode: Incremental, window: Window, *, nulls: int | None = None) -> dict[str, Any]:
    """The state after a run: the next window begins here, behind `value` itself where that is `included`.

    `nulls` rows without a value are known by then, where somebody has counted.
    """
    return {
        "column": column_name(mode),
        "type": type_name(mode, window.cursor),
        "kind": window.cursor.kind,
        "value": written(window.high),
        "included": window.high is not None and not window.high_open,
        **({} if nulls is None else {"nulls": nulls}),
    }


def recorded_window(window: Window) -> dict[str, Any]:
    """What a run looked at."""
    return {
        "low": written(window.low),
        "low_open": window.low_open,
        "high": written(window.high),
        "high_open": window.high_open,
        "nulls": window.nulls,
    }


def known_nulls_of(cursor: Mapping[str, Any]) -> int | None:
    """How many rows without a value the state knows of."""
    found = cursor.get("nulls")
    return found if isinstance(found, int) else None


def read_window(said: Mapping[str, Any], cursor: Cursor, *, endless: bool, where: str) -> Window:
    """What `recorded_window` wrote, over a cursor as the source describes it now.

    Raises:
        ContractError: it is no window that a run records, or the cursor is of another kind.
    """
    try:
        low, high = (None if said[name] is None else _READ[cursor.kind](said[name]) for name in ("low", "high"))
        return Window(
            cursor=cursor,
            low=low,
            low_open=bool(said["low_open"]),
            high=high,
            high_open=bool(said["high_open"]),
            nulls=bool(said["nulls"]),
            endless=endless,
        )
    except (KeyError, TypeError, ValueError):
        msg = (
            f"{where}: expected a window over a cursor of kind {cursor.kind!r}, found {dict(said)}; restore the "
            "manifest, or export with full_refresh"
        )
        raise ContractError(msg) from None


def start_of(cursor: Mapping[str, Any], kind: CursorKind, *, where: str) -> tuple[Any, bool]:
    """Where the next window begins, and whether behind the value itself.

    Raises:
        ContractError: it is no state that a run records.
    """
    try:
        value, included = cursor["value"], bool(cursor["included"])
        return (None if value is None else _READ[kind](value)), included
    except (KeyError, TypeError, ValueError):
        msg = (
            f"{where}: expected a cursor of kind {kind!r} with `value` and `included`, found {dict(cursor)}; restore "
            "the manifest, or export with full_refresh"
        )
        raise ContractError(msg) from None


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _instant(value: Any) -> datetime:
    found = datetime.fromisoformat(_text(value).replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError
    return found


def _naive(value: Any) -> datetime:
    found = datetime.fromisoformat(_text(value))
    if found.tzinfo is not None:
        raise ValueError
    return found


def _date(value: Any) -> date:
    return date.fromisoformat(_text(value))


_READ = {"instant": _instant, "naive": _naive, "date": _date, "integer": _whole, "text": _text, "uuid": _text}
