"""Gates: each rule and its edges, and the same verdict however the rows come."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import rivet_dagster as rd
from rivet_dagster.errors import ConfigError, ContractError, SourceError
from rivet_dagster.exports import distinct, reading
from rivet_dagster.exports.judge import Judge
from rivet_dagster.exports.modes import Chunked
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.spec import Export
from rivet_dagster.exports.verdict import Finding, Verdict
from rivet_dagster.sources.connect import connect
from tests.unit import splittable
from tests.unit.encoded import Shelf

NAN = float("nan")
TYPES: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "x": pa.float64(),
    "name": pa.string(),
    "price": pa.decimal128(10, 2),
    "at": pa.timestamp("us", "UTC"),
}
SCHEMA = pa.schema(TYPES.items())


def judged(quality: Any, *tables: pa.Table, key: Any = (), schema: pa.Schema | None = None) -> Verdict:
    """The verdict on rows that come by one reading."""
    rows = [batch for table in tables for batch in table.to_batches()]
    schema = schema or rows[0].schema
    judge = Judge(rd.Quality.model_validate(quality), schema, subject="s", key=key, numbered=True)
    assert list(judge.over(rows)) == rows
    try:
        judge.gate()
    except ContractError:
        assert judge.verdict is not None
        assert judge.verdict.failed
    else:
        assert judge.verdict is not None
        assert not judge.verdict.failed
    return judge.verdict


def one(quality: Any, kind: pa.DataType, values: list[Any]) -> Finding:
    """What the one gate says of a column `c`."""
    (found,) = judged(quality, pa.table({"c": pa.array(values, kind)})).findings
    return found


MOMENT = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("quality", "kind", "values", "bad"),
    [
        ({"null_ratio_max": {"c": 0.5}}, pa.int64(), [None, 1], 0),
        ({"null_ratio_max": {"c": 0.49}}, pa.int64(), [None, 1], 1),
        ({"null_ratio_max": {"c": 0.29}}, pa.int64(), [None] * 29 + [1] * 71, 0),
        ({"null_ratio_max": {"c": 0}}, pa.int64(), [None], 1),
        ({"null_ratio_max": {"c": 0}}, pa.float64(), [NAN], 0),
        ({"null_ratio_max": {"c": 0}}, pa.list_(pa.int64()), [[1], None], 1),
        ({"unique": "c"}, pa.int64(), [1, 2, 1, 1], 2),
        ({"unique": ["c"]}, pa.int64(), [None, 1, None], 0),
        ({"unique": ["c"]}, pa.float64(), [NAN, 0.0, NAN, -0.0], 2),
        ({"unique": ["c"]}, pa.float32(), [0.1, 0.2, 0.1], 1),
        ({"unique": ["c"]}, pa.bool_(), [True, False, True], 1),
        ({"unique": ["c"]}, pa.string(), ["", "a", "a\0", "A", "a ", "", None], 1),
        ({"unique": ["c"]}, pa.large_string(), ["x" * 300, "x" * 301, "x" * 300], 1),
        ({"unique": ["c"]}, pa.binary(3), [b"abc", b"abd", b"abc"], 1),
        ({"unique": ["c"]}, pa.decimal128(20, 3), [Decimal("0.1"), Decimal("-0.1"), Decimal("0.100")], 1),
        ({"unique": ["c"]}, pa.decimal256(60, 3), [Decimal("1e50"), Decimal("1e51"), Decimal("1e50")], 1),
        ({"unique": ["c"]}, pa.date32(), [date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 1)], 1),
        ({"unique": ["c"]}, pa.uint8(), [255, 254, 255], 1),
        ({"accepted_values": {"c": ["a", "b"]}}, pa.string(), ["a", None, "B", "b", "c"], 2),
        ({"accepted_values": {"c": [1, "2"]}}, pa.int16(), [1, 2, 3, None], 1),
        ({"accepted_values": {"c": [0.0, NAN]}}, pa.float64(), [-0.0, NAN, 1.0], 1),
        ({"accepted_values": {"c": [-0.0]}}, pa.float32(), [0.0, NAN], 1),
        ({"accepted_values": {"c": [True]}}, pa.bool_(), [True, False, None], 1),
        ({"accepted_values": {"c": ["0.10", 2]}}, pa.decimal128(10, 2), [Decimal("0.1"), Decimal(2), Decimal(3)], 1),
        ({"min": {"c": 0}}, pa.float64(), [0.0, -0.0, NAN, math.inf, -math.inf, None], 2),
        ({"max": {"c": 1}}, pa.float64(), [1.0, NAN, math.inf], 2),
        ({"max": {"c": 0.1}}, pa.float32(), [0.1, 0.2], 1),
        ({"min": {"c": 0}}, pa.decimal128(10, 2), [Decimal("-0.01"), Decimal(0), None], 1),
        ({"max": {"c": Decimal("9.99")}}, pa.decimal256(40, 2), [Decimal("9.99"), Decimal(10)], 1),
        ({"min": {"c": "2026-01-31T13:00:00+01:00"}}, pa.timestamp("us", "UTC"), [MOMENT, MOMENT.replace(hour=11)], 1),
        ({"min": {"c": MOMENT}}, pa.timestamp("us", "UTC"), [MOMENT, None], 0),
        ({"max": {"c": date(2026, 1, 31)}}, pa.timestamp("ms"), [datetime(2026, 1, 31), datetime(2026, 1, 31, 1)], 1),
        ({"max": {"c": "2026-01-31"}}, pa.date32(), [date(2026, 1, 31), date(2026, 2, 1)], 1),
        ({"min": {"c": "08:00:00"}}, pa.time64("us"), [time(7, 59), time(8)], 1),
        ({"min": {"c": time(8)}}, pa.time32("ms"), [time(7, 59), time(8)], 1),
        ({"min": {"c": "b"}}, pa.string(), ["a", "b", "é"], 1),
        ({"min": {"c": 5.0}}, pa.int8(), [4, 5], 1),
    ],
)  # fmt: skip
def test_what_is_not_as_it_should_be_is_counted(quality: Any, kind: pa.DataType, values: list[Any], bad: int) -> None:
    found = one(quality, kind, values)
    assert (found.passed, found.rows) == (bad == 0, bad)
    assert len(found.examples) == min(bad, 10)


def test_rows_are_counted_over_all_batches() -> None:
    rows = pa.table({"id": [1, 2, 3]})
    assert [f.passed for f in judged({"row_count_min": 6, "row_count_max": 6}, rows, rows).findings] == [True, True]
    assert [f.passed for f in judged({"row_count_min": 7, "row_count_max": 9}, rows, rows).findings] == [False, True]
    assert [f.passed for f in judged({"row_count_min": 4, "row_count_max": 5}, rows, rows).findings] == [True, False]


def test_a_run_without_rows_is_judged_too() -> None:
    quality = {"null_ratio_max": {"id": 0}, "unique": ["id"], "min": {"id": 1}, "row_count_max": 0}
    assert not judged(quality, schema=SCHEMA).failed
    (failed,) = judged({**quality, "row_count_max": None, "row_count_min": 1}, schema=SCHEMA).failed
    assert str(failed) == "row_count_min: expected at least 1 row, found 0"


def test_examples_name_the_rows() -> None:
    rows = pa.table({"id": list(range(40)), "name": ["x", None] * 20, "row": ["r"] * 40})
    (found,) = judged({"null_ratio_max": {"name": 0}}, rows, key=("id",)).findings
    assert found.examples == tuple({"id": i, "name": None} for i in range(1, 20, 2))
    (found,) = judged({"null_ratio_max": {"name": 0}}, rows, rows).findings
    assert [e["row number"] for e in found.examples] == list(range(2, 21, 2))
    (found,) = judged({"unique": [["name", "row"]]}, rows, rows, key=("not", "there")).findings
    assert (found.rows, found.examples[0]) == (39, {"row number": 3, "name": "x", "row": "r"})


def test_the_message_says_all_that_failed() -> None:
    rows = pa.table({"id": [1, 1], "name": ["a", "b"]})
    judge = Judge(
        rd.Quality(unique="id", accepted_values={"name": ["a"]}, max={"id": 1}),
        rows.schema,
        subject="export 'x'",
        key=("id",),
        numbered=True,
    )
    list(judge.over(rows.to_batches()))
    with pytest.raises(ContractError) as caught:
        judge.gate()
    assert str(caught.value) == (
        "export 'x': quality: accepted_values of name: expected one of 'a', found 1 of 2 rows with another value "
        "(id=1, name='b'); unique of id: expected each key once, found 1 of 2 rows with a key that another one has "
        "(id=1); nothing was committed: correct the rows, or the gate"
    )


def test_it_can_be_written_in_yaml_and_an_editor_knows_how() -> None:
    """What the schema says of `unique` is what is accepted, and what is dumped can be read back."""
    said = rd.Quality.model_json_schema()["properties"]["unique"]["anyOf"]
    assert said[0] == {"type": "string"}
    assert [kind["type"] for kind in said[1]["items"]["anyOf"]] == ["string", "array"]
    told = {"unique": ["id", ["a", "b"]], "min": {"d": "2026-01-31", "n": 1}, "accepted_values": {"s": ["x", 2, 0.5]}}
    quality = rd.Quality.model_validate(told)
    assert quality.keys == (("id",), ("a", "b"))
    assert rd.Quality.model_validate_json(quality.model_dump_json()) == quality
    assert rd.Quality(unique="id").keys == (("id",),)


@pytest.mark.parametrize(
    ("quality", "said"),
    [
        ({}, "quality: expected at least one of"),
        ({"row_count_min": -1}, "quality.row_count_min"),
        ({"row_count_min": 2, "row_count_max": 1}, "found 2 and 1"),
        ({"null_ratio_max": {"c": 1.5}}, "quality.null_ratio_max.c: expected a number from 0 to 1, found 1.5"),
        ({"null_ratio_max": {"c": True}}, "quality.null_ratio_max.c"),
        ({"unique": [[]]}, "quality.unique: expected a column"),
        ({"unique": [["a", "a"]]}, "quality.unique: expected a column"),
        ({"unique": [3]}, "found 3"),
        ({"accepted_values": {"c": []}}, "quality.accepted_values.c: expected at least one value"),
        ({"accepted_values": {"c": [None]}}, "quality.accepted_values.c"),
        ({"min": {"c": [1]}}, "quality.min.c"),
        ({"unique": "c", "unique_memory": "much"}, "quality.unique_memory: expected a size"),
        ({"row_count": 1}, "quality.row_count\n"),
    ],
)
def test_what_no_gate_can_be_is_refused_where_it_is_written(quality: Any, said: str) -> None:
    with pytest.raises((ConfigError, ValidationError)) as caught:
        rd.Export(name="x", table="t", quality=quality)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("quality", "kind", "said"),
    [
        ({"min": {"d": 1}}, pa.int64(), "quality.min.d: expected a column of the export (c), found none"),
        ({"unique": [["c", "d"]]}, pa.int64(), "quality.unique: 'd': expected a column of the export"),
        ({"unique": "c"}, pa.list_(pa.int64()), "expected a column of single values, found list"),
        ({"unique": "c"}, pa.null(), "expected a column of single values, found null"),
        ({"min": {"c": 1}}, pa.list_(pa.int64()), "expected a column of single values"),
        ({"min": {"c": "a"}}, pa.binary(), "expected a column of single values"),
        ({"min": {"c": 1.5}}, pa.int64(), "expected a value of the column's type int64, found 1.5"),
        ({"min": {"c": 300}}, pa.int8(), "found 300"),
        ({"min": {"c": -1}}, pa.uint8(), "found -1"),
        ({"min": {"c": True}}, pa.int64(), "found True"),
        ({"min": {"c": math.inf}}, pa.int64(), "found inf"),
        ({"min": {"c": NAN}}, pa.float64(), "expected a bound, found NaN"),
        ({"min": {"c": "nan"}}, pa.float64(), "expected a bound, found NaN"),
        ({"min": {"c": "0.125"}}, pa.decimal128(10, 2), "found '0.125'; write one that it can hold exactly"),
        ({"min": {"c": "1e9"}}, pa.decimal128(5, 2), "found '1e9'"),
        ({"max": {"c": "2026-01-31"}}, pa.timestamp("us", "UTC"), "like 2026-01-31T12:00:00Z, with a time zone"),
        ({"max": {"c": MOMENT}}, pa.timestamp("us"), "without a time zone"),
        ({"max": {"c": datetime(2026, 1, 31, 12)}}, pa.date32(), "date32"),
        ({"max": {"c": "25:00"}}, pa.time64("us"), "found '25:00'"),
        ({"max": {"c": 1}}, pa.float16(), "halffloat"),
        ({"accepted_values": {"c": ["a", 1]}}, pa.string(), "quality.accepted_values.c: expected a value of"),
        ({"min": {"c": 2}, "max": {"c": 1}}, pa.int64(), "min.c: expected no more than quality.max.c, 1, found 2"),
    ],
)  # fmt: skip
def test_what_a_column_cannot_hold_is_refused_before_the_first_row(quality: Any, kind: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        judged(quality, schema=pa.schema({"c": kind}))
    assert said in str(caught.value)
    assert str(caught.value).startswith("s: quality.")


class TestMemory:
    def test_more_keys_than_it_holds_are_refused_and_never_guessed(self) -> None:
        quality = rd.Quality(unique="id", row_count_max=1, unique_memory=distinct.KEY_BYTES * 10)
        judge = Judge(quality, SCHEMA, subject="s", key=(), numbered=True)
        batch = pa.RecordBatch.from_pylist([{"id": i} for i in range(6)], SCHEMA)
        with pytest.raises(ContractError, match=r"unique_memory=320 holds.*to None for no limit"):
            list(judge.over([batch, batch]))
        assert judge.verdict is not None
        assert [(f.gate, f.column, f.passed) for f in judge.verdict.findings] == [("unique", "id", False)]

    def test_it_holds_what_it_says_and_a_reading_that_begins_anew_gives_it_back(self) -> None:
        quality = rd.Quality(unique="id", unique_memory=distinct.KEY_BYTES * 10)
        judge = Judge(quality, SCHEMA, subject="s", key=(), numbered=True)
        batch = pa.RecordBatch.from_pylist([{"id": i} for i in range(10)], SCHEMA)
        for _ in range(3):
            with pytest.raises(SourceError):
                list(judge.over(_breaks([batch])))
        list(judge.over([batch]))
        judge.gate()

    def test_arrays_take_no_more_than_that(self) -> None:
        """Measured where numpy allocates, also while the largest arrays are merged."""
        import tracemalloc

        keys, batch, batches = distinct.Keys(), 2**12, 96
        tracemalloc.start()
        try:
            for seed in range(batches):
                words = np.random.default_rng(seed).integers(0, 2**63, (2, batch), np.int64).view(np.uint64)
                keys.add("one", (words[0], words[1]), look=True)
            keys.settle("one")
            assert keys.repeated() == 0
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        # Of the batch itself there are a few copies, which do not grow with the run.
        assert peak < batches * batch * distinct.KEY_BYTES + batch * 100


def _breaks(batches: list[pa.RecordBatch]) -> Any:
    yield from batches
    raise SourceError("cut", transient=True)


def test_halves_that_agree_are_not_enough() -> None:
    """Keys with one first half, in one batch and in several, and interleaved: counted by both halves."""
    keys = distinct.Keys()
    for second in ([1, 2, 1], [2, 3], [4]):
        words = np.array(second, np.uint64)
        keys.add("r", (np.zeros_like(words), words), look=True)
    keys.settle("r")
    assert keys.repeated() == 2
    assert [keys.is_repeated((0, k)) for k in (1, 2, 3, 4)] == [True, True, False, False]


@given(st.lists(st.binary(max_size=600), max_size=30), st.lists(st.tuples(st.text(), st.text()), max_size=30))
def test_different_keys_have_different_digests(blobs: list[bytes], pairs: list[tuple[str, str]]) -> None:
    """Also where they lie at an offset, and where columns could run into each other."""
    array = pa.array([b"?", *blobs], pa.binary())[1:]
    (first, second), rows = distinct.hashes_of([array])
    assert len({*zip(first.tolist(), second.tolist(), strict=True)}) == len(set(blobs))
    assert rows.tolist() == [*range(len(blobs))]
    columns = [pa.array([p[i] for p in pairs], pa.string()) for i in range(2)]
    (first, second), _ = distinct.hashes_of(columns)
    assert len({*zip(first.tolist(), second.tolist(), strict=True)}) == len(set(pairs))


def rows_of_the_shop() -> st.SearchStrategy[list[dict[str, Any]]]:
    moments = st.integers(0, 3).map(lambda h: MOMENT.replace(hour=h))
    row = st.fixed_dictionaries(
        {
            "id": st.none() | st.integers(-2, 9),
            "x": st.none() | st.sampled_from([0.0, -0.0, NAN, 0.5, -1.0, math.inf]),
            "name": st.none() | st.sampled_from(["", "a", "A", "ab", "b" * 300]),
            "price": st.none() | st.sampled_from([Decimal("-0.01"), Decimal("0.00"), Decimal("9.99")]),
            "at": st.none() | moments,
        }
    )
    return st.lists(row, max_size=40)


QUALITY = {
    "null_ratio_max": {"name": 0.25},
    "unique": ("id", ("x", "name"), ("at", "price", "id")),
    "accepted_values": {"name": ["a", "ab"], "x": [0.0, 0.5]},
    "min": {"x": 0, "price": 0, "id": 0},
    "max": {"at": MOMENT.replace(hour=2)},
    "row_count_min": 3,
    "row_count_max": 30,
}


def oracle(rows: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """How many rows fail each gate, by pandas; of ratios and counts, whether the gate does."""
    frame = pd.DataFrame(rows, columns=[*TYPES], dtype=object)
    null = frame.map(lambda v: v is None).astype(bool)

    def where(column: str, bad: Any) -> int:
        return int(frame.loc[~null[column], column].map(bad).astype(bool).sum())

    said = {
        ("row_count_min", ""): int(len(rows) < 3),
        ("row_count_max", ""): int(len(rows) > 30),
        ("null_ratio_max", "name"): int(null["name"].sum()) if 4 * null["name"].sum() > len(rows) else 0,
        ("accepted_values", "name"): where("name", lambda v: v not in ("a", "ab")),
        ("accepted_values", "x"): where("x", lambda v: v not in (0.0, 0.5)),
        ("min", "x"): where("x", lambda v: not v >= 0),
        ("min", "price"): where("price", lambda v: v < 0),
        ("min", "id"): where("id", lambda v: v < 0),
        ("max", "at"): where("at", lambda v: v.hour > 2),
    }
    for names in (["id"], ["x", "name"], ["at", "price", "id"]):
        whole = frame.loc[~null[names].any(axis=1), names]
        said["unique", ", ".join(names)] = int(whole.duplicated().sum())
    return said


@settings(max_examples=80)
@given(rows_of_the_shop(), st.lists(st.integers(0, 40), max_size=5), st.lists(st.integers(0, 40), max_size=3))
@example([{"id": 1, "x": NAN, "name": "", "price": None, "at": None}] * 2, [1], [1])
def test_the_verdict_is_that_of_pandas_however_the_rows_come(
    rows: list[dict[str, Any]], cuts: list[int], begun_anew: list[int]
) -> None:
    """In any batches, by any number of readings, some of which break first and begin anew."""
    judge = Judge(rd.Quality.model_validate(QUALITY), SCHEMA, subject="s", key=("id",), numbered=False)
    table = pa.Table.from_pylist(rows, SCHEMA)
    ends = sorted({min(c, len(rows)) for c in cuts} | {len(rows)})
    for place, (low, high) in enumerate(zip([0, *ends], ends, strict=False)):
        batches = table.slice(low, high - low).to_batches(max_chunksize=1 + place)
        for broken in begun_anew:
            with pytest.raises(SourceError):
                list(judge.over(_breaks(batches[:broken])))
        list(judge.over(batches))
    expected = oracle(rows)
    try:
        judge.gate()
    except ContractError:
        assert any(expected.values())
    else:
        assert not any(expected.values())
    assert judge.verdict is not None
    assert judge.verdict.rows == len(rows)
    found = {(f.gate, f.column): f for f in judge.verdict.findings}
    assert {k: not f.passed for k, f in found.items()} == {k: v > 0 for k, v in expected.items()}
    counted = {k: f.rows for k, f in found.items() if not k[0].startswith("row_count")}
    assert counted == {k: v for k, v in expected.items() if not k[0].startswith("row_count")}
    for k, f in found.items():
        assert len(f.examples) == (0 if k[0].startswith("row_count") else min(10, expected[k])), k


class TestRuns:
    """Through the readings of an export, in a table of which a test says where it goes wrong."""

    def export(self, **quality: Any) -> Export:
        return Export(
            name="orders",
            table="orders",
            mode=Chunked(rows_per_part=25, parallel=3, consistency="statement"),
            quality=rd.Quality(**quality),
        )

    def plan(self, source: splittable.Table, export: Export) -> Any:
        return splittable.plan_export(
            export, export_name="orders", source=source, output=resolve_output(export=export), head=None
        )

    def test_ranges_that_are_read_again_count_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All three workers break in the middle of their first range, two times each."""
        monkeypatch.setattr(reading, "_PAUSE", lambda _state: 0.001)
        broken: dict[Any, int] = {}

        def cut(low: int | None, batch: int) -> None:
            if batch == 1 and broken.setdefault(low, 0) < 2:
                broken[low] += 1
                raise SourceError("cut", transient=True)

        planned = self.plan(
            splittable.Table(range(100), before_batch=cut),
            self.export(unique="id", row_count_min=100, row_count_max=100, max={"id": 98}),
        )
        parts = list(planned.parts(Shelf().stage))
        assert sum(p.rows for p in parts) == 100
        assert len(broken) > 1
        (gate,) = planned.gates
        with pytest.raises(ContractError, match="max of id"):
            gate()
        assert [(f.gate, f.passed, f.rows) for f in planned.judge.verdict.findings] == [
            ("row_count_min", True, 0),
            ("row_count_max", True, 0),
            ("max", False, 1),
            ("unique", True, 0),
        ]
        assert planned.judge.verdict.failed[0].examples == ({"id": 99},)

    def test_keys_are_compared_across_ranges(self, tmp_path: Path) -> None:
        """In a real table, whose primary key is shown."""
        with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
            shop.execute("create table orders (id integer primary key, code text)")
            shop.executemany("insert into orders values (?, ?)", [(i, f"c{i % 97}") for i in range(100)])
        planned = self.plan(connect(f"sqlite:///{tmp_path / 'shop.db'}"), self.export(unique="code", row_count_min=1))
        assert sum(p.rows for p in planned.parts(Shelf().stage)) == 100
        with pytest.raises(ContractError, match=r"unique of code: expected each key once, found 3 of 100 rows"):
            planned.gates[0]()
        (failed,) = planned.judge.verdict.failed
        assert {e["code"] for e in failed.examples} == {"c0", "c1", "c2"}
        assert all(e["code"] == f"c{e['id'] % 97}" for e in failed.examples)

    def test_nothing_of_a_dead_run_is_used_again(self) -> None:
        planned = self.plan(splittable.Table(range(100)), self.export(row_count_min=1))
        assert planned.content.resume is None
        assert planned.resume.reusable(None).because == "its gates judge all rows of one run"

    def test_a_gate_that_cannot_be_leaves_the_source_free(self) -> None:
        source = splittable.Table(range(100))
        with pytest.raises(ConfigError, match=r"export 'orders': quality\.min\.none: expected a column"):
            self.plan(source, self.export(min={"none": 1}))
        assert (source.still_open, source.began, source.ended) == (0, 1, 1)
