"""Exports with partitions, through Dagster: each is a dataset of its own, made again by whoever runs it again."""

import json
import logging
import shutil
import sqlite3
import warnings
from datetime import datetime, timezone

import dagster as dg
import duckdb
import pandas as pd
import pytest

import rivet_dagster as rd
from tests.orchestration.kit import (
    events,
    failure,
    lines,
    materialization,
    materializations,
    on_disk,
    plain,
    run,
    told,
)

DAYS = ["2024-10-26", "2024-10-27", "2024-10-28", "2024-10-29", "2024-10-30"]
BERLIN = dg.DailyPartitionsDefinition(start_date=DAYS[0], end_date="2024-10-31", timezone="Europe/Berlin")
BY_TIME = rd.PartitionBy(column="created", time_zone="UTC")
WITHIN_A_RUN = "ignore:Parameter `backfill_policy`|ignore:Class `BackfillPolicy`"
pytestmark = pytest.mark.filterwarnings("ignore:.*BackfillPolicy.single_run")


@pytest.fixture
def kept(tmp_path):
    """An instance as a daemon opens it."""
    (tmp_path / "home").mkdir()
    with dg.instance_for_test(temp_dir=str(tmp_path / "home")) as found:
        yield found


@pytest.fixture
def visits_file(tmp_path):
    """Every two hours a visit, by UTC, from one day before the partitions to one day after them."""
    path = tmp_path / "site.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table visits (id integer primary key, created datetime, country text, n integer)")
        connection.execute(
            "with recursive t(i) as (select 0 union all select i + 1 from t where i < 84) "
            "insert into visits select i, datetime('2024-10-25 00:00:00', (i * 2) || ' hours'), "
            "case i % 3 when 0 then 'DE' when 1 then 'de' else 'a/b' end, i from t"
        )
    connection.close()
    return path


@pytest.fixture
def site(visits_file):
    return rd.DatabaseResource(url=f"sqlite:///{visits_file}")


def change(path, statement):
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def visits(partitions_def=BERLIN, by=BY_TIME, *, ranged=False, **more):
    if ranged:
        more["backfill_policy"] = dg.BackfillPolicy.single_run()
    export = rd.Export(name="visits", table="visits", partition_by=by)
    return rd.build_export_asset(export, partitions_def=partitions_def, **more)


def export(asset, lake, site, instance, *keys, io_manager=None, others=()):
    """One run, of one partition or of all from the first key to the last."""
    to = io_manager or rd.LocalIOManager(path=str(lake))
    if len(keys) == 1:
        more = {"partition_key": keys[0]}
    else:
        more = {"tags": {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}}
    return run([asset, *others], to, instance, resources={"source": site}, **more)


def ids(lake, key):
    (root,) = {m.parent for m in lake.glob("visits/*/manifest.json") if _key(m) == key}
    paths = [str(root / part["path"]) for part in json.loads((root / "manifest.json").read_bytes())["parts"]]
    return [i for (i,) in duckdb.sql(f"select id from read_parquet({paths}) order by id").fetchall()] if paths else []


def _key(manifest):
    return json.loads(manifest.read_bytes())["dagster"]["partition_key"]


def between(low, high):
    """The visits from one hour on to another, counted from the first."""
    return [i for i in range(85) if low <= 2 * i < high]


# Berlin is two hours ahead of UTC until the night to the 27th, which is an hour longer.
HOURS = [22, 46, 71, 95, 119, 143]
EXPECTED = {key: between(low, high) for key, low, high in zip(DAYS, HOURS, HOURS[1:], strict=False)}


def test_each_day_of_a_time_zone_is_a_delivery_of_its_own(lake, site, instance):
    asset = visits()
    for key in DAYS[:3]:
        result = export(asset, lake, site, instance, key)
        found = materialization(result, "visits")
        assert (found.partition, plain(found.metadata)["dagster/row_count"]) == (key, len(EXPECTED[key]))
    assert {key: ids(lake, key) for key in DAYS[:3]} == {key: EXPECTED[key] for key in DAYS[:3]}
    assert plain(found.metadata)["rivet/window"] == {
        "column": "created",
        "low": "2024-10-27T23:00:00.000000",
        "low_open": False,
        "high": "2024-10-28T23:00:00.000000",
        "high_open": True,
        "nulls": False,
    }
    assert plain(found.metadata)["dagster/uri"] == f"{(lake / 'visits/partition=2024-10-28').as_uri()}/"


