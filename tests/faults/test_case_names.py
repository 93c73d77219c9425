"""Names of columns, partitions and neighbours: told apart, or refused by name; never merged, lost or led astray."""

import csv
import io
import sqlite3

import dagster as dg
import duckdb
import pandas as pd
import pyarrow as pa
import pytest

import rivet_dagster as rd
from tests.faults.kit import read_as_a_reader
from tests.faults.lakes import NO_WAIT, S3_ALONE, said, table_of
from tests.servers import mariadb, postgres

OLD = pa.table({"id": [1, 2, 3]})
# Dagster calls range runs a beta.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")

LOST = [["a", "b", "a"], ["a", ""], ["", ""]]
FRAMES_ONLY = [[1, "1"], [None, "None"], ["\ud800", "a"]]


def table_with(names):
    return pa.Table.from_arrays([pa.array([n, n + 10]) for n in range(len(names))], names=names)


def frame_with(names):
    frame = pd.DataFrame([[*range(len(names))]])
    frame.columns = pd.Index(names, dtype=object)
    return frame


VALUES = {
    "frame": frame_with,
    "table": table_with,
    "reader": lambda names: table_with(names).to_reader(),
    "batches": lambda names: rd.Batches(iter([table_with(names)])),
}


@pytest.mark.parametrize(
    ("kind", "names"), [*((k, n) for k in VALUES for n in LOST), *(("frame", n) for n in FRAMES_ONLY)], ids=repr
)
def test_a_column_that_would_be_lost_is_refused_by_its_name(shelf, kind, names):
    assert shelf.export(OLD).success
    before = shelf.raw
    done = shelf.export(lambda: VALUES[kind](names), policy=NO_WAIT)
    assert not done.success
    twice = [str(n) for n in names if [str(m) for m in names].count(str(n)) > 1]
    named = "column 2" if names == ["a", ""] else "column 1" if names == ["", ""] else repr((twice or names)[0])
    assert named in said(done)
    assert not any(e.is_step_restarted for e in done.all_events), "it would be refused again"
    assert shelf.raw == before


@pytest.mark.parametrize("deep", [False, True])
def test_a_field_within_a_column_that_would_be_lost_is_refused_by_its_name(shelf, deep):
    twins = pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([3, 4])], names=["x", "x"])
    column = pa.ListArray.from_arrays([0, 1, 2], twins) if deep else twins
    done = shelf.export(pa.table({"id": [1, 2], "twins": column}))
    assert not done.success
    assert "column 'twins'" in said(done)
    assert "'x'" in said(done)
    assert shelf.raw == {}


@pytest.fixture(params=["sqlite", "duckdb", "postgresql", "mysql"])
def database(request, servers, tmp_path):
    """Each database, empty, as a resource."""
    path = tmp_path / "shop.db"
    match request.param:
        case "sqlite":
            sqlite3.connect(path).close()
            return rd.DatabaseResource(url=f"sqlite:///{path}")
        case "duckdb":
            duckdb.connect(path).close()
            return rd.DatabaseResource(url=f"duckdb:///{path}")
        case "postgresql":
            return rd.DatabaseResource(url=servers(postgres).url)
        case _:
            return rd.DatabaseResource(url=servers(mariadb).new_database().url)


def export_query(lake, database, query, **settings):
    asset = rd.build_export_asset(rd.Export(name="orders", query=query), retry_policy=NO_WAIT)
    there = {"io_manager": lake.io_manager(**settings), "source": database}
    return dg.materialize([asset], instance=lake.instance, resources=there, raise_on_error=False)


def test_a_column_of_a_query_that_would_be_lost_is_refused_by_its_name(shelf, database):
    assert shelf.export(OLD).success
    before = shelf.raw
    done = export_query(shelf, database, "select 1 as id, 2 as other, 3 as id")
    assert not done.success
    assert "'id'" in said(done)
    assert not any(e.is_step_restarted for e in done.all_events)
    assert shelf.raw == before


