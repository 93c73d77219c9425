"""The window of an incremental run: fixed here, once, from the dataset's cursor and what the source has noted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from rivet_dagster.errors import ConfigError, ContractError
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.exports.moments import EPOCH, LAST_ZONE, UNITS, check_has_zone, check_settings
from rivet_dagster.exports.sizes import parse_duration
from rivet_dagster.rows import IncrementalSource, Query
from rivet_dagster.windows import Cursor, Noted, Settling, Window

__all__ = ["Fixed", "check_mode", "fixed_window"]

_RANDOM = 4
# An index finds so many in no time; more of them than that are no news, and are not counted in every run.
_NULLS_BELOW = 100_000
_CHOICE = 'choose lag="5 minutes" (later commits may be missed), or settle="none"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A window that is fixed.

    Attributes:
        window: what is read.
        said: how it came about, as metadata.
        nulls: how many rows without a cursor the next run is to know of; `None` where nobody has counted.
        warning: rows that are lost while nobody looks.
    """

    window: Window
    said: Mapping[str, Any]
    nulls: int | None = None
    warning: str | None = None


def check_mode(mode: Incremental, cursor: Cursor, source: IncrementalSource, *, subject: str) -> bool:
    """Refuse a cursor that no window can be over without losing rows, and settings that do not go with it.

    Returns:
        Whether the window ends by the source's clock; else it ends at the greatest value.

    Raises:
        ConfigError: says why, and what to set instead.
    """
    by_clock = cursor.kind in {"instant", "naive", "date"} or mode.unit is not None
    what = f"{subject}: {mode.term.shown} ({cursor.type_name})"
    check_settings(cursor, time_zone=mode.time_zone, unit=mode.unit, what=what)
    if cursor.kind in {"text", "uuid"} and not mode.monotonic:
        raise ConfigError(
            f"{what}: a text or UUID says nothing about when its row came; use a timestamp or number, or set "
            "monotonic=True if it only rises, as UUIDv7 and ULID do"
        )
    if mode.monotonic and cursor.kind not in {"text", "uuid"}:
        raise ConfigError(f"{what}: monotonic is of a text or UUID; leave it out")
    if mode.lag is not None and not by_clock:
        raise ConfigError(f'{what}: lag holds a clock back, and this cursor is none; choose settle="writers" or "none"')
    check_has_zone(cursor, time_zone=mode.time_zone, what=what)
    if cursor.kind == "naive":
        _check_lag(mode, what)
    if mode.settle == "writers" and not source.knows_writers:
        raise ConfigError(f"{what}: {source.engine} cannot tell who is still writing; {_choice(by_clock=by_clock)}")
    if mode.settle is None and mode.lag is None and not source.knows_writers:
        raise ConfigError(
            f"{what}: transactions that commit late would be missed, and {source.engine} cannot tell who is still "
            f"writing; {_choice(by_clock=by_clock)}"
        )
    return by_clock