def test_running_a_partition_again_replaces_it_and_touches_no_other(lake, site, visits_file, instance):
    asset = visits()
    for key in DAYS[:2]:
        export(asset, lake, site, instance, key)
    first = materialization(export(asset, lake, site, instance, DAYS[0]), "visits")
    other = on_disk(lake / "visits" / f"partition={DAYS[1]}")
    change(visits_file, "delete from visits where id = 12")
    change(visits_file, "insert into visits values (99, '2024-10-26 12:30:00', 'DE', 1), (98, null, 'DE', 1)")
    again = materialization(export(asset, lake, site, instance, DAYS[0]), "visits")
    assert ids(lake, DAYS[0]) == [i for i in EXPECTED[DAYS[0]] if i != 12] + [99]
    assert on_disk(lake / "visits" / f"partition={DAYS[1]}") == other
    assert len([*(lake / "visits" / f"partition={DAYS[0]}" / "data").iterdir()]) == 1
    versions = [m.tags["dagster/data_version"] for m in (first, again)]
    assert versions[0] != versions[1]
    same = materialization(export(asset, lake, site, instance, DAYS[0]), "visits")
    assert same.tags["dagster/data_version"] == versions[1]
    assert plain(same.metadata)["rivet/nulls_excluded"] == 1


def test_one_partition_a_run_unless_it_is_said_otherwise():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asset = visits()
    assert asset.backfill_policy.max_partitions_per_run == 1
    assert visits(ranged=True).backfill_policy.max_partitions_per_run is None


SHOP = rd.DatabaseResource(url="sqlite:///site.db")
STATIC = dg.StaticPartitionsDefinition(["DE"])


@pytest.mark.parametrize(
    ("export_", "more", "expected"),
    [
        ({}, {"partitions_def": STATIC}, "which rows are of a partition, found none; name the column"),
        ({"partition_by": "country"}, {}, "give partitions_def, too"),
        ({}, {"backfill_policy": dg.BackfillPolicy.single_run()}, "backfill_policy is of partitions"),
        (
            {"partition_by": "country"},
            {"partitions_def": dg.MultiPartitionsDefinition({"a": STATIC, "b": STATIC})},
            "found MultiPartitionsDefinition; of several dimensions, make one key",
        ),
        ({"partition_by": BY_TIME}, {"partitions_def": STATIC}, "of partitions of time; leave them out"),
        (
            {"mode": rd.Incremental(cursor_column="id")},
            {"partitions_def": BERLIN},
            "without another mode than Full",
        ),
    ],
    ids=["no-column", "no-partitions", "policy-alone", "two-dimensions", "a-zone-of-names", "incremental"],
)
def test_what_leaves_open_which_rows_are_meant_is_refused_where_it_is_defined(export_, more, expected, tmp_path):
    wanted = rd.Export(name="visits", table="visits", **export_)
    with pytest.raises(rd.ConfigError, match=expected):
        rd.build_export_asset(wanted, **more)
    with pytest.raises(rd.ConfigError, match=expected):
        rd.build_export_definitions([wanted], source=SHOP, destination=rd.LocalIOManager(path=str(tmp_path)), **more)


def test_a_stream_takes_one_partition_at_a_time(lake, site, instance, capfd):
    result = export(visits(), lake, site, instance, DAYS[0], io_manager=rd.StdoutIOManager())
    assert plain(materialization(result, "visits").metadata)["dagster/row_count"] == 12
    assert len(capfd.readouterr().out.splitlines()) == 13
    ranged = export(visits(ranged=True), lake, site, instance, *DAYS, io_manager=rd.StdoutIOManager())
    assert "stdout-no-ranges" in failure(ranged, "visits").user_failure_data.description
    assert capfd.readouterr().out == ""
    with pytest.raises(rd.PlanRejected, match="stdout-no-ranges"):
        rd.build_export_definitions(
            [rd.Export(name="visits", table="visits", partition_by=BY_TIME)],
            source=site,
            destination=rd.StdoutIOManager(),
            partitions_def=BERLIN,
            backfill_policy=dg.BackfillPolicy.single_run(),
        )


KEYS = [
    "2024/01",
    "2024%2f01",
    "0.1",
    "0.2",
    "2024-01-01T00:00:00+00:00",
    "..",
    ".",
    "A",
    "a",
    "a b",
    " ",
    "%",
    "é",
    "_SUCCESS",
]


