"""Where a window begins and ends: by clocks that are moved, values that fall, and states that are none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.errors import ConfigError, ContractError
from rivet_dagster.exports.cursor import recorded_cursor, start_of
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.exports.window import Fixed, check_mode, fixed_window
from rivet_dagster.rows import Query
from rivet_dagster.sources.sqlite_cursor import bound_of
from rivet_dagster.windows import Cursor, CursorTerm, Noted, Settling, Window

NOON = datetime(2026, 3, 4, 12, 0, 5, 987_654, tzinfo=timezone.utc)
TERM = CursorTerm(column="c")
SOME_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Antarctica/Troll")
NEAR = st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31), timezones=st.just(timezone.utc))


class Source:
    """A source that notes what it is given, and what it is asked."""

    engine, database = "postgresql", "shop"

    def __init__(self, noted: Noted, *, knows_writers: bool = True) -> None:
        self.noted, self.knows_writers = noted, knows_writers
        self.asked: Settling | None = None

    @contextmanager
    def settling(self, query: Query, cursor: Cursor, asked: Settling) -> Iterator[Noted]:
        self.asked = asked
        yield self.noted


def described(kind: Any, **more: Any) -> Cursor:
    return Cursor(term=TERM, kind=kind, type_name=kind, **more)


def fix(cursor: Cursor, source: Source, start: tuple[Any, bool] | None = None, **mode: Any) -> Window:
    """The window that comes out."""
    return fix_all(cursor, source, start, **mode).window


def fix_all(cursor: Cursor, source: Source, start: tuple[Any, bool] | None = None, **mode: Any) -> Fixed:
    wanted = Incremental(cursor_column="c", **mode)
    by_clock = check_mode(wanted, cursor, source, subject="export 'e'")  # type: ignore[arg-type]
    query = Query(table="t", casts={})
    with fixed_window(wanted, source, query, cursor, by_clock=by_clock, start=start, subject="export 'e'") as fixed:  # type: ignore[arg-type]
        return fixed


@pytest.mark.parametrize(
    ("resolution", "high"),
    [
        (timedelta(microseconds=1), NOON),
        (timedelta(milliseconds=1), NOON.replace(microsecond=987_000)),
        (timedelta(seconds=1), NOON.replace(microsecond=0)),
    ],
)
def test_only_units_that_are_over_leave(resolution: timedelta, high: datetime) -> None:
    found = fix(described("instant", resolution=resolution), Source(Noted(clock=NOON)))
    assert (found.low, found.high, found.high_open) == (None, high, True)


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 1_000), ("us", 1_000_000)])
def test_a_count_of_time_ends_at_the_last_whole_unit(unit: str, per_second: int) -> None:
    found = fix(described("integer"), Source(Noted(clock=NOON)), unit=unit)
    assert found.high == 1_772_625_605 * per_second + 987_654 * per_second // 1_000_000
    before = datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=timezone.utc)
    assert fix(described("integer"), Source(Noted(clock=before)), unit="s").high == -1


@given(now=NEAR, later=st.timedeltas(timedelta(0), timedelta(days=2)), zone=st.sampled_from(SOME_ZONES))
def test_no_stamp_that_comes_later_lies_before_the_end(now: datetime, later: timedelta, zone: str) -> None:
    """Whatever the zone's clock does in between."""
    stamp = (now + later).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    found = fix(described("naive"), Source(Noted(clock=now)), time_zone=zone, lag="2h")
    assert found.high <= stamp
    assert found.high > stamp - later - timedelta(hours=4)
    assert fix(described("date"), Source(Noted(clock=now)), time_zone=zone).high <= stamp.date()
    assert fix(described("date"), Source(Noted(clock=now))).high <= stamp.date()


def test_without_a_zone_a_day_is_over_when_it_is_over_everywhere() -> None:
    noon = datetime(2026, 3, 4, 12, tzinfo=timezone.utc)
    assert fix(described("date"), Source(Noted(clock=noon))).high == date(2026, 3, 4)
    assert fix(described("date"), Source(Noted(clock=noon - timedelta(seconds=1)))).high == date(2026, 3, 3)
    assert fix(described("date"), Source(Noted(clock=noon)), time_zone="Asia/Tokyo").high == date(2026, 3, 4)