@contextmanager
def fixed_window(
    mode: Incremental,
    source: IncrementalSource,
    query: Query,
    cursor: Cursor,
    *,
    by_clock: bool,
    start: tuple[Any, bool] | None,
    subject: str,
    known_nulls: int | None = None,
) -> Iterator[Fixed]:
    """Fix the window; what is opened within the context reads what was settled when it was fixed.

    Args:
        mode: how.
        source: where from.
        query: of the whole export.
        cursor: as the source describes it.
        by_clock: what `check_mode` said of them.
        start: where it begins, and whether behind the value itself; `None` for the first run of a dataset.
        subject: as messages begin.
        known_nulls: how many rows without a cursor the delivery before knew of.

    Raises:
        ConfigError: the mode does not go with the source as it is.
        ContractError: there are rows without a cursor, and `nulls` is "fail"; ids begin again, or the clock is behind.
        SourceError: the source refused; transient where writers did not end in time.
    """
    low, low_open = start or (None, False)
    if low_open and not by_clock and not cursor.unique:
        raise ContractError(
            f"{subject}: {mode.term.shown}: expected the unique index over it that the run before relied on, found "
            "none: rows with the same value may have come since; create it again, or export with full_refresh"
        )
    writers = mode.settle == "writers" or (mode.settle is None and mode.lag is None)
    asked = Settling(
        top=not by_clock,
        writers=writers,
        timeout=parse_duration(mode.settle_timeout, field="settle_timeout"),
        nulls=cursor.nullable and (mode.nulls == "fail" or start is None or cursor.finds_nulls),
        nulls_below=None if mode.nulls == "fail" or start is None else _NULLS_BELOW,
        low=low,
    )
    with source.settling(query, cursor, asked) as noted:
        if mode.nulls == "fail" and noted.nulls:
            raise ContractError(
                f"{subject}: {mode.term.shown}: expected no NULL, found {noted.nulls} of them; fill them, or set "
                'nulls="exclude" or "first_run"'
            )
        end, end_open = _end(mode, cursor, noted, by_clock=by_clock, subject=subject)
        fallen = None
        if low is not None and (end is None or _before(end, low)):
            # Whatever happened: the cursor never decreases.
            fallen = _fallen(mode, cursor, noted, low, by_clock=by_clock, writers=writers, subject=subject)
            end, end_open = low, not low_open
        nulls = mode.nulls == "first_run" and start is None
        window = Window(
            cursor=cursor,
            low=low,
            low_open=low_open,
            high=end,
            high_open=end_open,
            nulls=nulls,
            server=noted.server,
        )
        settled = _settled(mode, noted, fallen, writers=writers)
        fixed = Fixed(window=window, said={"rivet/settle": settled})
        if cursor.nullable and mode.nulls != "fail":
            fixed = _with_nulls(mode, window, settled, found=noted.nulls, known=known_nulls)
        yield replace(fixed, warning="; ".join(filter(None, [fallen, fixed.warning])) or None)


def _choice(*, by_clock: bool) -> str:
    return _CHOICE if by_clock else 'choose settle="none" (later commits with a lower value are missed)'


def _check_lag(mode: Incremental, what: str) -> None:
    shift = _shift(ZoneInfo(str(mode.time_zone)))
    if mode.held_back < shift:
        raise ConfigError(
            f"{what}: the clocks of {mode.time_zone} are set back by {shift}, and the times of then come twice: "
            f'set lag="{int(shift.total_seconds()) // 60} minutes" or more (with settle="writers", where that is '
            "possible, late commits are waited for all the same), or store timestamps in UTC"
        )


def _shift(zone: tzinfo) -> timedelta:
    """By how much a zone's clock is ever moved, within a year before and after now."""
    now = datetime.now(timezone.utc)
    offsets = [(now + timedelta(days=day)).astimezone(zone).utcoffset() or timedelta() for day in range(-366, 367)]
    return max(offsets) - min(offsets)


def _end(mode: Incremental, cursor: Cursor, noted: Noted, *, by_clock: bool, subject: str) -> tuple[Any, bool]:
    """Where the window ends, and whether that value itself is left out."""
    if not by_clock:
        if cursor.kind == "uuid" and noted.top is not None and UUID(noted.top).version == _RANDOM:
            what = f"{subject}: {mode.term.shown}"
            raise ConfigError(f"{what}: expected a UUID that rises, found a random one (version 4)")
        return noted.top, not cursor.unique
    return _cut_off(mode, cursor, noted.clock - mode.held_back), True


def _cut_off(mode: Incremental, cursor: Cursor, clock: datetime) -> Any:
    """The least value that is not over at a time."""
    if mode.unit is not None:
        return (clock - EPOCH) // UNITS[mode.unit]
    if cursor.kind == "instant":
        return _cut(clock.astimezone(timezone.utc), cursor.resolution)
    if cursor.kind == "naive":
        # Held back by as much as the zone's clock is ever set back, or more: see `_check_lag`.
        local = clock.astimezone(ZoneInfo(str(mode.time_zone))).replace(tzinfo=None)
        return _cut(local, cursor.resolution)
    if mode.time_zone is None:
        return clock.astimezone(LAST_ZONE).date()
    zone = ZoneInfo(mode.time_zone)
    return (clock.astimezone(zone).replace(tzinfo=None) - _shift(zone)).date()


