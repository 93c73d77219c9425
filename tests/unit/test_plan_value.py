"""Values that assets return: taken as they are, or refused with a reason."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rivet_dagster.attempt import Extraction as Expected
from rivet_dagster.errors import ConfigError, ContractError, PlanRejected
from rivet_dagster.exports.extraction import Extraction, plan_value
from rivet_dagster.exports.formats import Csv
from rivet_dagster.exports.output import resolve_output
from rivet_dagster.exports.spec import Batches
from rivet_dagster.manifest import Column, Content, Dataset, Identity
from tests.unit.encoded import Shelf, bodies, read_back


def plan(value: Any, **settings: Any) -> Extraction:
    return plan_value(value, export_name="mart/orders", output=resolve_output(**settings), head=None)


def exported(value: Any) -> pa.Table:
    """What a reader finds after the value was exported to Parquet."""
    planned = plan(value)
    found = read_back(list(planned.parts(Shelf().stage)))
    planned.close()
    assert [Column(name=f.name, type=str(f.type), nullable=f.nullable) for f in found.schema] == list(
        planned.content.columns
    )
    return found


def test_the_content_says_what_is_known() -> None:
    planned = plan(pa.table({"id": [1], "t": ["x"]}), format=Csv(compression="gzip"), skip_empty=True)
    assert planned.content == Content(
        export_name="mart/orders",
        identity=Identity(export="mart/orders"),
        dataset=Dataset.SNAPSHOT,
        strategy="full",
        engine="dagster",
        format="csv",
        compression="gzip",
        columns=(Column(name="id", type="int64"), Column(name="t", type="string")),
    )
    assert planned.suffix == ".csv.gz"
    assert planned.skip_empty is True
    assert planned.gates == ()
    assert dict(planned.counters()) == {}
    as_the_seam_wants_it: Expected = planned
    assert as_the_seam_wants_it is planned


class Pieces:
    """An iterator that counts how often it was closed; a generator would be closed by being forgotten, too."""

    def __init__(self, pieces: list[Any]) -> None:
        self.pieces = iter(pieces)
        self.closed = 0

    def __iter__(self) -> Pieces:
        return self

    def __next__(self) -> Any:
        return next(self.pieces)

    def close(self) -> None:
        self.closed += 1


class TestKinds:
    TABLE = pa.table({"id": [1, 2, 3], "t": ["a", None, ""]})

    @pytest.mark.parametrize(
        "value",
        [
            TABLE,
            pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=2)),
            Batches(TABLE.to_batches(max_chunksize=2)),
            Batches([TABLE.slice(0, 1), TABLE.slice(1)]),
            Batches(iter([TABLE.slice(0, 0), TABLE.to_batches()[0]])),
            Batches([TABLE], schema=TABLE.schema),
            Batches([TABLE.select(["t", "id"])], schema=TABLE.schema),
            TABLE.to_pandas(),
            Batches([TABLE.slice(0, 1).to_pandas(), TABLE.slice(1, 1).to_pandas(), TABLE.slice(2).to_pandas()]),
        ],
        ids=["table", "reader", "batches", "tables", "with-empty", "schema", "reordered", "frame", "frames"],
    )
    def test_each_gives_the_same_rows(self, value: Any) -> None:
        assert exported(value).equals(self.TABLE)

    @pytest.mark.parametrize(
        "value", [None, 1, "text", [TABLE], {"a": [1]}, iter([TABLE]), TABLE["id"], pd.Series([1])]
    )
    def test_anything_else_is_refused_and_the_message_says_what_will_do(self, value: Any) -> None:
        with pytest.raises(ConfigError) as e:
            plan(value)
        for wanted in (
            "mart/orders",
            "pandas.DataFrame",
            "pyarrow.Table",
            "RecordBatchReader",
            "Batches",
            type(value).__name__,
        ):
            assert wanted in str(e.value)

    @pytest.mark.parametrize("piece", [{"id": [1]}, [1], None])
    def test_so_is_anything_else_in_batches(self, piece: Any) -> None:
        pieces = Pieces([piece])
        with pytest.raises(ConfigError, match=f"Batches.*{type(piece).__name__}"):
            plan(Batches(pieces))
        assert pieces.closed == 1
        planned = plan(Batches([self.TABLE, piece]))
        with pytest.raises(ConfigError, match=f"Batches.*{type(piece).__name__}"):
            list(planned.parts(Shelf().stage))

    def test_an_empty_table_gives_no_part_but_its_columns(self) -> None:
        planned = plan(self.TABLE.slice(0, 0))
        assert [c.name for c in planned.content.columns] == ["id", "t"]
        assert list(planned.parts(Shelf().stage)) == []

    def test_metadata_of_pandas_and_others_is_left_out(self) -> None:
        noisy = self.TABLE.replace_schema_metadata({"pandas": "{}", "made": "yesterday"})
        assert bodies(list(plan(noisy).parts(Shelf().stage))) == bodies(list(plan(self.TABLE).parts(Shelf().stage)))

    def test_how_values_are_stored_does_not_matter(self) -> None:
        words = ["a", None, "b", "a"]
        stored = {
            "d": pa.array(words).dictionary_encode(),
            "v": pa.array(words, pa.string_view()),
            "r": pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["a", "b"])),
            "w": pa.array([dt.date(2024, 1, 1)] * 4, pa.date64()),
            "s": pa.array([1, 2, 3, None], pa.timestamp("s", "UTC")),
            "n": pa.array([[w] for w in words], pa.list_(pa.string_view())),
            "e": pa.array([Decimal("0.0000001"), None, Decimal("-1.5"), Decimal(0)], pa.decimal32(9, 7)),
            "f": pa.array([Decimal("0.0000001"), None, Decimal("-1.5"), Decimal(0)], pa.decimal64(18, 7)),
        }
        found = exported(pa.table(stored))
        assert [str(f.type) for f in found.schema] == [
            "string",
            "string",
            "string",
            "date32[day]",
            "timestamp[ms, tz=UTC]",
            "list<element: string>",
            "decimal128(9, 7)",
            "decimal128(18, 7)",
        ]
        assert found.to_pylist() == pa.table(stored).to_pylist()
        csv = bodies(list(plan(pa.table(stored).select(["e", "f"]), format="csv").parts(Shelf().stage)))
        assert csv == [b'"e","f"\r\n0.0000001,0.0000001\r\n,\r\n-1.5000000,-1.5000000\r\n0.0000000,0.0000000\r\n']

    def test_lists_that_are_views_come_out_as_they_read(self) -> None:
        """Out of order, overlapping, sliced, and behind NULL: Arrow's own cast takes the wrong values."""
        starts, sizes, mask = [3, 0, 1, 0], [1, 2, 1, 3], pa.array([False, False, False, True])
        few, many = (
            kind.from_arrays(pa.array(starts, width), pa.array(sizes, width), pa.array([10, 11, 12, 13]), mask=mask)
            for kind, width in ((pa.ListViewArray, pa.int32()), (pa.LargeListViewArray, pa.int64()))
        )
        deep = pa.array([[["a"], ["b", "c"]], None, [], [None]], pa.list_view(pa.list_view(pa.string())))
        choice = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1]), pa.array([["x"], ["y", "z"]]))
        table = pa.table({"few": few, "many": many, "deep": deep, "choice": choice})
        for value in (table, table.slice(1, 1), Batches([table.slice(2), table.slice(1, 1)])):
            found = exported(value)
            assert [str(f.type) for f in found.schema][:2] == ["list<element: int64>", "large_list<element: int64>"]
            pieces = value.batches if isinstance(value, Batches) else [value]
            assert found.to_pylist() == [row for piece in pieces for row in piece.to_pylist()]

    def test_views_within_other_types_are_refused_with_the_remedy(self) -> None:
        within = pa.array([{"x": [1]}], pa.struct([("x", pa.list_view(pa.int64()))]))
        for value in (pa.table({"odd": within}), Batches([pa.table({"odd": within})])):
            with pytest.raises(ContractError, match=r"'odd'.*convert them to lists"):
                exported(value)

    def test_a_table_without_columns_is_refused(self) -> None:
        for value in (pa.table({}), pd.DataFrame(), pd.DataFrame(index=range(3))):
            with pytest.raises(ConfigError, match="at least one column"):
                plan(value)

    def test_columns_of_one_name_are_refused_by_name(self) -> None:
        table = pa.table([[1], [2], [3], [4], [5]], names=["id", "x", "id", "y", "x"])
        frame = pd.DataFrame([[1, 2, 3, 4, 5]], columns=table.column_names)
        for value in (table, frame, Batches([table]), Batches([frame])):
            with pytest.raises(ConfigError, match="'id', 'x'"):
                plan(value)
        with pytest.raises(ConfigError, match="'1'"):
            plan(pd.DataFrame([[1, 2]], columns=[1, "1"]))

    def test_names_that_differ_in_case_alone_are_two_columns(self) -> None:
        assert exported(pa.table({"Id": [1], "id": [2]})).to_pylist() == [{"Id": 1, "id": 2}]


