"""Random histories of an incremental export, held against a model: what is delivered, what is lost, what is left."""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from rivet_dagster.attempt import Attempt, CommitSettings, ExportReceipt, Head
from rivet_dagster.commit import commit_export
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.errors import CommitConflict, CommitUnknown, ContractError, DestinationError, NoAnswer, SourceError
from rivet_dagster.exports.extraction import plan_export
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.spec import Export
from rivet_dagster.layout import Prefix
from rivet_dagster.sources.connect import connect
from tests.faults.kit import LOG, FaultyStore, Killed, Trouble, followed, litter, read_as_a_reader
from tests.faults.shop_model import Delivery, Shop, read_back

PREFIX = Prefix("events/")
SYMLINK = "events/_symlink_format_manifest/manifest"
FOREIGN = {
    "events/notes.txt": b"mine",
    "events/data/notes.txt": b"mine",
    "events/data/part-of-something.parquet": b"mine",
    "events/manifest-foreign.json": b"{}",
    "events2/data/part-run-1-00000000-00000000-00001.parquet": b"a neighbour's",
}
SIDE, PART = r"/manifest-{run}-[^/]*$", r"/data/part-{run}-[^/]*$"
# The operation, the key, and which of such requests it is.
REQUESTS = {
    "side record": ("write", SIDE, 1),
    "probe": ("write", SIDE, 3),
    "look": ("read", r"/manifest\.json$", 1),
    "list": ("list", r"^events/$", 1),
    "part": ("write", PART, 1),
    "final record": ("write", SIDE, 4),
    "head": ("write", r"/manifest\.json$", 1),
    "marker": ("write", r"/_SUCCESS$", 1),
    "look after the marker": ("read", r"/_SUCCESS$", 2),
    "symlink": ("write", SYMLINK, 1),
    "removal": ("remove", r".", 1),
    "second removal": ("remove", r".", 2),
}
DELAYED = ("side record", "final record", "head", "marker", "symlink")
WAYS: dict[str, tuple[str, type[BaseException], int]] = {
    "refused": ("before", DestinationError, 1),
    "silent": ("before", NoAnswer, 1),
    "reply lost": ("after", NoAnswer, 1),
    "killed before": ("dead", Killed, 1),
    "killed after": ("dead-after", Killed, 1),
    "store gone": ("dead", NoAnswer, 1),
    "store gone after": ("dead-after", NoAnswer, 1),
    "terminated": ("after", KeyboardInterrupt, 1),
    "delayed": ("late", NoAnswer, 99),
}
Fault = tuple[str, str] | None
FAULTS = st.none() | st.tuples(st.sampled_from([*REQUESTS]), st.sampled_from([w for w in WAYS if w != "delayed"]))
FAULTS |= st.tuples(st.sampled_from(DELAYED), st.just("delayed"))
STAMPS = st.lists(st.sampled_from(["next", "same", "next", "null", "future"]), min_size=1, max_size=3)
EVENTS = st.one_of(
    st.tuples(st.just("a_row_changes"), st.integers(0, 50), st.sampled_from(["next", "same"])),
    st.tuples(st.just("a_late_commit_begins"), STAMPS),
    st.tuples(st.just("the_table_changes")),
    st.tuples(st.just("the_shops_clock_moves"), st.sampled_from([1, 40, -5, -60])),
    st.tuples(st.just("our_clock_moves"), st.sampled_from([-30, -1, 0, 2])),
    st.tuples(st.just("somebody_puts_an_object_there"), st.sampled_from([*FOREIGN])),
    st.tuples(st.just("records_grow_old")),
    st.tuples(st.just("delayed_requests_land")),
)
RUNS = st.one_of(
    st.tuples(st.just("a_run"), FAULTS, st.booleans(), st.sampled_from([False, False, False, True])),
    st.tuples(st.just("a_step_is_retried"), st.integers(0, 50), FAULTS),
    st.tuples(st.just("two_runs"), st.sampled_from([*REQUESTS]), FAULTS, FAULTS, STAMPS, st.booleans(), st.booleans()),
    st.tuples(st.just("a_clean_run")),
)
OURS = (CommitConflict, CommitUnknown, DestinationError, Killed, KeyboardInterrupt)


class Unfit(Exception):
    """The rows were refused, as they have other columns than the dataset."""


class Store(FaultyStore):
    """Head and marker are swapped one by one, as at an object store."""

    def hold(self, directory: str) -> Any:
        return nullcontext()


@dataclass(eq=False)
class Try:
    """One attempt at an export, and what came of it.

    Attributes:
        outcome: "committed", "refused" for good, or "unknown".
        delivery: what it would deliver, once it is planned.
    """

    run_id: str
    store: Store
    outcome: str = "unknown"
    delivery: Delivery | None = None
    receipt: ExportReceipt | None = None
    error: BaseException | None = None
    notes: Sequence[str] = field(default=())