@pytest.mark.parametrize(("zone", "least"), [("Europe/Berlin", 60), ("Australia/Lord_Howe", 30), ("Asia/Kolkata", 0)])
def test_a_clock_that_is_set_back_needs_a_lag_as_long(zone: str, least: int) -> None:
    source = Source(Noted(clock=NOON))
    if least:
        with pytest.raises(ConfigError, match=f'lag="{least} minutes"'):
            fix(described("naive"), source, time_zone=zone)
        with pytest.raises(ConfigError, match=f'lag="{least} minutes"'):
            fix(described("naive"), source, time_zone=zone, lag=f"{least - 1} minutes")
        fix(described("naive"), source, time_zone=zone, lag=f"{least} minutes", settle="writers")
        assert source.asked is not None
        assert source.asked.writers
    else:
        fix(described("naive"), source, time_zone=zone)


def test_the_cursor_never_decreases() -> None:
    """A clock that is held back, rows that were removed: the window is empty, and the next one begins where it did."""
    low = NOON + timedelta(hours=1)
    held_back = Noted(clock=NOON, now=low)
    assert fix_all(described("instant"), Source(held_back), (low, False)).warning is None
    fix(described("instant"), Source(Noted(clock=low)), (low, False), lag="2h")
    found = fix(described("instant"), Source(held_back), (low, False))
    assert (found.low, found.low_open, found.high, found.high_open) == (low, False, low, True)
    for top in (None, 3):
        found = fix(described("integer", unique=True), Source(Noted(clock=NOON, top=top)), (7, True))
        assert (found.low, found.low_open, found.high, found.high_open) == (7, True, 7, False)
        found = fix(described("integer"), Source(Noted(clock=NOON, top=top)), (7, False))
        assert (found.low, found.low_open, found.high, found.high_open) == (7, False, 7, True)


@pytest.mark.parametrize("settle", ["writers", "none"])
def test_a_clock_that_was_set_back_is_refused(settle: str) -> None:
    """Whether or not it is held back besides; rows that are stamped meanwhile would be missed."""
    low = NOON + timedelta(hours=1)
    now = low - timedelta(milliseconds=1)
    for kind, more, start in (
        ("instant", {}, low),
        ("naive", {"time_zone": "UTC", "lag": "1h"}, low.replace(tzinfo=None)),
        ("integer", {"unit": "s"}, int(low.timestamp()) + 1),
        ("date", {}, (low + timedelta(days=1)).date()),
    ):
        with pytest.raises(ContractError, match=r"set back.*full_refresh"):
            fix(described(kind), Source(Noted(clock=NOON, now=now)), (start, False), settle=settle, **more)


def test_ids_that_begin_again_are_refused_and_where_nobody_knows_it_is_said() -> None:
    ids = described("integer", unique=True)
    again, goes_on, unknown = (Noted(clock=NOON, top=3, drawn=drawn) for drawn in (6, 7, None))
    with pytest.raises(ContractError, match=r"ids behind 7.*the next is 7.*full_refresh"):
        fix(ids, Source(again), (7, True))
    for noted, said in ((again, "the next is 7"), (unknown, "fine if rows were deleted")):
        found = fix_all(ids, Source(noted), (7, True), settle="none")
        assert said in str(found.warning)
        assert said in found.said["rivet/settle"]["note"]
    assert fix_all(ids, Source(unknown), (7, True)).warning is not None
    assert fix_all(ids, Source(goes_on), (7, True)).warning is None


def test_an_index_that_is_gone_is_missed_and_one_that_came_is_used() -> None:
    with pytest.raises(ContractError, match=r"the unique index.*found none.*full_refresh"):
        fix(described("integer"), Source(Noted(clock=NOON, top=9)), (7, True))
    found = fix(described("integer", unique=True), Source(Noted(clock=NOON, top=9)), (7, False))
    assert (found.low_open, found.high, found.high_open) == (False, 9, False)


def test_a_random_uuid_is_refused_and_one_that_rises_is_not() -> None:
    random, rising = "4f5b8a0e-3b0c-4c1e-9f25-0a7a3a1de1b2", "018f2c5e-7b5a-7c3e-9f25-0a7a3a1de1b2"
    uuids = described("uuid", unique=True)
    with pytest.raises(ConfigError, match="monotonic=True"):
        fix(uuids, Source(Noted(clock=NOON, top=rising)))
    with pytest.raises(ConfigError, match=r"random one \(version 4\)"):
        fix(uuids, Source(Noted(clock=NOON, top=random)), monotonic=True)
    assert fix(uuids, Source(Noted(clock=NOON, top=rising)), monotonic=True).high == rising


