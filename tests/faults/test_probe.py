"""What the doctor tries at a destination: each thing is named, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rivet_dagster.contract import ANY
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import DestinationError
from rivet_dagster.probe import NAME, probe
from tests.faults.kit import LOG, FaultyStore, Rows, Trouble, export
from tests.harnesses import HARNESS_PARAMS

EACH = pytest.mark.parametrize(
    "place", [p for p in HARNESS_PARAMS if p.id in ("local", "s3-1", "gcs-1", "azure-1")], indirect=True
)
LOCAL = pytest.mark.parametrize("place", [p for p in HARNESS_PARAMS if p.id == "local"], indirect=True)
STEPS = ["write", "head", "read", "list", "conditional create", "conditional replace", "remove"]


def tried(destination: Any) -> dict[str, bool | None]:
    return {t.what: t.ok for t in probe(destination, log=LOG)}


@EACH
def test_all_is_well_and_nothing_is_left(store: Any, raw: Callable[[], dict[str, bytes]], place: Any) -> None:
    export(store, Rows([b"good"]))
    before = raw()
    assert tried(store) == dict.fromkeys(STEPS, True)
    assert raw() == before
    assert place.open_uploads() == []


def test_no_directory_and_no_lock_is_left_on_disk(tmp_path: Any) -> None:
    """Nor what is above the destination's directory and was not there before."""
    assert tried(LocalDestination(tmp_path / "data" / "exports")) == dict.fromkeys(STEPS, True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "data" / "exports").mkdir(parents=True)
    tried(LocalDestination(tmp_path / "data" / "exports"))
    assert list((tmp_path / "data").rglob("*")) == [tmp_path / "data" / "exports"]


@LOCAL
@pytest.mark.parametrize("operation", ["head", "read", "list"])
def test_what_is_not_allowed_is_named_and_the_rest_tried(store: Any, raw: Any, operation: str) -> None:
    refused = Trouble("before", operation=operation, error=DestinationError, times=1)
    found = tried(FaultyStore(store, troubles=[refused]))
    assert found == {**dict.fromkeys(STEPS, True), operation: False}
    assert raw() == {}


@LOCAL
def test_nothing_is_tried_where_nothing_can_be_written(store: Any, raw: Any) -> None:
    refused = Trouble("before", operation="write", error=DestinationError, times=99)
    found = tried(FaultyStore(store, troubles=[refused]))
    assert found == {**dict.fromkeys(STEPS), "write": False, "remove": True}
    assert raw() == {}


@LOCAL
def test_what_was_written_without_an_answer_is_removed(store: Any, raw: Any) -> None:
    lost = Trouble("after", operation="write", error=DestinationError)
    assert tried(FaultyStore(store, troubles=[lost]))["write"] is False
    assert raw() == {}


@LOCAL
def test_a_store_without_conditions_is_found_out(store: Any, raw: Any) -> None:
    class Unfenced(FaultyStore):
        def write(self, key: str, body: Any, *, md5: bytes, expect: Any) -> Any:
            return super().write(key, body, md5=md5, expect=ANY)

    found = tried(Unfenced(store))
    assert found == {**dict.fromkeys(STEPS, True), "conditional create": False, "conditional replace": False}
    assert raw() == {}


@LOCAL
def test_what_cannot_be_removed_is_named(store: Any, raw: Any) -> None:
    kept = Trouble("before", operation="remove", error=DestinationError, times=99)
    (last,) = [t for t in probe(FaultyStore(store, troubles=[kept]), log=LOG) if t.ok is False]
    assert last.what == "remove"
    assert "allow this identity to delete" in str(last.remedy)
    (left,) = raw()
    assert left.startswith(NAME)
    assert left in last.found
