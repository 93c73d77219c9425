"""Judging the rows of a run as they pass: all of them, once each, in whatever pieces and threads they come."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.errors import ContractError
from rivet_dagster.exports.distinct import KEY_BYTES, Keys, hashes_of
from rivet_dagster.exports.gates import check_unique, column_gates, count_findings
from rivet_dagster.exports.quality import Quality
from rivet_dagster.exports.verdict import Example, Finding, Verdict

__all__ = ["EXAMPLES", "Judge"]

EXAMPLES = 10
# Characters of a value that is shown.
_LONGEST = 100


@dataclass(slots=True)
class _Tally:
    """What one gate counted; a key that has come before is an example together with its digest."""

    bad: int = 0
    examples: list[tuple[Example, tuple[int, int]]] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        return max(EXAMPLES - len(self.examples), 0)

    def add(self, other: _Tally) -> None:
        self.bad += other.bad
        self.examples += other.examples[: self.wanted]


class Judge:
    """The gates of one run. What is counted is a reading that came to its end, not one that began anew."""

    def __init__(
        self, quality: Quality, schema: pa.Schema, *, subject: str, key: Sequence[str], numbered: bool
    ) -> None:
        """Understand the gates.

        Args:
            quality: the gates.
            schema: of the batches.
            subject: the export, as messages begin.
            key: columns that name a row, where the catalog knows some.
            numbered: whether all rows come by one reading, so that a row's number says which it is.

        Raises:
            ConfigError: a column is not there, or a value is none of its column's type; names the field.
        """
        check_unique(quality, schema, subject=subject)
        self.columns = tuple(column_gates(quality, schema, subject=subject))
        self.keys: Mapping[tuple[str, ...], Keys] = {names: Keys() for names in quality.keys}
        self.shown = tuple(key) if set(key) <= set(schema.names) else ()
        self.numbered = numbered and not self.shown
        self.lock = threading.Lock()
        self._quality, self._subject = quality, subject
        self._room = None if quality.memory is None else quality.memory // KEY_BYTES
        self._held = self._rows = 0
        self._tallies = [_Tally() for _ in (*self.columns, *self.keys)]
        self.verdict: Verdict | None = None

    def over(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on batches and judge them.

        Raises:
            ContractError: keys that have to be unique take more memory than they may.
        """
        reading = _Reading(self)
        try:
            for batch in batches:
                reading.judge(batch)
                yield batch
            self._count(reading)
        finally:
            self._forget(reading)

    def gate(self) -> None:
        """Decide, once all rows have passed.

        Raises:
            ContractError: names every gate that failed, with counts and some of the rows.
        """
        with self.lock:
            verdict = self.verdict = Verdict(rows=self._rows, findings=tuple(self._findings()))
        if verdict.failed:
            said = "; ".join(map(str, verdict.failed))
            msg = f"{self._subject}: quality: {said}; nothing was committed: correct the rows, or the gate"
            raise ContractError(msg)

    def make_room(self, names: tuple[str, ...], keys: int) -> None:
        """Have room for more keys; called with the lock.

        Raises:
            ContractError: there is none.
        """
        if self._room is not None and self._held + keys > self._room:
            refusal = Finding(
                gate="unique",
                column=", ".join(names),
                expected=f"at most the {self._room:,} keys that unique_memory={self._quality.unique_memory!r} holds",
                found="more, which were not judged",
                passed=False,
            )
            self.verdict = Verdict(rows=self._rows, findings=(refusal,))
            raise ContractError(
                f"{self._subject}: quality: {refusal}; nothing was committed: set unique_memory to more ({KEY_BYTES} "
                "bytes for each row, and for each entry of `unique`), to None for no limit, or leave the entry out and "
                "let a unique index of the database see to it"
            )
        self._held += keys

    def _count(self, reading: _Reading) -> None:
        with self.lock:
            self._rows += reading.rows
            for keys in self.keys.values():
                keys.settle(reading)
            for tally, other in zip(self._tallies, reading.tallies, strict=True):
                tally.add(other)

    def _forget(self, reading: _Reading) -> None:
        with self.lock:
            self._held -= sum(keys.forget(reading) for keys in self.keys.values())

    def _findings(self) -> Iterator[Finding]:
        yield from count_findings(self._quality, self._rows)
        for gate, tally in zip(self.columns, self._tallies, strict=False):
            yield gate.finding(tally.bad, self._rows, [example for example, _ in tally.examples])
        for (names, keys), tally in zip(self.keys.items(), self._tallies[len(self.columns) :], strict=True):
            repeated = keys.repeated()
            yield Finding(
                gate="unique",
                column=", ".join(names),
                expected="each key once",
                found=f"{repeated:,} of {self._rows:,} rows with a key that another one has",
                passed=not repeated,
                rows=repeated,
                # What it was equal to may have been of a reading that began anew.
                examples=tuple(example for example, digest in tally.examples if keys.is_repeated(digest)),
            )


class _Reading:
    """What was found in one reading so far."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.rows = 0
        self.tallies = [_Tally() for _ in (*judge.columns, *judge.keys)]

    def judge(self, batch: pa.RecordBatch) -> None:
        tallies = iter(self.tallies)
        for gate in self._judge.columns:
            bad, tally = gate.bad(batch.column(gate.column)), next(tallies)
            tally.bad += bad.true_count
            if bad.true_count and tally.wanted:
                rows = pc.indices_nonzero(bad)[: tally.wanted].to_pylist()
                tally.examples += [(self._example(batch, row, (gate.column,)), (0, 0)) for row in rows]
        for names, keys in self._judge.keys.items():
            tally = next(tallies)
            (first, second), rows = hashes_of([batch.column(name) for name in names])
            with self._judge.lock:
                self._judge.make_room(names, len(rows))
                before = keys.add(self, (first, second), look=tally.wanted > 0)
            for at in np.flatnonzero(before)[: tally.wanted]:
                example = self._example(batch, int(rows[at]), names)
                tally.examples.append((example, (int(first[at]), int(second[at]))))
        self.rows += batch.num_rows

    def _example(self, batch: pa.RecordBatch, row: int, columns: Sequence[str]) -> Example:
        number = {"row number": self.rows + row + 1} if self._judge.numbered else {}
        names = dict.fromkeys((*self._judge.shown, *columns))
        return {**number, **{name: _shown(batch.column(name)[row].as_py()) for name in names}}


def _shown(value: Any) -> Any:
    """As JSON can say it."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