class TestTypesThatAFormatCannotHold:
    NESTED = pa.table({"id": [1], "tags": [["a"]], "address": [{"city": "x"}], "t": ["x"]})

    def test_csv_refuses_nested_columns_before_the_first_row_and_names_them_all(self) -> None:
        with pytest.raises(PlanRejected) as e:
            plan(self.NESTED, format="csv")
        assert [(d.rule, d.subject) for d in e.value.diagnostics] == [("csv-column-type", "export 'mart/orders'")] * 2
        for said in ("'tags'", "list<", 'cast("text")', "'address'", "struct<", "Parquet"):
            assert said in str(e.value)
        assert "'id'" not in str(e.value)

    def test_parquet_holds_them(self) -> None:
        assert exported(self.NESTED).equals(self.NESTED)

    @pytest.mark.parametrize("kind", [pa.month_day_nano_interval(), pa.decimal128(5, -2), pa.struct([])])
    def test_parquet_refuses_what_it_has_no_type_for(self, kind: pa.DataType) -> None:
        with pytest.raises(PlanRejected, match=r"parquet-column-type.*'odd'"):
            plan(pa.table({"odd": pa.nulls(1, kind), "id": [1]}))

    def test_a_level_that_cannot_be_is_refused_too(self) -> None:
        with pytest.raises(PlanRejected, match="codec-level"):
            plan(pa.table({"a": [1]}), format=Csv(compression="zstd", level=9))

    def test_what_is_refused_is_closed(self) -> None:
        pieces = Pieces([self.NESTED])
        with pytest.raises(PlanRejected):
            plan(Batches(pieces), format="csv")
        assert pieces.closed == 1


