"""Try out what exports need before one is run: databases, grants and clocks, destinations and their conditions."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from rivet_dagster.contract import ObjectDestination
from rivet_dagster.errors import ConfigError, RivetError, SourceError
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.exports.spec import Export
from rivet_dagster.exports.window import check_mode
from rivet_dagster.orchestration.datasets import Dataset
from rivet_dagster.orchestration.failures import text_of
from rivet_dagster.orchestration.loading import CodeLocation, Opened
from rivet_dagster.probe import probe
from rivet_dagster.rows import IncrementalSource, Query, Source
from rivet_dagster.windows import Cursor, CursorTerm, Settling, Window

__all__ = ["Examined", "examine"]

_REACH = "correct the URL, start the database, or open the way to it"
_GRANT = "grant SELECT on what the export reads to the user of the URL, and USAGE on its schema; or correct the name"
_QUERY = "correct the query, or the names in it, as the database says"
_SETTLE = "correct the cursor, as the database says, or choose another settle"
_SETTINGS = "correct the settings of the resource, or the environment"
_DENIED = re.compile(r"(?i)denied|no such table|table .*(?:not|n't) exist")
# Clocks are the same as far as anybody can tell; and so far apart that it is worth a look.
_SAME, _DRIFT = timedelta(seconds=0.1), timedelta(seconds=5)
_NOW = Query(sql="SELECT 1 AS one", casts={})
_NO_CURSOR = Cursor(term=CursorTerm(expression="1"), kind="integer", type_name="integer", nullable=False)
_NO_ROWS = Window(cursor=_NO_CURSOR, high=None, high_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One thing that was looked at.

    Attributes:
        subject: "source <key>", "export <key>" or "destination <key>".
        check: what of it.
        ok: whether it is as it has to be; `None` where it was not tried.
        found: what was found.
        remedy: what to do, where it is not and `found` does not say so.
    """

    subject: str
    check: str
    ok: bool | None
    found: str
    remedy: str | None = None

    def as_json(self) -> dict[str, Any]:
        """With stable keys."""
        return asdict(self)


def examine(location: CodeLocation, datasets: Sequence[Dataset], *, log: logging.Logger) -> Iterator[Examined]:
    """Look at each source, export and destination of these datasets once; an error is a finding.

    No row is read, but where SQLAlchemy reads: there the first ones are. What is written at a destination to try it
    is removed again.
    """
    exported = [(d, d.defined) for d in datasets]
    sources = dict.fromkeys(e.source for _, e in exported if e is not None)
    destinations = dict.fromkeys(d.io_manager_key for d in datasets)
    with location.opened([*sources, *destinations]) as opened:
        for key in sources:
            exports = [(d, e.export) for d, e in exported if e is not None and e.source == key]
            yield from _source(key, opened, exports)
        for key in destinations:
            yield from _destination(key, opened, log=log)


def _source(key: str, opened: Opened, exports: Iterable[tuple[Dataset, Export]]) -> Iterator[Examined]:
    subject = f"source {key}"
    try:
        source = opened.database(key).source()
        began = datetime.now(timezone.utc)
        clock = _clock(source) if isinstance(source, IncrementalSource) else None
        ended = datetime.now(timezone.utc)
    except RivetError as e:
        yield Examined(subject=subject, check="reach", ok=False, found=text_of(e), remedy=_beyond(e, _REACH))
        for dataset, _ in exports:
            yield Examined(
                subject=f"export {dataset.name}", check="read", ok=None, found=f"not tried: {subject} is not reached"
            )
        return
    # No statement is one for every database that SQLAlchemy knows: there, the exports' own tell.
    if clock is not None:
        yield Examined(subject=subject, check="reach", ok=True, found=f"{source.engine} database {source.database!r}")
        yield _clock_of(subject, clock, began=began, ended=ended)
    for dataset, export in exports:
        yield from _reading(f"export {dataset.name}", source, export)


