"""Sizes and durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.sizes import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MB", 256_000_000),
        ("256MiB", 268_435_456),
        ("1.5 GiB", 1_610_612_736),
        ("0.5kB", 500),
        ("10 kb", 10_000),
        ("1TB", 10**12),
        ("1TiB", 2**40),
        ("1048576", 1_048_576),
        (1_048_576, 1_048_576),
        ("7 B", 7),
        ("1.9B", 1),
        ("0.1MB", 100_000),
    ],
)
def test_sizes_are_decimal_or_binary_by_their_unit(text: str | int, size: int) -> None:
    assert parse_size(text, field="max_file_size") == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MB",
        "-1MB",
        "256M",
        "256 MBit",
        "1e6",
        "1,5GB",
        "0",
        "0.4 B",
        "0.0001kB",
        "٣MB",
        "1 2MB",
        0,
        -5,
        True,
        1.5,
        None,
    ],
)
def test_what_is_no_size_is_refused_with_field_value_and_examples(text: object) -> None:
    with pytest.raises(ConfigError) as e:
        parse_size(text, field="max_file_size")  # type: ignore[arg-type]
    assert "max_file_size" in str(e.value)
    assert repr(text) in str(e.value)
    assert "256MB" in str(e.value)


@given(st.integers(1, 10**15), st.sampled_from([("kB", 1000), ("MiB", 1024**2), ("", 1), ("gb", 10**9)]))
def test_a_whole_number_of_units_is_exact(number: int, unit: tuple[str, int]) -> None:
    assert parse_size(f"{number} {unit[0]}", field="x") == number * unit[1]


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("1h", timedelta(hours=1)),
        ("90s", timedelta(seconds=90)),
        ("5 minutes", timedelta(minutes=5)),
        ("1 minute", timedelta(minutes=1)),
        ("1.5 days", timedelta(hours=36)),
        ("500ms", timedelta(milliseconds=500)),
        ("2 Hours", timedelta(hours=2)),
        ("10 min", timedelta(minutes=10)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_durations_have_a_unit(text: str | timedelta, length: timedelta) -> None:
    assert parse_duration(text, field="lag") == length


@pytest.mark.parametrize(
    "text", ["", "90", "h", "-1h", "0s", "1 fortnight", "1h30m", "9" * 30 + "d", "200 years", 90, None]
)
def test_what_is_no_duration_is_refused_with_field_value_and_examples(text: object) -> None:
    with pytest.raises(ConfigError) as e:
        parse_duration(text, field="takeover_after")  # type: ignore[arg-type]
    assert "takeover_after" in str(e.value)
    assert repr(text) in str(e.value)
    assert '"5 minutes"' in str(e.value)


def test_a_negative_timedelta_is_no_duration() -> None:
    with pytest.raises(ConfigError):
        parse_duration(timedelta(seconds=-1), field="lag")