class TestDataFrames:
    def test_nullable_integers_keep_every_digit(self) -> None:
        found = exported(pd.DataFrame({"a": pd.array([9007199254740993, None], dtype="Int64")}))
        assert found.schema.field("a").type == pa.int64()
        assert found["a"].to_pylist() == [9007199254740993, None]

    def test_nan_is_null_as_in_pandas(self) -> None:
        assert exported(pd.DataFrame({"a": [1.5, float("nan")]}))["a"].to_pylist() == [1.5, None]

    def test_objects_are_typed_by_the_whole_column(self) -> None:
        late = [None] * 5_000 + ["x"]
        found = exported(
            pd.DataFrame({"t": pd.Series(late, dtype=object), "d": pd.Series([None] * 5_000 + [Decimal("1.5")])})
        )
        assert [f.type for f in found.schema] == [pa.string(), pa.decimal128(2, 1)]
        assert found["t"].to_pylist() == late

    def test_usual_types(self) -> None:
        at = dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc)
        frame = pd.DataFrame(
            {
                "i": np.array([1, 2], dtype="int32"),
                "u": np.array([2**64 - 1, 0], dtype="uint64"),
                "b": [True, False],
                "t": pd.Series(["x", None], dtype="string"),
                "c": pd.Categorical(["p", None]),
                "n": pd.to_datetime(["2024-02-29 12:00:00.123456789", None]),
                "z": pd.to_datetime([at, None]),
                "day": [dt.date(2024, 2, 29), None],
                "dec": [Decimal("12345678901234567890.01"), None],
                "by": [b"\x00", None],
                "l": [[1, 2], None],
            }
        )
        found = exported(frame)
        assert [str(f.type) for f in found.schema] == [
            "int32",
            "uint64",
            "bool",
            "string",
            "string",
            "timestamp[ns]",
            "timestamp[ns, tz=UTC]",
            "date32[day]",
            "decimal128(22, 2)",
            "binary",
            "list<element: int64>",
        ]
        assert found["u"].to_pylist() == [2**64 - 1, 0]
        assert found["c"].to_pylist() == ["p", None]
        assert found["n"][0].value == 1709208000123456789
        assert found["z"].to_pylist()[0] == at
        assert found["dec"].to_pylist() == [Decimal("12345678901234567890.01"), None]

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            (["a", 1], "int, str"),
            (["a", b"b"], "bytes, str"),
            ([True, 1], "bool, int"),
            ([dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 9)], "date, datetime"),
            ([dt.datetime(2024, 1, 1, 9), dt.date(2024, 1, 1)], "date, datetime"),
            ([dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)], "time zone"),
            ([{"a": 1}, [1]], "dict, list"),
            ([Decimal("1.5"), 1.5], "Decimal, float"),
            ([2**53 + 1, 0.5], "9007199254740993"),
            ([2**64 - 1, -1], "too large|too big|int"),
            ([object(), None], "object"),
            ([dt.time(9, tzinfo=dt.timezone.utc)], "time zone"),
            ([[dt.date(2024, 1, 1)], [dt.datetime(2024, 1, 1, 9)]], "within its lists.*date, datetime"),
            ([[True, 1.5]], "within its lists.*bool, float"),
            ([{"a": [{"b": 1}]}, {"a": [{"b": True}]}], "within 'a', within its lists, within 'b'.*bool, int"),
            ([[pd.Timestamp(1)]], "within its lists.*nanoseconds"),
            ([pd.Timestamp(1), dt.datetime(1500, 1, 1)], "nanosecond"),
        ],
    )
    def test_a_column_of_mixed_values_is_refused_by_name(self, values: list[Any], said: str) -> None:
        frame = pd.DataFrame({"fine": range(len(values)), "odd": pd.Series(values, dtype=object)})
        with pytest.raises(ContractError, match=f"mart/orders.*'odd'.*({said})"):
            plan(frame)

    def test_whole_numbers_among_floats_and_decimals_are_exact(self) -> None:
        frame = pd.DataFrame(
            {"f": pd.Series([1, 2.5], dtype=object), "d": pd.Series([1, Decimal("2.5")], dtype=object)}
        )
        assert exported(frame).to_pylist() == [{"f": 1.0, "d": Decimal("1.0")}, {"f": 2.5, "d": Decimal("2.5")}]

    def test_nanoseconds_of_objects_are_kept(self) -> None:
        at, long = pd.Timestamp("2024-02-29 12:00:00.123456789"), pd.Timedelta(1)
        micro = pd.DataFrame(
            {n: pd.Series([v], dtype=object) for n, v in (("at", at.floor("us")), ("for", long * 1e3))}
        )
        assert [str(f.type) for f in exported(micro).schema] == ["timestamp[us]", "duration[us]"]
        frame = pd.DataFrame(
            {
                "at": pd.Series([at, dt.datetime(2024, 1, 1), None], dtype=object),
                "there": pd.Series([at.tz_localize("Europe/Rome"), pd.NaT, None], dtype=object),
                "long": pd.Series([dt.timedelta(days=1), long, None], dtype=object),
                "which": pd.Categorical([at, None, at]).rename_categories(pd.Index([at], dtype=object)),
            }
        )
        found = exported(frame)
        assert [str(f.type) for f in found.schema] == [
            "timestamp[ns]",
            "timestamp[ns, tz=Europe/Rome]",
            "duration[ns]",
            "timestamp[ns]",
        ]
        assert found["at"][0].value == found["which"][2].value == at.value
        assert found["there"].to_pylist() == [at.tz_localize("Europe/Rome"), None, None]
        assert [x.value for x in found["long"]] == [86_400_000_000_000, 1, None]

    def test_values_that_are_missing_within_others_have_no_type(self) -> None:
        rows = [{"n": [1, None, float("nan"), pd.NA], "x": 1}, {"n": None, "x": 2.5}]
        found = exported(pd.DataFrame({"s": rows}))
        assert found["s"].to_pylist() == [{"n": [1, None, None, None], "x": 1.0}, {"n": None, "x": 2.5}]

    def test_categories_are_of_one_type_too(self) -> None:
        odd = pd.Categorical([dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 9)])
        with pytest.raises(ContractError, match=r"'odd'.*date, datetime"):
            plan(pd.DataFrame({"odd": odd}))

    def test_a_sparse_column_is_exported_whole(self) -> None:
        frame = pd.DataFrame({"s": pd.arrays.SparseArray([0, 0, 7]), "f": pd.arrays.SparseArray([None, 1.5, None])})
        assert exported(frame).to_pydict() == {"s": [0, 0, 7], "f": [None, 1.5, None]}

    def test_types_of_pandas_alone_are_refused(self) -> None:
        for odd in (pd.period_range("2024-01", periods=1, freq="M"), pd.interval_range(0, 1)):
            with pytest.raises(ContractError, match="'odd'"):
                plan(pd.DataFrame({"odd": odd}))

    def test_uuids_are_exact_or_refused(self) -> None:
        """What pyarrow does with them depends on its version."""
        key = uuid.UUID(int=2**127 + 5)
        try:
            found = exported(pd.DataFrame({"u": [key, None]}))
        except ContractError as e:
            assert "'u'" in str(e)  # noqa: PT017
        else:
            assert found["u"].to_pylist() == [key, None]

    def test_an_index_of_row_numbers_is_left_out(self) -> None:
        frame = pd.DataFrame({"a": [1, 2, 3]})
        for value in (frame, frame[frame.a > 1], frame.sort_values("a", ascending=False), frame.iloc[:0]):
            assert plan(value).content.columns == (Column(name="a", type="int64"),)

    def test_an_index_with_a_name_is_a_column(self) -> None:
        frame = pd.DataFrame({"country": ["x", "y", "x"], "a": [1, 2, 3]}).groupby("country").sum()
        assert exported(frame).to_pylist() == [{"country": "x", "a": 4}, {"country": "y", "a": 2}]
        frame = pd.DataFrame({"k": [1, 2], "l": ["p", "q"], "a": [3, 4]}).set_index(["k", "l"])
        assert exported(frame).to_pylist() == [{"k": 1, "l": "p", "a": 3}, {"k": 2, "l": "q", "a": 4}]
        repeated = pd.DataFrame({"a": [1, 2]}, index=pd.Index([7, 7], name="k"))
        assert exported(repeated).to_pylist() == [{"k": 7, "a": 1}, {"k": 7, "a": 2}]

    def test_an_index_of_values_without_a_name_is_refused(self) -> None:
        for index in (
            ["p", "q"],
            pd.to_datetime(["2024-01-01", "2024-01-02"]),
            pd.MultiIndex.from_tuples([(1, 2), (3, 4)]),
        ):
            with pytest.raises(ConfigError, match=r"index.*rename_axis.*reset_index"):
                plan(pd.DataFrame({"a": [1, 2]}, index=index))

    def test_an_index_named_like_a_column_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="'a'"):
            plan(pd.DataFrame({"a": [1]}, index=pd.Index([1], name="a")))

    def test_levels_of_column_names_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="2 levels"):
            plan(pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")])))

    def test_the_frame_is_not_changed(self) -> None:
        frame = pd.DataFrame({"a": pd.Series(["x", None], dtype=object)}, index=pd.Index([1, 2], name="k"))
        before = frame.copy(deep=True)
        exported(frame)
        pd.testing.assert_frame_equal(frame, before)


class TestBatches:
    def test_the_first_piece_fixes_the_schema(self) -> None:
        planned = plan(Batches([pa.table({"a": [1]}), pa.table({"b": [1]})]))
        with pytest.raises(ContractError, match=r"mart/orders.*\['a'\].*\['b'\]"):
            list(planned.parts(Shelf().stage))

    @pytest.mark.parametrize(
        ("first", "later", "said"),
        [
            ([None], ["x"], "'v'.*null.*string.*schema="),
            ([1], [1.5], "'v'.*int64.*double"),
            ([1], [None, 2.0], "Int64"),
            (["x"], [1], "'v'.*string.*int64"),
            ([Decimal("1.5")], [Decimal("12.5")], r"'v'.*decimal128\(2, 1\).*decimal128\(3, 1\)"),
            ([dt.datetime(2024, 1, 1)], [dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)], "'v'.*tz"),
            ([{"a": 1}], [{"a": 1, "b": 2}], "'v'.*struct"),
        ],
    )
    @pytest.mark.parametrize("make", [pd.DataFrame, pa.table])
    def test_values_that_do_not_fit_it_are_refused_and_named(
        self, make: Any, first: list[Any], later: list[Any], said: str
    ) -> None:
        def column(values: list[Any]) -> Any:
            return values if make is pa.table or isinstance(values[-1], float) else pd.Series(values, dtype=object)

        planned = plan(Batches([make({"v": column(first)}), make({"v": column(later)})]))
        with pytest.raises(ContractError, match=said):
            list(planned.parts(Shelf().stage))

    @pytest.mark.parametrize(
        ("kind", "pieces", "found"),
        [
            (pa.string(), [[None], ["x"]], [None, "x"]),
            (pa.int64(), [[None], [1]], [None, 1]),
            (
                pa.decimal128(12, 2),
                [[Decimal("1.5")], [Decimal("1234567.25")], [3]],
                [Decimal("1.50"), Decimal("1234567.25"), Decimal("3.00")],
            ),
            (pa.list_(pa.int64()), [[None], [[1]]], [None, [1]]),
            (pa.float64(), [[None], [1.5]], [None, 1.5]),
        ],
    )
    @pytest.mark.parametrize("make", [pd.DataFrame, pa.table])
    def test_a_stated_schema_lets_the_types_be_known(
        self, make: Any, kind: pa.DataType, pieces: list[Any], found: list[Any]
    ) -> None:
        def column(values: list[Any]) -> Any:
            return values if make is pa.table else pd.Series(values, dtype=object)

        batches = Batches((make({"v": column(p)}) for p in pieces), schema=pa.schema([("v", kind)]))
        assert exported(batches)["v"].to_pylist() == found

    def test_whole_numbers_are_floats_where_floats_came_first(self) -> None:
        """pandas reads a column as floats where a piece has NULL, and as integers where it has none."""
        pieces = [pd.DataFrame({"v": [1.5, None]}), pd.DataFrame({"v": [2, 2**53]}), pd.DataFrame({"v": [3.5]})]
        for batches in (Batches(pieces), Batches(pieces[1:], schema=pa.schema([("v", pa.float64())]))):
            assert exported(batches)["v"].to_pylist()[-3:] == [2.0, 2.0**53, 3.5]

    def test_a_value_beyond_the_stated_type_is_refused(self) -> None:
        for kind, value in (
            (pa.float64(), 2**53 + 1),
            (pa.int8(), 300),
            (pa.decimal128(3, 1), Decimal("99.25")),
            (pa.timestamp("us"), pd.Timestamp("2024-01-01 00:00:00.000000001")),
        ):
            planned = plan(Batches([pd.DataFrame({"v": [value]})], schema=pa.schema([("v", kind)])))
            with pytest.raises(ContractError, match=r"'v'.*schema="):
                list(planned.parts(Shelf().stage))

    def test_null_where_the_schema_allows_none_is_refused(self) -> None:
        schema = pa.schema([pa.field("v", pa.int64(), nullable=False)])
        planned = plan(Batches([pa.table({"v": [1]}), pa.table({"v": pa.array([None], pa.int64())})], schema=schema))
        with pytest.raises(ContractError, match=r"'v'.*NULL"):
            list(planned.parts(Shelf().stage))

    def test_without_a_piece_and_a_schema_nothing_is_known(self) -> None:
        with pytest.raises(ConfigError, match="schema="):
            plan(Batches([]))
        assert list(plan(Batches([], schema=pa.schema([("a", pa.int64())]))).parts(Shelf().stage)) == []

    def test_only_one_piece_is_read_before_the_first_part_is_asked_for(self) -> None:
        read: list[int] = []

        def pieces() -> Iterator[pa.Table]:
            for i in range(3):
                read.append(i)
                yield pa.table({"a": [i]})

        planned = plan(Batches(pieces()))
        assert read == [0]
        assert exported_rows(planned) == [0, 1, 2]

    def test_an_error_of_the_iterator_is_told_as_it_is_and_leaves_no_part(self) -> None:
        def pieces() -> Iterator[pa.Table]:
            yield pa.table({"a": [1]})
            raise ZeroDivisionError("theirs")

        shelf = Shelf()
        with pytest.raises(ZeroDivisionError, match="theirs"):
            list(plan(Batches(pieces())).parts(shelf.stage))
        assert all(s.discarded for s in shelf.staged)

    def test_close_closes_the_iterator_and_may_be_called_again(self) -> None:
        pieces = Pieces([pa.table({"a": [1]})])
        planned = plan(Batches(pieces))
        assert pieces.closed == 0
        planned.close()
        planned.close()
        assert pieces.closed == 2
        plan(Batches([pa.table({"a": [1]})])).close()