def _clock(source: IncrementalSource) -> datetime:
    """The database's own."""
    asked = Settling(top=False, writers=False, timeout=timedelta(), nulls=False)
    with source.settling(_NOW, _NO_CURSOR, asked) as noted:
        return noted.clock


def _clock_of(subject: str, clock: datetime, *, began: datetime, ended: datetime) -> Examined:
    # Whatever it said in between, it said at some moment between the two.
    drift = clock - began if clock < began else max(clock - ended, timedelta())
    ours = "as this machine's" if abs(drift) < _SAME else f"{drift.total_seconds():+.1f} s from this machine's"
    found = f"{clock.isoformat(timespec='seconds')}, {ours}"
    if abs(drift) > _DRIFT:
        found += "; windows and partitions go by the database's clock, so only people are misled"
    return Examined(subject=subject, check="clock", ok=True, found=found)


def _reading(subject: str, source: Source, export: Export) -> Iterator[Examined]:
    query = export.source_query

    def read() -> str:
        _drain(source, replace(query, window=_NO_ROWS) if isinstance(source, IncrementalSource) else query)
        return f"may read {'the table ' + query.table if query.table is not None else 'what its query reads'}"

    reading = _tried(subject, "read", read, lambda said: _GRANT if _DENIED.search(said) else _QUERY)
    yield reading
    mode = export.mode
    if reading.ok and isinstance(mode, Incremental) and isinstance(source, IncrementalSource):
        yield _tried(subject, "settle", lambda: _settle(source, query, mode, subject), lambda _: _SETTLE)


def _drain(source: Source, query: Query) -> None:
    """Have the database begin to run a statement: only then does it look at grants."""
    stream = source.open(query)
    try:
        next(iter(stream), None)
    finally:
        stream.close()


def _settle(source: IncrementalSource, query: Query, mode: Incremental, subject: str) -> str:
    cursor = source.describe_cursor(query, mode.term)
    by_clock = check_mode(mode, cursor, source, subject=subject)
    if mode.settle != "writers" and (mode.settle is not None or mode.lag is not None):
        return f"settle={'lag' if mode.lag else 'none'} needs no rights"
    asked = Settling(top=not by_clock, writers=True, timeout=timedelta(), nulls=False)
    try:
        with source.settling(query, cursor, asked) as noted:
            open_now = noted.said.get("open", 0)
            return f"can tell who is writing: {open_now} transactions are open"
    except SourceError as e:
        if not e.transient:
            raise
        return f"can tell who is writing; somebody is, and a run would wait: {text_of(e)}"


def _destination(key: str, opened: Opened, *, log: logging.Logger) -> Iterator[Examined]:
    subject = f"destination {key}"
    try:
        io_manager = opened.io_manager(key)
        if not io_manager.capabilities.commit_protocol.leaves_objects_at_rest:
            yield Examined(subject=subject, check="open", ok=True, found="a stream: there is nothing to try")
            return
        destination = io_manager.destination
    except RivetError as e:
        yield Examined(subject=subject, check="open", ok=False, found=text_of(e), remedy=_beyond(e, _SETTINGS))
        return
    yield Examined(subject=subject, check="open", ok=True, found=destination.uri())
    if isinstance(destination, ObjectDestination):
        for tried in probe(destination, log=log):
            yield Examined(subject=subject, check=tried.what, ok=tried.ok, found=tried.found, remedy=tried.remedy)


def _tried(subject: str, check: str, attempt: Callable[[], str], remedy: Callable[[str], str]) -> Examined:
    try:
        return Examined(subject=subject, check=check, ok=True, found=attempt())
    except RivetError as e:
        said = text_of(e)
        return Examined(subject=subject, check=check, ok=False, found=said, remedy=_beyond(e, remedy(said)))


def _beyond(error: RivetError, remedy: str) -> str | None:
    """What to do, where the error does not say so itself: of a definition it always does, else behind a semicolon."""
    return None if isinstance(error, ConfigError) or "; " in str(error) else remedy
