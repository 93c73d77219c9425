"""One budget, divided: never more than it, and parts that do not depend on who encodes them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.formats import Csv, Parquet
from rivet_dagster.exports.memory import divide, least_memory
from rivet_dagster.exports.modes import Chunked
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.plan import Level
from rivet_dagster.exports.spec import Export
from tests.unit.test_plan_diagnostics import found, planned

FORMATS = st.one_of(st.builds(Csv), st.builds(Parquet), st.builds(Parquet, row_group_bytes=st.integers(1, 200_000_000)))
# What one of those who read and encode holds besides row groups and what is read ahead.
FIXED = 48_000_000


@given(settings=FORMATS, more=st.integers(0, 4 * 10**9), parallel=st.integers(1, 64))
def test_the_shares_are_within_the_budget(settings: Any, more: int, parallel: int) -> None:
    budget = least_memory(settings) + more
    share = divide(budget, settings, parallel=parallel)
    assert 1 <= share.workers <= parallel
    assert share.workers * (share.ahead_bytes + FIXED + 3 * share.group_bytes) <= budget
    assert share.group_bytes >= 1
    alone = divide(budget, settings)
    assert share.group_bytes == alone.group_bytes
    assert share.ahead_bytes == alone.ahead_bytes // share.workers


@given(settings=FORMATS, most=st.integers(1, 10**9))
def test_row_groups_of_a_size_that_was_asked_for_are_never_divided(settings: Any, most: int) -> None:
    if "row_group_bytes" in settings.model_fields_set:
        assert divide(most, settings).group_bytes == settings.row_group_bytes


def test_a_large_budget_changes_nothing() -> None:
    assert divide(4 * 10**9, Parquet(), parallel=4) == divide(None, Parquet(), parallel=4)
    assert divide(None, Csv(), parallel=64).workers == 64


def test_a_budget_that_cannot_be_held_is_refused_with_what_can() -> None:
    assert found(planned(max_memory="20MB")) == {"max-memory-too-little": Level.REJECTED}
    assert found(planned(max_memory="100MB", format=Parquet(row_group_bytes=64_000_000))) == {
        "max-memory-too-little": Level.REJECTED
    }
    assert found(planned(max_memory=least_memory(Parquet()))) == {}


def test_ranges_that_have_no_room_are_told_of() -> None:
    mode = Chunked(parallel=4)
    assert found(planned(max_memory="128MB", mode=mode)) == {"max-memory-fewer-ranges": Level.WARNING}
    assert found(planned(max_memory="1GB", mode=mode)) == {}


def test_what_the_export_says_wins() -> None:
    export = Export(name="a", table="a", max_memory="300MB")
    assert resolve_output(max_memory="1GB", export=export).max_memory == 300_000_000
    assert resolve_output(max_memory="1GB").max_memory == 10**9
    with pytest.raises(ConfigError, match="max_memory: expected a size"):
        Export(name="a", table="a", max_memory="much")