# What databases have, too; the first line is alike where case, punctuation or accents are folded.
ODD = ["Id", "id", "iD", "na!e", "na%e", "na_e", "é", "e\u0301", "a b", "a  b"]
ODD += [
    "a.b",
    "a",
    "b.",
    'q"q',
    "q'q",
    "q`q",
    "a,b",
    "a;b",
    "a\nb",
    "a\rb",
    "a\r\nb",
    "a/b",
    "a\\b",
    "-",
    "1",
    "NULL",
    "#",
]
# And what only values have.
ODDER = [*ODD, " ", "a ", "\ufeff", "\u2028", "a\x01b", "x" * 20_000, "x" * 20_001, "partition=1", "_SUCCESS"]


def check_names(lake, done, names, fmt):
    assert done.success, said(done)
    (body,) = read_as_a_reader(lake.raw)
    if fmt == "csv":
        header, *rows = csv.reader(io.StringIO(body.decode(), newline=""))
        assert header == names
        assert rows[0] == [str(n) for n in range(len(names))]
    else:
        found = table_of(body)
        assert found.schema.names == names
        assert [c[0].as_py() for c in found.columns] == [*range(len(names))]
    (event,) = done.get_asset_materialization_events()
    shown = event.step_materialization_data.materialization.metadata["dagster/column_schema"].schema.columns
    assert [c.name for c in shown] == names
    assert [*lake.load(pa.Table).slice(0, 1).to_pylist()[0].items()] == [*zip(names, range(len(names)), strict=True)]


@pytest.mark.parametrize("fmt", ["parquet", "csv"])
def test_odd_column_names_arrive_as_they_are(shelf, fmt):
    check_names(shelf, shelf.export(lambda: table_with(ODDER), format=fmt), ODDER, fmt)
    check_names(shelf, shelf.export(lambda: frame_with(ODDER), format=fmt), ODDER, fmt)


@pytest.mark.parametrize("fmt", ["parquet", "csv"])
def test_odd_column_names_of_a_query_arrive_as_they_are(shelf, database, fmt):
    # PostgreSQL cuts longer ones itself.
    names = [*ODD, "x" * 62 + "1", "x" * 62 + "2", "é" * 31]
    mark = "`" if database.url.startswith("mysql") else '"'
    quoted = (name.replace(mark, mark * 2) for name in names)
    query = "select " + ", ".join(f"{n} as {mark}{name}{mark}" for n, name in enumerate(quoted))
    check_names(shelf, export_query(shelf, database, query, format=fmt), names, fmt)


def test_a_name_that_the_database_cuts_is_the_one_it_has(shelf, database):
    """Two of them are one, then: refused where it would lose a column."""
    mark = "`" if database.url.startswith("mysql") else '"'
    twins = [f"{mark}{'x' * 63}{end}{mark}" for end in "ab"]
    done = export_query(shelf, database, f"select 1 as {twins[0]}, 2 as {twins[1]}")
    if database.url.startswith("postgresql"):
        assert not done.success
        assert f"'{'x' * 63}' (2 times)" in said(done)
        assert shelf.raw == {}
    else:
        assert done.success, said(done)
        assert shelf.rows() == [{"x" * 63 + "a": 1, "x" * 63 + "b": 2}]


KEYS = ["2024/01", "2024%2f01", "2024", "0.1", "0.2", "2024-01-01T00:00:00+00:00", "..", ".", "A", "a", " ", "a b", "%"]
KEYS += ["é", "e\u0301", "\\", "?#", "*", "=", "data", "_SUCCESS", "manifest.json", "x" * 400, "x" * 401]


def export_partitions(lake, keys, *, partitions, policy=None):
    @dg.asset(
        key="orders",
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
        retry_policy=policy,
    )
    def orders(context: dg.AssetExecutionContext):
        return {str(key): pd.DataFrame({"key": [str(key)]}) for key in context.partition_keys}

    tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
    there = {"io_manager": lake.io_manager()}
    return dg.materialize([orders], instance=lake.instance, resources=there, tags=tags, raise_on_error=False)


def test_every_partition_key_has_a_place_of_its_own_below_its_asset(shelf):
    _a_place_each(shelf, KEYS)


def test_every_partition_key_has_a_place_of_its_own_in_the_clouds(cloud):
    _a_place_each(cloud, ["2024/01", "2024%2f01", "..", "é?#"])