def exported_rows(planned: Extraction) -> list[Any]:
    return read_back(list(planned.parts(Shelf().stage)))["a"].to_pylist()


ROOT = Path(__file__).parents[2]
ROWS_WITHOUT_PANDAS = """
select i, 'x' || i as t, if(i % 2 = 0, null, i::decimal(12, 2)) as d, 1e-7::decimal(20, 7) as small, i / 7 as f,
    timestamp '2024-01-01' + to_seconds(i) as at, date '2024-01-01' as day, i::varchar::blob as b, i > 3 as flag
from range(100) r(i)
"""


@pytest.mark.parametrize("fmt", ["parquet", "csv"])
def test_without_a_dataframe_pandas_stays_out(fmt: str) -> None:
    """Half a second and forty megabytes for each process. The rows are DuckDB's, because `pa.table` imports it."""
    code = (
        "import sys, duckdb\n"
        "from rivet_dagster.exports.extraction import plan_value\n"
        "from rivet_dagster.exports.output import resolve_output\n"
        "from tests.unit.encoded import Shelf\n"
        f"rows = duckdb.sql({ROWS_WITHOUT_PANDAS!r}).to_arrow_table()\n"
        f"output = resolve_output(format={fmt!r}, max_file_size=3_000)\n"
        "parts = list(plan_value(rows, export_name='x', output=output, head=None).parts(Shelf().stage))\n"
        "print(len(parts) > 1, sum(p.rows for p in parts), 'pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "True 100 False"
