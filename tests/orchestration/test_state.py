"""The comparison of what was recorded with what is there, row by row of its table; no Dagster, no store."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from rivet_dagster.attempt import Head
from rivet_dagster.errors import ContractError
from rivet_dagster.manifest import MAX_ANCESTORS, Ancestor, Manifest, Status
from rivet_dagster.orchestration.state import Remembered, agreed, remembered

HERE = "s3://lake/events/"


def head(run: int, *, since: int = 1) -> Head:
    """A delivery that descends from all those since another one."""
    line = range(run - 1, since - 1, -1)
    manifest = Manifest(
        run_id=f"run-{run}",
        export_name="events",
        status=Status.SUCCESS,
        started_at=datetime(2024, 1, 1, tzinfo=timezone.utc),
        destination_kind="s3",
        destination_uri=HERE,
        format="parquet",
        compression="zstd",
        ancestors=tuple(Ancestor(run_id=f"run-{n}", fingerprint=f"xxh3:{n}") for n in line)[:MAX_ANCESTORS],
        dagster_run_id=f"dagster-{run}",
    )
    return Head(manifest=manifest, fingerprint=f"xxh3:{run}")


def recorded(*runs: int, uri: str = HERE) -> list[Remembered]:
    return [Remembered(run_id=f"run-{n}", fingerprint=f"xxh3:{n}", uri=uri) for n in runs]


@pytest.mark.parametrize(
    ("runs", "there", "adopted"),
    [
        ([], None, None),
        ([7, 6], head(7), None),
        ([7, 6], head(8), "run-8"),
        ([], head(8), "run-8"),
        # So far back that the head no longer names it: older, and not foreign.
        ([7], head(7 + MAX_ANCESTORS + 1), f"run-{7 + MAX_ANCESTORS + 1}"),
    ],
)
def test_a_run_goes_on(runs: list[int], there: Head | None, adopted: str | None) -> None:
    found = agreed(there, iter(recorded(*runs)), uri=HERE)
    assert (found and found["run_id"]) == adopted


@pytest.mark.parametrize(
    ("line", "there", "expected"),
    [
        (recorded(7, 6), None, "has lost it"),
        (recorded(7, 6, 5), head(5), "an earlier one"),
        (recorded(7, 6, 5), head(9, since=8), "have parted"),
        (recorded(7, uri="file:///old/events/"), None, "was moved"),
        (recorded(7, uri="file:///old/events/"), head(9, since=8), "was moved"),
        ([Remembered(run_id="run-7", fingerprint="xxh3:other", uri=HERE)], head(7), "was changed"),
        ([Remembered(run_id="run-7", fingerprint="xxh3:other", uri=HERE)], head(9), "was changed"),
    ],
)
def test_a_run_does_not_go_on(line: list[Remembered], there: Head | None, expected: str) -> None:
    with pytest.raises(ContractError, match=rf"{HERE}: expected .*run-7.*{expected}.*full_refresh"):
        agreed(there, iter(line), uri=HERE)


def test_only_what_carries_our_keys_is_remembered() -> None:
    ours = {"rivet/run_id": "run-1", "rivet/checksum": "xxh3:1", "dagster/uri": HERE}
    others = [{}, {"rivet/run_id": "run-2"}, {"rivet/run_id": 3, "rivet/checksum": 4}, {"by": "hand"}]
    assert list(remembered([*others, ours, *others])) == recorded(1)