def _a_place_each(lake, keys):
    done = export_partitions(lake, keys, partitions=dg.StaticPartitionsDefinition(keys))
    assert done.success, said(done)
    raw = lake.raw
    markers = [name for name in raw if name.endswith("/_SUCCESS")]
    assert all(name.startswith("orders/partition=") and name.count("/") == 2 for name in raw if "/data/" not in name)
    assert len({name.casefold() for name in markers}) == len(keys)
    found = [table_of(body)["key"].to_pylist() for name, body in raw.items() if "/data/" in name]
    assert sorted(found) == sorted([key] for key in keys)
    for root in (name.removesuffix("_SUCCESS") for name in markers):
        assert len(lake.rows(root)) == 1


def test_partitions_of_two_dimensions_have_a_place_each(shelf):
    days, zones = ["2024/01", "2024", "a"], ["01", "..", "b%7cc"]
    both = dg.MultiPartitionsDefinition(
        {"day": dg.StaticPartitionsDefinition(days), "zone": dg.StaticPartitionsDefinition(zones)}
    )
    keys = both.get_partition_keys()
    for key in keys:

        @dg.asset(key="orders", partitions_def=both)
        def orders(context: dg.AssetExecutionContext):
            return pd.DataFrame({"key": [str(context.partition_key)]})

        there = {"io_manager": shelf.io_manager()}
        assert dg.materialize([orders], instance=shelf.instance, resources=there, partition_key=key).success
    roots = [name.removesuffix("_SUCCESS") for name in shelf.raw if name.endswith("/_SUCCESS")]
    assert sorted(shelf.rows(root)[0]["key"] for root in roots) == sorted(map(str, keys))


def test_a_partition_key_that_cannot_be_is_refused_before_any_partition_is_written(shelf):
    keys = ["a", "", "b"]
    done = export_partitions(shelf, keys, partitions=dg.StaticPartitionsDefinition(keys), policy=NO_WAIT)
    assert not done.success
    assert "partition key is empty" in said(done)
    assert not any(e.is_step_restarted for e in done.all_events)
    assert shelf.raw == {}


def test_replacing_a_dataset_touches_no_neighbour_and_nothing_that_is_not_ours(shelf):
    _replaced(shelf, [("events",), ("event", "s"), ("event", "data"), ("Event",), ("event_1",)])


def test_replacing_a_dataset_touches_no_neighbour_and_nothing_that_is_not_ours_in_the_clouds(cloud):
    _replaced(cloud, [("events",), ("event", "s")])


def _replaced(lake, neighbours):
    for key in [("event",), *neighbours]:
        assert lake.export(OLD, key=key).success
    foreign = ["event/data/mine.parquet", "event/notes.txt", "event/manifest-mine.json", "event/s/data/mine.csv"]
    for name in foreign:
        lake.harness.put(name, b"mine")
    before = lake.raw
    assert lake.export(pa.table({"id": [4]}), key=("event",)).success
    after = lake.raw
    own = {k for k in before if k.startswith(("event/data/part-", "event/manifest"))} - {*foreign}
    assert {k: v for k, v in before.items() if k not in own | {"event/_SUCCESS"}}.items() <= after.items()
    assert not {k for k in own if k != "event/manifest.json"} & after.keys(), "the old delivery is gone"
    assert lake.rows("event/") == [{"id": 4}]
    assert lake.rows("events/") == lake.rows("event/s/") == OLD.to_pylist()


@pytest.mark.parametrize("cloud", S3_ALONE, indirect=True)
def test_one_prefix_has_one_spelling(cloud):
    """With or without its slash; what some store would take for another name is refused before any request."""
    assert cloud.export(OLD, prefix="p/x").success
    before = cloud.raw
    assert cloud.export(OLD, prefix="p/x/").success
    assert len(cloud.raw) == len(before)
    assert cloud.rows("../p/x/orders/") == OLD.to_pylist()
    before = cloud.raw
    for prefix in ("p//x", "/p/x"):
        done = cloud.export(OLD, prefix=prefix)
        assert not done.success
        assert repr(prefix) in said(done)
    assert cloud.raw == before
