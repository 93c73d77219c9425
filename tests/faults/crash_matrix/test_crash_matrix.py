"""A run that is killed, or terminated, at each step of its commit, on each store, in each mode: all combinations.

After each blow readers have the old dataset or the new one, whole; after one run more it is the source's rows, and
nothing else is left.
"""

from __future__ import annotations

import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.control import SideRecord
from tests.faults.crash_matrix import exports
from tests.faults.crash_matrix.exports import KINDS
from tests.faults.crash_matrix.points import COMMITTED, DEAD, FAILPOINTS, NEXT, OLD, UNSENT, VICTIM
from tests.faults.crash_matrix.victims import Told, strike
from tests.faults.kit import Killed, followed, litter, read_as_a_reader
from tests.faults.ranges import Dying
from tests.harnesses import HARNESS_PARAMS

STORES = ("local", "s3-1", "azure-1")
BLOWS = (signal.SIGKILL, signal.SIGTERM)
CASES = len(FAILPOINTS) * len(BLOWS) * len(STORES) * len(KINDS)
OTHER = "south"


@pytest.fixture(params=[p for p in HARNESS_PARAMS if p.id in STORES])
def place(request, servers, tmp_path):
    found = request.param(servers, tmp_path)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _recorded_at_once(monkeypatch):
    monkeypatch.setitem(SideRecord.__init__.__kwdefaults__, "at_most_every", 0.0)


@dataclass
class Scene:
    """What a victim finds, made once: a delivery (of an incremental export, two), and a run that died over it."""

    place: Any
    kind: str
    directory: Path
    found: dict[str, bytes] = field(init=False)
    old: list[Any] = field(init=False)
    database: Path = field(init=False)

    def __post_init__(self) -> None:
        how, store = KINDS[self.kind], self.place.fresh()
        self.database = database = self.directory / "shop.db"
        exports.create(database)
        if how.partition_key is not None:
            exports.run(self.kind, store, database, run_id=OLD, partition_key=OTHER)
        exports.run(self.kind, store, database, run_id=OLD)
        exports.grow(database)
        if how.appends:
            exports.run(self.kind, store, database, run_id=f"{OLD}-2")
            exports.grow(database)
        self.old = exports.dataset(self.place.raw(), how.prefix.root, self.directory)
        if not how.appends:
            exports.change(database)
        with pytest.raises(Killed):
            exports.run(self.kind, Dying(store, parts=1), database, run_id=DEAD)
        shutil.copy(database, self.directory / "prepared.db")
        self.found = dict(self.place.raw())
        assert any(f"/data/part-{DEAD}" in name for name in self.found)

    def play(self, point: str, blow: signal.Signals) -> None:
        """One case."""
        how, root = KINDS[self.kind], KINDS[self.kind].prefix.root
        store = self.place.fresh()
        for name, body in self.found.items():
            self.place.put(name, body)
        database = self.database
        shutil.copy(self.directory / "prepared.db", database)
        if how.appends:
            exports.grow(database, rows=5)
        # Only a new snapshot supersedes what an incremental export has delivered.
        anew = how.appends and point.startswith("superseded")
        told = Told(recipe=self.place.recipe(), kind=self.kind, database=database, point=point, anew=anew)
        said = strike(told, blow)
        # An incremental run re-uses nothing of a dead one: it comes to its end.
        missing = how.appends and point == "adopted part checked"
        assert said == ("ended" if missing else "stopped")
        committed = missing or point in COMMITTED
        new = exports.rows_of(database)
        raw = dict(self.place.raw())
        self._is_whole(raw, new if committed else self.old, committed=committed)
        if blow is signal.SIGTERM and point in UNSENT and not missing:
            assert not [name for name in raw if f"part-{VICTIM}" in name], "an abort takes back what it wrote"
        if blow is signal.SIGKILL:
            if how.appends:
                exports.grow(database, rows=2)
            exports.run(self.kind, store, database, run_id=NEXT, over=[DEAD, VICTIM])
        else:
            receipt = exports.run(self.kind, store, database, run_id=VICTIM, over=[DEAD], repeats=[DEAD])
            assert receipt.found or not committed, "what was committed is exported again"
        raw = dict(self.place.raw())
        assert read_as_a_reader(raw, root) is not None
        assert exports.dataset(raw, root, self.directory) == exports.rows_of(database)
        assert self._left_over(raw, root) == []
        assert self.place.open_uploads() == []
        parts = [f"{store.uri(root)}{p['path']}" for m in followed(raw, root) for p in m["parts"]]
        assert raw[f"{root}_symlink_format_manifest/manifest"].decode().splitlines() == parts
        self.place.close()

    def _is_whole(self, raw: dict[str, bytes], rows: list[Any], *, committed: bool) -> None:
        root = KINDS[self.kind].prefix.root
        assert read_as_a_reader(raw, root) is not None
        assert exports.dataset(raw, root, self.directory) == rows
        chain = followed(raw, root)
        runs = {m["dagster"]["run_id"] for m in chain}
        assert (VICTIM in runs) == committed
        assert DEAD not in runs
        listed = [p["path"] for m in chain for p in m["parts"]]
        assert committed or all(path.startswith(f"data/part-{OLD}") for path in listed)

    def _left_over(self, raw: dict[str, bytes], root: str) -> list[str]:
        neighbour = {k: v for k, v in raw.items() if not k.startswith(root)}
        assert neighbour == {k: v for k, v in self.found.items() if not k.startswith(root)}
        return [name for name in litter(raw, root) if name != f"{root}_symlink_format_manifest/manifest"]


@pytest.mark.parametrize("blow", BLOWS, ids=lambda blow: blow.name)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_stopped_leaves_a_whole_dataset_and_the_next_one_all_rows(place, kind, blow, tmp_path, tally):
    scene, played = Scene(place, kind, tmp_path), []
    for point in FAILPOINTS:
        try:
            scene.play(point, blow)
        except Exception as error:
            raise AssertionError(f"stopped at: {point}") from error
        played.append(point)
    assert len(played) * len(BLOWS) * len(STORES) * len(KINDS) == CASES == 252
    tally(f"cases of the crash matrix, of {CASES}", len(played))