@pytest.mark.parametrize(
    ("mode", "writers"),
    [
        ({}, True),
        ({"settle": "writers"}, True),
        ({"settle": "none"}, False),
        ({"lag": "1h"}, False),
        ({"lag": "1h", "settle": "none"}, False),
        ({"lag": "1h", "settle": "writers"}, True),
    ],
)
def test_writers_are_asked_for_unless_something_else_was_chosen(mode: dict[str, Any], writers: bool) -> None:
    source = Source(Noted(clock=NOON))
    found = fix(described("instant"), source, **mode)
    assert source.asked is not None
    assert source.asked.writers is writers
    assert found.high == (NOON - timedelta(hours=1) if "lag" in mode else NOON)


def test_nulls_are_counted_where_that_says_something() -> None:
    """By the first run, by each that must not find one, and where it costs nothing; never where there is none."""
    for cursor, start, nulls, asked, below in (
        (described("integer"), None, "exclude", True, None),
        (described("integer"), (1, False), "exclude", False, 100_000),
        (described("integer", finds_nulls=True), (1, False), "exclude", True, 100_000),
        (described("integer", finds_nulls=True), (1, False), "fail", True, None),
        (described("integer"), (1, False), "fail", True, None),
        (described("integer", nullable=False, finds_nulls=True), None, "exclude", False, None),
    ):
        source = Source(Noted(clock=NOON, top=5, nulls=0))
        fix(cursor, source, start, nulls=nulls)
        assert source.asked is not None
        assert (source.asked.nulls, source.asked.nulls_below) == (asked, below)


KINDS = {
    "instant": st.datetimes(timezones=st.sampled_from([timezone.utc, ZoneInfo("Asia/Kolkata")])),
    "naive": st.datetimes(),
    "date": st.dates(),
    "integer": st.integers(-(2**63), 2**64),
    "text": st.text(),
}


@given(
    found=st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), KINDS[kind])),
    unique=st.booleans(),
)
def test_a_state_keeps_its_value_and_kind(found: tuple[Any, Any], unique: bool) -> None:
    import json

    kind, value = found
    window = Window(cursor=described(kind), high=value, high_open=not unique)
    said = json.loads(json.dumps(recorded_cursor(Incremental(cursor_column="c"), window)))
    assert start_of(said, kind, where="here") == (value, unique)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"value": 5},
        {"value": "5", "included": True},
        {"value": True, "included": True},
        {"value": 5.5, "included": True},
    ],
)
def test_a_state_that_is_none_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match=r"s3://lake/e/: expected a cursor of kind 'integer'.*full_refresh"):
        start_of(said, "integer", where="s3://lake/e/")
    for kind in ("instant", "naive", "date"):
        other = "2024-01-01T00:00:00" if kind == "instant" else "2024-01-01T00:00:00Z"
        with pytest.raises(ContractError):
            start_of({"value": other, "included": False}, kind, where="here")  # type: ignore[arg-type]


TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2020, 1, 3)) | st.builds(
    lambda day, hour, minute: datetime(2020, 1, day, hour, minute),
    st.integers(1, 2),
    st.integers(0, 23),
    st.integers(0, 59),
)


@given(bound=TIMES, stamp=TIMES, form=st.sampled_from([" ", "T"]), digits=st.integers(0, 6))
def test_texts_of_sqlite_are_in_the_order_of_their_times(
    bound: datetime, stamp: datetime, form: str, digits: int
) -> None:
    """However many digits a stamp is written with: a bound is the least text of its time."""
    written = stamp.isoformat(sep=form, timespec="microseconds")
    if digits == 0 and not stamp.microsecond:
        written = written[:19]
        if not stamp.second:
            written = written[:16]
    elif digits and not stamp.microsecond % 10 ** (6 - digits):
        written = written[: 20 + digits]
    text = bound_of(described("naive", form=form), bound)
    assert (written < text) is (stamp < bound)
    if stamp == datetime(stamp.year, stamp.month, stamp.day):
        assert (written[:10] < text) is (stamp < bound)