class Histories(RuleBasedStateMachine):
    """An export of a shop into a directory, by runs that fail in all ways, beside each other and late."""

    steps = 0

    @initialize(kind=st.sampled_from(["serial", "unique", "clock"]), first_nulls=st.booleans(), symlink=st.booleans())
    def begin(self, kind: str, first_nulls: bool, symlink: bool) -> None:
        self.stack = ExitStack()
        # Durability is tried elsewhere.
        self.stack.enter_context(mock.patch("os.fsync", return_value=None))
        self.directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.shop = Shop(path=self.directory / "shop.db", kind=kind, first_nulls=first_nulls)
        self.stack.callback(self.shop.close)
        mode = Incremental(
            cursor_column="stamp",
            unit="s" if kind == "clock" else None,
            nulls="first_run" if first_nulls else "exclude",
            settle_timeout="1ms",
        )
        self.wanted = Export(name="events", table="events", mode=mode)
        self.settings = CommitSettings(symlink_manifest=symlink)
        self.tries: list[Try] = []
        self.foreign: dict[str, bytes] = {}
        self.shown: Delivery | None = None
        self.ahead = timedelta()
        self.stack.enter_context(mock.patch("rivet_dagster.commit.datetime", self._our_clock()))

    @rule(
        hows=STAMPS | st.just([]),
        late=st.sampled_from(["commit", "commit", "rollback", "stay"]),
        back=st.booleans(),
        events=st.lists(EVENTS, max_size=2),
        run=RUNS,
    )
    def then(self, hows: list[str], late: str, back: bool, events: list[tuple[Any, ...]], run: tuple[Any, ...]) -> None:
        """One rule for all, as rules are left out of most histories, and a history without runs says nothing."""
        if late != "stay":
            self.a_late_commit_ends(late == "commit")
        if back and self.shown is not None and self.shown.columns != self.shop.columns():
            self.the_table_changes()
        self.rows_come(hows)
        for name, *given in (*events, run):
            getattr(self, name)(*given)

    # The shop.

    def rows_come(self, hows: list[str]) -> None:
        if self.shop.writer is None:
            self.shop.insert(hows)

    def a_row_changes(self, which: int, how: str) -> None:
        if self.shop.writer is None:
            self.shop.update(which, how)

    def a_late_commit_begins(self, hows: list[str]) -> None:
        if self.shop.writer is None:
            self.shop.begin_late(hows)

    def a_late_commit_ends(self, commit: bool) -> None:
        if self.shop.writer is not None:
            self.shop.end_late(commit=commit)

    def the_table_changes(self) -> None:
        if self.shop.writer is None:
            self.shop.alter()

    def the_shops_clock_moves(self, seconds: int) -> None:
        self.shop.clock += seconds

    # Around the export.

    def our_clock_moves(self, hours: int) -> None:
        self.ahead = timedelta(hours=hours)

    def somebody_puts_an_object_there(self, name: str) -> None:
        path = self.directory / "lake" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(FOREIGN[name])
        self.foreign[name] = FOREIGN[name]

    def records_grow_old(self) -> None:
        """By the store's clock; the runs of those that are left are all over, known or not."""
        for path in (self.directory / "lake").glob("events/manifest-*.json"):
            long_ago = path.stat().st_mtime - 2 * 3600
            os.utime(path, (long_ago, long_ago))

    def delayed_requests_land(self) -> None:
        for attempt in self.tries:
            attempt.store.release()

    # Runs.

    def a_run(self, fault: Fault, known: bool, anew: bool) -> None:
        self._run(self._new_id(), fault, over=self._ended() if known else (), anew=anew)

    def a_step_is_retried(self, which: int, fault: Fault) -> None:
        """Or its run is executed again: what it has committed is found."""
        if not self.tries:
            return
        before = self.tries[which % len(self.tries)]
        there = self.shown is not None and before.run_id in [d.run_id for d in self.shown.line()]
        again = self._run(before.run_id, fault, over=self._ended())
        assert again.outcome != "committed" or again.receipt.found or not there, "exported twice"

    def two_runs(self, at: str, first: Fault, second: Fault, hows: list[str], zombie: bool, same: bool) -> None:
        """The second comes and goes, and rows come, while the first waits at a request; to Dagster it may be over."""
        run_id = self._new_id()
        other = run_id if same else self._new_id()

        def meanwhile() -> None:
            self.rows_come(hows)
            self._run(other, second, over=[*self._ended(but=run_id), *([run_id] if zombie else [])])

        self._run(run_id, first, over=self._ended(), at=at, meanwhile=meanwhile)

    def a_clean_run(self) -> None:
        if self.shop.writer is None:
            self._clean_run()

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        with self.stack:
            self._leave_nothing_behind()

    # What must be true.

    @invariant()
    def readers_have_a_whole_dataset_of_the_history(self) -> None:
        type(self).steps += 1
        raw = self._raw()
        assert {name: raw.get(name) for name in self.foreign} == self.foreign
        chain = followed(raw, PREFIX.root)
        if chain is None:
            assert self.shown is None
            assert not [t for t in self.tries if t.outcome == "committed"]
            return
        assert read_as_a_reader(raw, PREFIX.root) is not None
        shown = self._delivery_of(chain[-1])
        lake = self.directory / "lake" / "events"
        assert read_back([str(lake / p["path"]) for m in chain for p in m["parts"]]) == shown.rows
        line = shown.line()
        assert [a["run_id"] for a in chain[-1]["ancestors"]] == [d.token for d in line[1:]]
        assert self.shown is None or self.shown in line, "history only grows"
        self.shown = shown
        for attempt in self.tries:
            if attempt.outcome == "committed" and attempt.delivery is not None:
                assert attempt.delivery in line, f"{attempt.run_id} was reported as committed, and is lost"
            if attempt.outcome == "refused":
                assert attempt.delivery not in line, f"{attempt.run_id} was refused, and is there"

    # How.

    def _run(
        self,
        run_id: str,
        fault: Fault,
        *,
        over: Sequence[str],
        anew: bool = False,
        at: str | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Try:
        store = Store(LocalDestination(self.directory / "lake"))
        attempt = Try(run_id, store)
        if fault is not None:
            store.troubles.append(self._trouble(fault, run_id))
        if at is not None and meanwhile is not None:
            store.before = self._once(at, run_id, meanwhile)
        self.tries.append(attempt)
        busy = self.shop.writer is not None
        try:
            attempt.receipt = commit_export(
                store,
                prefix=PREFIX,
                attempt=Attempt(
                    export_name="events",
                    dagster_run_id=run_id,
                    lineage=frozenset({run_id}),
                    is_over=lambda other: other in over,
                ),
                plan=lambda head: self._plan(attempt, head, anew=anew),
                settings=self.settings,
                log=LOG,
            )
        except (*OURS, Unfit, SourceError) as error:
            attempt.error = error
            if isinstance(error, SourceError):
                assert busy, "nobody was writing"
                assert attempt.delivery is None
            elif isinstance(error, CommitConflict):
                attempt.outcome = "refused"
        else:
            self._judge(attempt)
        finally:
            self._name(attempt)
        return attempt

    def _judge(self, attempt: Try) -> None:
        receipt = attempt.receipt
        assert receipt is not None
        if receipt.found:
            attempt.outcome, attempt.delivery = "committed", None
        elif receipt.unchanged:
            assert attempt.delivery is not None
            assert attempt.delivery.added == []
            attempt.outcome, attempt.delivery = "committed", None
        else:
            attempt.outcome = "committed"
            assert receipt.row_count == len(attempt.delivery.added)

    def _plan(self, attempt: Try, head: Head | None, *, anew: bool) -> Any:
        base = None if head is None else self._delivery_of_token(head.manifest.run_id)
        source = connect(f"sqlite:///{self.shop.path}")
        settling = source.settling

        @contextmanager
        def clocked(*args: Any) -> Any:
            with settling(*args) as noted:
                yield replace(noted, clock=datetime.fromtimestamp(self.shop.clock, timezone.utc))

        source.settling = clocked
        fits = base is None or anew or base.columns == self.shop.columns()
        # Rows of a clock that is behind the cursor would be lost: it is waited for.
        behind = base is not None and not anew and self.shop.is_behind(base)
        refused = "clock to be past" if behind else "'more'"
        unfit = (behind or not fits) and self.shop.writer is None
        with pytest.raises(ContractError, match=refused) if unfit else nullcontext():
            planned = plan_export(
                self.wanted,
                export_name="events",
                source=source,
                output=resolve_output(export=self.wanted),
                head=None if anew or head is None else head.manifest,
                log=LOG,
            )
        if behind or not fits:
            raise Unfit
        assert self.shop.writer is None, "a window was fixed while somebody was writing"
        attempt.delivery = self.shop.delivery(base, anew=anew, run_id=attempt.run_id)
        return planned

    def _trouble(self, fault: tuple[str, str], run_id: str) -> Trouble:
        (operation, key, nth), (when, error, times) = REQUESTS[fault[0]], WAYS[fault[1]]
        pattern = re.compile(key.format(run=run_id))
        return Trouble(
            when, nth=nth, operation=operation, key=lambda k: pattern.search(k) is not None, error=error, times=times
        )

    def _once(self, at: str, run_id: str, then: Callable[[], None]) -> Callable[[str, str], None]:
        operation, key, nth = REQUESTS[at]
        pattern, seen = re.compile(key.format(run=run_id)), []

        def before(asked: str, about: str) -> None:
            if asked == operation and pattern.search(about):
                seen.append(about)
                if len(seen) == nth:
                    then()

        return before

    def _name(self, attempt: Try) -> None:
        """After its token, which stands in what it asked for first."""
        pattern = re.compile(rf"/manifest-({attempt.run_id}-[^/]*)\.json$")
        sides = [m[1] for operation, key in attempt.store.calls if operation == "write" and (m := pattern.search(key))]
        if attempt.delivery is not None and attempt.delivery.token is None:
            own = [token for token in sides if token not in {d.token for d in self._deliveries()}]
            attempt.delivery.token = own[0] if own else None

    def _clean_run(self) -> Try:
        """Without a fault, and knowing of every run that it is over."""
        done = self._run(self._new_id(), None, over=self._ended())
        if done.error is not None:
            assert isinstance(done.error, Unfit), done.error
            return done
        assert done.outcome == "committed"
        if not done.receipt.unchanged:
            raw = self._raw()
            left = [k for k in litter(raw, PREFIX.root) if k not in self.foreign and k != SYMLINK]
            assert left == []
            if SYMLINK in raw:
                chain = followed(raw, PREFIX.root)
                parts = [done.store.uri(f"events/{p['path']}") for m in chain for p in m["parts"]]
                assert raw[SYMLINK].decode().splitlines() == parts
        return done

    def _leave_nothing_behind(self) -> None:
        """Once all is said and done, each row that came in time is there, in its last version, once."""
        self.delayed_requests_land()
        if self.shop.writer is not None:
            self.shop.end_late(commit=True)
        if self.shown is not None and self.shop.columns() != self.shown.columns:
            self.shop.alter()
        self._clean_run()
        stamps = [row[1] or 0 for row in self.shop.rows()]
        self.shop.clock = max(self.shop.clock, self.shop.reached, *stamps) + 100
        self.shop.insert(["next", "next"])
        self.shop.clock += 1
        last = self._clean_run()
        self.readers_have_a_whole_dataset_of_the_history()
        if isinstance(last.error, Unfit):
            return
        there = {*self.shop.rows()}
        waiting = {row for row in there if self.shop.kind == "serial" and row[1] == self.shop.top}
        owed = self.shop.owed & there - waiting
        assert self.shown is not None
        assert owed <= {*self.shown.rows}
        assert len({*self.shown.rows}) == len(self.shown.rows), "a version of a row is there twice"

    def _our_clock(self) -> Any:
        machine = self

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.now(tz) + machine.ahead

        return Shifted

    def _new_id(self) -> str:
        return f"run-{len(self.tries)}-{len(self.tries) + 1}"

    def _ended(self, but: str | None = None) -> list[str]:
        return [t.run_id for t in self.tries if t.run_id != but]

    def _deliveries(self) -> list[Delivery]:
        return [t.delivery for t in self.tries if t.delivery is not None]

    def _delivery_of(self, manifest: dict[str, Any]) -> Delivery:
        return self._delivery_of_token(manifest["run_id"])

    def _delivery_of_token(self, token: str) -> Delivery:
        # One that is still at work beside the asking one has no name yet.
        for attempt in self.tries:
            self._name(attempt)
        (found,) = [d for d in self._deliveries() if d.token == token]
        return found

    def _raw(self) -> dict[str, bytes]:
        lake = self.directory / "lake"
        found = (p for p in lake.rglob("*") if p.is_file() and p.name != ".rivet.lock")
        return {p.relative_to(lake).as_posix(): p.read_bytes() for p in found}


BY_HAND = not os.environ.get("RIVET_REQUIRE_SERVICES")
SHAPE = settings(
    deadline=None,
    database=None,
    derandomize=False,
    # A shorter history is worth its time to who looks for it, not to a gate.
    phases=[Phase.generate, Phase.shrink] if BY_HAND else [Phase.generate],
    suppress_health_check=list(HealthCheck),
    stateful_step_count=50,
    print_blob=False,
)


@pytest.mark.parametrize(("which", "number", "least"), [("fixed", 20260101, 200), ("random", None, 50)])
def test_whatever_happens_the_dataset_is_what_the_model_says(which, number, least, tally):
    number = random.SystemRandom().randrange(2**32) if number is None else number

    @seed(number)
    class Drawn(Histories):
        steps = 0

    tally(f"seed of the state machine ({which})", number)
    run_state_machine_as_test(Drawn, settings=settings(SHAPE, max_examples=least // 50))
    assert Drawn.steps >= least
    tally("steps of the state machine", Drawn.steps)
