"""Which rows are of a partition: each moment of each clock is in exactly one, on days of 23 and 25 hours too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.modes import Chunked, Incremental, TimeWindow
from rivet_dagster.exports.moments import count_of, wall_clock
from rivet_dagster.exports.partitions import Partition, PartitionBy, partition_window
from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.partitions import partitions_of
from rivet_dagster.windows import Cursor, CursorKind, CursorTerm, Window

BERLIN = "Europe/Berlin"
UTC = timezone.utc


def cursor(kind: CursorKind) -> Cursor:
    return Cursor(term=CursorTerm(column="at"), kind=kind, type_name=kind)


def window(kind: CursorKind, partition: Partition, **by: Any) -> Window:
    return partition_window(PartitionBy(column="at", **by), partition, cursor(kind), subject="export 'orders'")


def windows(definition: dg.TimeWindowPartitionsDefinition, kind: CursorKind, **by: Any) -> dict[str, Window]:
    keys = definition.get_partition_keys(current_time=datetime(2026, 1, 1, tzinfo=UTC))
    return {key: window(kind, found, **by) for key, found in partitions_of(definition, keys).items()}


def part_of(mode: Any) -> Export:
    return Export(name="orders", table="orders", partition_by="at", mode=mode)


def daily(start: str, end: str, zone: str = BERLIN, **more: Any) -> dg.DailyPartitionsDefinition:
    return dg.DailyPartitionsDefinition(start_date=start, end_date=end, timezone=zone, **more)


def test_a_day_in_which_clocks_change_has_23_or_25_hours() -> None:
    spring = windows(daily("2024-03-30", "2024-04-02"), "instant")
    autumn = windows(daily("2024-10-26", "2024-10-29"), "instant")
    assert [(w.high - w.low) / timedelta(hours=1) for w in spring.values()] == [24, 23, 24]
    assert [(w.high - w.low) / timedelta(hours=1) for w in autumn.values()] == [24, 25, 24]
    assert spring["2024-03-31"].low == datetime(2024, 3, 30, 23, tzinfo=UTC)
    assert autumn["2024-10-27"].low == datetime(2024, 10, 26, 22, tzinfo=UTC)
    assert all((w.low_open, w.high_open, w.endless) == (False, True, False) for w in spring.values())


@pytest.mark.parametrize(
    "definition",
    [
        daily("2024-10-20", "2024-11-10", hour_offset=6),
        dg.WeeklyPartitionsDefinition("2024-10-01", end_date="2024-12-01", timezone=BERLIN, day_offset=1),
        dg.MonthlyPartitionsDefinition("2024-01-01", end_date="2024-12-01", timezone="America/New_York", day_offset=15),
        dg.HourlyPartitionsDefinition(
            "2024-10-26-00:00", end_date="2024-10-29-00:00", timezone=BERLIN, minute_offset=15
        ),
        daily("2024-11-01", "2024-11-06", "America/Havana"),
        dg.TimeWindowPartitionsDefinition(
            cron_schedule="*/20 * * * *",
            start="2024-10-27-00:00",
            end="2024-10-27-06:00",
            fmt="%Y-%m-%d-%H:%M",
            timezone=BERLIN,
        ),
    ],
    ids=["day-from-six", "week", "month", "hour", "day-of-havana", "twenty-minutes"],
)
@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("instant", {}),
        ("naive", {"time_zone": "UTC"}),
        ("naive", {"time_zone": BERLIN}),
        ("naive", {"time_zone": "America/Havana"}),
        ("integer", {"unit": "ms"}),
    ],
    ids=["instant", "utc", "berlin", "havana", "milliseconds"],
)
def test_where_one_partition_ends_the_next_begins(definition: Any, kind: CursorKind, by: dict[str, Any]) -> None:
    found = list(windows(definition, kind, **by).values())
    assert len(found) > 2
    assert all(w.low <= w.high for w in found)
    assert all(one.high == other.low for one, other in pairwise(found))


def test_an_hour_that_comes_twice_is_in_the_partition_of_its_second_time() -> None:
    halves = dg.TimeWindowPartitionsDefinition(
        cron_schedule="*/30 * * * *",
        start="2024-10-27-01:30",
        end="2024-10-27-03:00",
        fmt="%Y-%m-%d-%H:%M",
        timezone=BERLIN,
    )
    found = {k: (w.low, w.high) for k, w in windows(halves, "naive", time_zone=BERLIN).items()}

    def at(text: str) -> datetime:
        return datetime.fromisoformat(f"2024-10-27T{text}")

    assert found == {
        "2024-10-27-01:30": (at("01:30"), at("02:00")),
        "2024-10-27-02:00": (at("02:00"), at("02:00")),
        "2024-10-27-02:30": (at("02:00"), at("02:00")),
        "2024-10-27-02:00+0100": (at("02:00"), at("02:30")),
        "2024-10-27-02:30+0100": (at("02:30"), at("03:00")),
    }


ZONES = (BERLIN, "America/Havana", "Australia/Lord_Howe", "Asia/Beirut", "Africa/Casablanca", "America/Sao_Paulo")


def changes(zone: str) -> list[datetime]:
    """The hours in which clocks are set back."""

    def ahead(moment: datetime) -> timedelta:
        return moment.astimezone(ZoneInfo(zone)).utcoffset() or timedelta()

    days = [datetime(2015, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(2000)]
    hours = (day + timedelta(hours=n) for day, end in pairwise(days) if ahead(end) < ahead(day) for n in range(24))
    return [hour for hour in hours if ahead(hour + timedelta(hours=1)) < ahead(hour)]


CHANGES = [(zone, hour) for zone in ZONES for hour in changes(zone)]


@given(
    moment=st.sampled_from(CHANGES),
    since=st.integers(-90, 90).map(lambda minutes: timedelta(minutes=minutes)),
    later=st.integers(0, 120).map(lambda minutes: timedelta(minutes=minutes)),
)
def test_no_clock_shows_an_earlier_time_than_a_bound_that_has_passed(
    moment: tuple[str, datetime], since: timedelta, later: timedelta
) -> None:
    zone, begin = ZoneInfo(moment[0]), moment[1] + since
    bound = wall_clock(begin, zone)
    assert bound <= (begin + later).astimezone(zone).replace(tzinfo=None)
    assert bound <= wall_clock(begin + later, zone)
    # Nor is it earlier than it has to be: from then on some clock shows it.
    shown = {(begin + timedelta(minutes=n)).astimezone(zone).replace(tzinfo=None) for n in range(181)}
    assert bound in shown


def test_a_date_is_of_a_whole_day_of_the_partitions_zone() -> None:
    assert [(w.low, w.high) for w in windows(daily("2024-10-26", "2024-10-28"), "date").values()] == [
        (date(2024, 10, 26), date(2024, 10, 27)),
        (date(2024, 10, 27), date(2024, 10, 28)),
    ]
    # Where a day has no midnight, or two.
    for start, end, zone in (
        ("2024-03-30", "2024-04-02", "Asia/Beirut"),
        ("2024-11-02", "2024-11-05", "America/Havana"),
        ("2018-11-03", "2018-11-06", "America/Sao_Paulo"),
    ):
        found = windows(daily(start, end, zone), "date", time_zone=zone)
        assert [w.low.isoformat() for w in found.values()] == list(found)
        assert all(one.high == other.low for one, other in pairwise(found.values()))
    with pytest.raises(ConfigError, match=r"2024-10-26T06:00:00\+02:00 is not where one begins"):
        windows(daily("2024-10-26", "2024-10-28", hour_offset=6), "date")
    with pytest.raises(ConfigError, match="whole day in America/New_York"):
        windows(daily("2024-10-26", "2024-10-28"), "date", time_zone="America/New_York")


def test_a_count_of_time_begins_with_the_first_that_is_not_before() -> None:
    assert count_of(datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC), "s") == 2
    assert count_of(datetime(1969, 12, 31, 23, 59, 58, 500_000, tzinfo=UTC), "s") == -1
    assert count_of(datetime(2024, 1, 1, tzinfo=UTC), "ms") == 1_704_067_200_000


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("text", "DE/Süd", "DE/Süd"),
        ("integer", "-7", -7),
        ("date", "2026-01-31", date(2026, 1, 31)),
        ("uuid", "0f8fad5b-d9cb-469f-a165-70867728950e", "0f8fad5b-d9cb-469f-a165-70867728950e"),
    ],
)
def test_any_other_partition_has_the_rows_that_are_equal_to_its_key(kind: CursorKind, key: str, value: Any) -> None:
    found = window(kind, Partition(key=key))
    assert (found.low, found.high, found.is_one_value) == (value, value, True)


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [
        ("integer", "07", r"written like 7; found '07'"),
        ("integer", "EU", "found 'EU'"),
        ("date", "20260131", "written like 2026-01-31"),
        ("uuid", "0F8FAD5B-D9CB-469F-A165-70867728950E", "found '0F8"),
        ("instant", "2026-01-31", "choose partitions of time"),
    ],
)
def test_a_key_that_is_no_value_of_the_column_is_refused(kind: CursorKind, key: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        window(kind, Partition(key=key))


@pytest.mark.parametrize(
    ("kind", "by", "expected"),
    [
        ("naive", {}, 'time_zone="UTC"'),
        ("instant", {"time_zone": "UTC"}, "leave it out"),
        ("instant", {"unit": "s"}, "leave it out"),
        ("integer", {}, 'unit="s"'),
        ("text", {}, "no time"),
    ],
)
def test_a_column_that_does_not_say_when_is_refused(kind: CursorKind, by: dict[str, Any], expected: str) -> None:
    (partition,) = partitions_of(daily("2024-01-01", "2024-01-02"), ["2024-01-01"]).values()
    with pytest.raises(ConfigError, match=f"export 'orders': partition '2024-01-01': column 'at' .*{expected}"):
        window(kind, partition, **by)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (PartitionBy, "exactly one of column and expression, found neither"),
        (lambda: PartitionBy(column="a", expression="b"), "found both"),
        (lambda: PartitionBy(column="a", time_zone="Mars/Olympus"), "found 'Mars/Olympus'"),
        (lambda: Export(name="o", table="o", partition_by=" "), "found neither"),
        (lambda: part_of(Incremental(cursor_column="b")), "Incremental do not"),
        (lambda: part_of(Chunked()), "Chunked do not"),
        (lambda: part_of(TimeWindow(time_column="b", days=1)), "TimeWindow do"),
        (lambda: TimeWindow(time_column=" ", days=1), "time_column"),
        (lambda: TimeWindow(time_column="a", days=0), "days"),
        (lambda: TimeWindow(time_column="a", days=1, time_zone="here"), "found 'here'"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(make: Callable[[], Any], expected: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match=expected):
        make()


def test_a_column_may_be_given_by_its_name_alone() -> None:
    assert Export(name="o", table="o", partition_by="a").partitioned_by == PartitionBy(column="a")