def test_every_key_is_a_value_and_a_place_of_its_own(lake, site, visits_file, instance):
    for i, key in enumerate(KEYS):
        change(visits_file, f"update visits set country = '{key}' where id = {i}")
    named = dg.StaticPartitionsDefinition(KEYS)
    result = export(visits(named, "country", ranged=True), lake, site, instance, *KEYS)
    assert result.success, told(result, "visits")
    assert {key: ids(lake, key) for key in KEYS} == {key: [i] for i, key in enumerate(KEYS)}
    assert len({p.name.casefold() for p in (lake / "visits").iterdir()}) == len(KEYS)
    slashed = dg.DailyPartitionsDefinition(start_date="2024/10/26", fmt="%Y/%m/%d")
    export(visits(slashed), lake, site, instance, "2024/10/26")
    assert ids(lake, "2024/10/26") == between(24, 48)


def test_partitions_that_are_added_later_are_exported_and_asked_for(lake, site, kept):
    countries = dg.DynamicPartitionsDefinition(name="countries")
    kept.add_dynamic_partitions("countries", ["DE", "a/b"])
    result = export(visits(countries, "country"), lake, site, kept, "a/b")
    assert result.success, told(result, "visits")
    assert ids(lake, "a/b") == [i for i in range(85) if i % 3 == 2]
    defs = _defs(site, lake, countries, by="country")
    assert asked_for(defs, kept, "2024-11-01T02:00:00") == ["DE", "a/b"]


def _defs(site, lake, partitions_def, *, by=BY_TIME):
    return rd.build_export_definitions(
        [rd.Export(name="visits", table="visits", partition_by=by)],
        source=site,
        destination=rd.LocalIOManager(path=str(lake)),
        name="site",
        schedule="0 2 * * *",
        partitions_def=partitions_def,
    )


def asked_for(defs, instance, moment):
    repository = defs.get_repository_def()
    at = datetime.fromisoformat(moment).replace(tzinfo=timezone.utc)
    with dg.build_schedule_context(
        instance=instance, scheduled_execution_time=at, repository_def=repository
    ) as context:
        tick = repository.get_schedule_def("site_schedule").evaluate_tick(context)
    return [request.partition_key for request in tick.run_requests]


def test_a_schedule_asks_for_the_days_that_are_over_and_none_is_left_out(lake, site, kept):
    defs = _defs(site, lake, BERLIN)
    (schedule,) = defs.get_repository_def().schedule_defs
    assert schedule.execution_timezone == "Europe/Berlin"
    assert asked_for(defs, kept, "2024-10-26T01:00:00") == []
    # What was before the schedule is a backfill, and nobody's surprise.
    assert asked_for(defs, kept, "2024-10-29T01:00:00") == [DAYS[2]]
    job = defs.resolve_job_def("site")
    assert job.execute_in_process(instance=kept, partition_key=DAYS[0]).success
    assert asked_for(defs, kept, "2024-10-29T01:00:00") == DAYS[1:3]
    assert job.execute_in_process(instance=kept, partition_key=DAYS[2]).success
    assert asked_for(defs, kept, "2024-10-29T01:00:00") == [DAYS[2]]
    running = dg.DailyPartitionsDefinition(start_date=DAYS[0], timezone="Europe/Berlin", end_offset=1)
    assert asked_for(_defs(site, lake, running), kept, "2024-10-29T01:00:00") == DAYS[2:4]


def test_partitions_come_back_together_or_each_on_its_own(lake, site, instance):
    given = {}

    @dg.asset(io_manager_key="mem")
    def whole(visits: pd.DataFrame):
        given["whole"] = sorted(visits["id"])

    @dg.asset(io_manager_key="mem")
    def each(visits: dict[str, pd.DataFrame]):
        given["each"] = {key: sorted(rows["id"]) for key, rows in visits.items()}

    asset = visits(ranged=True)
    assert export(asset, lake, site, instance, *DAYS).success
    resources = {"source": site, "mem": dg.mem_io_manager}
    done = run(
        [asset, whole, each], rd.LocalIOManager(path=str(lake)), instance, resources=resources, selection=[whole, each]
    )
    assert done.success, told(done, "whole")
    assert given["each"] == EXPECTED
    assert given["whole"] == [i for key in DAYS for i in EXPECTED[key]]