def _cut(moment: datetime, resolution: timedelta) -> datetime:
    start = datetime(1970, 1, 1, tzinfo=moment.tzinfo)
    return start + (moment - start) // resolution * resolution


def _before(one: Any, other: Any) -> bool:
    # Texts are compared by the database alone, whose order may be another: a top that fell gives an empty window there.
    return bool(one < other) if isinstance(one, int | date) else False


def _fallen(
    mode: Incremental, cursor: Cursor, noted: Noted, low: Any, *, by_clock: bool, writers: bool, subject: str
) -> str | None:
    """Why a window ends before it begins, where rows may be missed for it: refused where they will be."""
    what = f"{subject}: {mode.term.shown}"
    if by_clock:
        now = noted.now or noted.clock
        if _before(_cut_off(mode, cursor, now), low):
            raise ContractError(
                f"{what}: expected the source's clock to be past {low}, where the run before ended, found {now}: it "
                "was set back, or time_zone is another; rows that are stamped before it is past are missed: set it "
                "right, and export with full_refresh if any were"
            )
        return None
    if noted.drawn is not None and noted.drawn >= low:
        return None
    if noted.drawn is None:
        return (
            f"{what}: the greatest value is {noted.top}, and the run before ended at {low}: fine if rows were deleted; "
            "if ids began again, those up to there are missed: export with full_refresh"
        )
    again = f"{what}: expected ids behind {low}, where the run before ended, found that the next is {noted.drawn + 1}"
    if not writers:
        return f"{again}: those up to there are missed; export with full_refresh"
    raise ContractError(
        f"{again}: they began again, or SQLite gives those of deleted rows again, as it does without AUTOINCREMENT; "
        "rows up to there would be missed: export with full_refresh"
    )


def _with_nulls(
    mode: Incremental, window: Window, settled: dict[str, Any], *, found: int | None, known: int | None
) -> Fixed:
    """What is said of rows without a cursor; of all that there are, the first run may have exported those `known`."""
    if found is None:
        few = f"{_NULLS_BELOW:,} or more" if window.cursor.finds_nulls else "no index finds them"
        settled["nulls"] = f"not counted: {few}"
        return Fixed(window=window, said={"rivet/settle": settled}, nulls=known)
    said: dict[str, Any] = {"rivet/settle": settled}
    if mode.nulls == "exclude":
        said["rivet/nulls_excluded"] = found
    elif known is not None:
        said["rivet/nulls_excluded"] = max(0, found - known)
    warning = None
    if found > (known or 0) and not window.nulls:
        before = "" if known is None else f" ({known} when it was last delivered)"
        warning = (
            f"{window.cursor.term.shown}: expected a value in every row, found {found} without one{before}; they "
            'are left out until they have one: fill them, use a cursor_expression, or set nulls="fail"'
        )
    keep = mode.nulls == "first_run" and known is not None
    return Fixed(window=window, said=said, nulls=known if keep else found, warning=warning)


def _settled(mode: Incremental, noted: Noted, fallen: str | None, *, writers: bool) -> dict[str, Any]:
    settle: dict[str, Any] = {"settle": "writers" if writers else "lag" if mode.lag else "none", **noted.said}
    if mode.lag is not None:
        settle["lag_seconds"] = mode.held_back.total_seconds()
    late = "later commits may be missed" if mode.lag else "commits with an earlier cursor are missed"
    if notes := [note for note in (noted.said.get("note"), None if writers else late, fallen) if note]:
        settle["note"] = "; ".join(notes)
    return settle