def test_each_partition_of_a_run_is_checked(lake, site, instance):
    asset = visits(ranged=True)
    checks = rd.build_manifest_checks(asset)
    result = export(asset, lake, site, instance, *DAYS[:3], others=checks)
    (found,) = result.get_asset_check_evaluations()
    assert found.passed, found.description
    assert plain(found.metadata)["rivet/partitions_checked"] == 3
    (part,) = (lake / "visits" / f"partition={DAYS[1]}" / "data").iterdir()
    part.unlink()
    tags = {"dagster/asset_partition_range_start": DAYS[0], "dagster/asset_partition_range_end": DAYS[2]}
    alone = run(
        [asset, *checks],
        rd.LocalIOManager(path=str(lake)),
        instance,
        resources={"source": site},
        selection=dg.AssetSelection.checks(*checks),
        tags=tags,
    )
    (verdict,) = alone.get_asset_check_evaluations()
    assert not verdict.passed
    assert DAYS[1] in verdict.description
    assert DAYS[0] not in verdict.description


def test_a_partition_that_the_destination_has_lost_is_made_again_with_a_warning(lake, site, instance):
    asset = visits()
    export(asset, lake, site, instance, DAYS[0])
    shutil.rmtree(lake / "visits" / f"partition={DAYS[0]}")
    other, same = (export(asset, lake, site, instance, key) for key in (DAYS[1], DAYS[0]))
    warned = [[x for x in lines(instance, r.run_id, level=logging.WARNING) if "lost" in x] for r in (other, same)]
    assert [len(x) for x in warned] == [0, 1]
    assert ids(lake, DAYS[0]) == EXPECTED[DAYS[0]]


def job_of_visits():
    """Loaded by name in each process, as Dagster does it; what differs comes from the environment."""
    definitions = dg.Definitions(
        assets=[visits(ranged=True)],
        resources={
            "io_manager": rd.LocalIOManager(path=dg.EnvVar("TEST_LAKE")),
            "source": rd.DatabaseResource(url=dg.EnvVar("TEST_DATABASE_URL")),
        },
        jobs=[dg.define_asset_job("export_visits")],
        executor=dg.multiprocess_executor,
    )
    return definitions.resolve_job_def("export_visits")


def test_a_range_keeps_what_it_could_export_and_its_reexecution_exports_the_rest(lake, kept, visits_file, monkeypatch):
    monkeypatch.setenv("TEST_LAKE", str(lake))
    monkeypatch.setenv("TEST_DATABASE_URL", f"sqlite:///{visits_file}")
    broken = EXPECTED[DAYS[2]][3]
    change(visits_file, f"update visits set n = 'many' where id = {broken}")
    tags = {"dagster/asset_partition_range_start": DAYS[0], "dagster/asset_partition_range_end": DAYS[-1]}
    job = dg.reconstructable(job_of_visits)
    parent = dg.execute_job(job, instance=kept, tags=tags, raise_on_error=False)
    assert not parent.success
    said = failure(parent, "visits").user_failure_data.description
    assert "1 of 5 partitions failed" in said
    assert f"  {DAYS[2]}: " in said
    assert "ASSET_MATERIALIZATION" not in events(kept, parent.run_id)
    there = sorted(p.parent.name for p in lake.rglob("_SUCCESS"))
    assert there == [f"partition={key}" for key in DAYS if key != DAYS[2]]
    before = {p: p.stat().st_mtime_ns for p in lake.rglob("*.parquet")}
    change(visits_file, f"update visits set n = {broken} where id = {broken}")
    child = dg.execute_job(
        job, instance=kept, tags=tags, reexecution_options=dg.ReexecutionOptions.from_failure(parent.run_id, kept)
    )
    assert child.success
    found = {m.partition: plain(m.metadata) for m in materializations(child, "visits")}
    assert {key: ids(lake, key) for key in DAYS} == EXPECTED
    assert {p: p.stat().st_mtime_ns for p in lake.rglob("*.parquet")}.items() >= before.items()
    assert {key: said["dagster/row_count"] for key, said in found.items()} == {k: len(v) for k, v in EXPECTED.items()}
    by = {key: parent.run_id in said["rivet/run_id"] for key, said in found.items()}
    assert by == {key: key != DAYS[2] for key in DAYS}


def test_a_run_without_a_partition_is_told_to_choose_one(lake, site, instance):
    result = run([visits()], rd.LocalIOManager(path=str(lake)), instance, resources={"source": site})
    assert "visits: expected a run of a partition" in failure(result, "visits").user_failure_data.description
    assert not lake.exists()
