"""The manifest check as Dagster runs it: real deliveries, real damage, and which materialization is judged."""

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
import xxhash

import rivet_dagster as rd
from rivet_dagster.orchestration import checking
from rivet_dagster.orchestration.checks import build_manifest_checks
from tests.orchestration.kit import failure
from tests.orchestration.test_judgement import BY_RIVET

# Dagster's own word on `@asset(io_manager_def=…)`.
BETA = pytest.mark.filterwarnings("ignore:Parameter `io_manager_def`:dagster.BetaWarning")
ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


ROWS = 600


@dg.asset(metadata={"rivet/max_file_size": "2KB"})
def orders() -> pd.DataFrame:
    """A few parts."""
    return pd.DataFrame({"id": range(ROWS), "note": [f"note {n * 7919}" for n in range(ROWS)]})


@dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b/c"]))
def parted(context: dg.AssetExecutionContext) -> pd.DataFrame:
    return pd.DataFrame({"key": [context.partition_key]})


class Place:
    """One instance, one directory, and the check as a step of its own."""

    def __init__(self, base: Path, instance: dg.DagsterInstance) -> None:
        self.base, self.instance = base, instance
        self.resources = {"io_manager": rd.LocalIOManager(path=str(base))}

    def materialize(self, asset: dg.AssetsDefinition, **kwargs: Any) -> dg.ExecuteInProcessResult:
        return dg.materialize([asset], instance=self.instance, resources=self.resources, **kwargs)

    def check(
        self, asset: dg.AssetsDefinition, check: str = "manifest", *, raise_on_error: bool = True, **kwargs: Any
    ) -> Any:
        """Run one check alone and give its evaluation, or the failed result."""
        result = dg.materialize(
            [asset, *build_manifest_checks(asset, checks=check)],
            selection=dg.AssetSelection.all_asset_checks(),
            instance=self.instance,
            resources=self.resources,
            raise_on_error=raise_on_error,
            **kwargs,
        )
        found = result.get_asset_check_evaluations()
        return found[0] if found else result

    @property
    def parts(self) -> list[Path]:
        manifest = json.loads((self.base / "orders" / "manifest.json").read_bytes())
        return [self.base / "orders" / p["path"] for p in manifest["parts"]]


@pytest.fixture
def place(tmp_path: Path, instance: dg.DagsterInstance) -> Place:
    return Place(tmp_path, instance)


def _plain(evaluation: dg.AssetCheckEvaluation) -> dict[str, Any]:
    return {k: v.records if isinstance(v, dg.TableMetadataValue) else v.value for k, v in evaluation.metadata.items()}


def _faults(evaluation: dg.AssetCheckEvaluation) -> list[dict[str, Any]]:
    return [dict(r.data) for r in _plain(evaluation).get("rivet/fault_table", [])]


def _edit_manifest_and_marker(place: Place) -> None:
    """Leave two control objects that agree with each other; only the materialization remembers other bytes."""
    manifest = place.base / "orders" / "manifest.json"
    edited = manifest.read_bytes().replace(b'"rows"', b'"rows" ')
    manifest.write_bytes(edited)
    (place.base / "orders" / "_SUCCESS").write_text(f"xxh3:{xxhash.xxh3_64_hexdigest(edited)}\n")


def test_a_good_delivery_passes_with_its_numbers(place: Place) -> None:
    place.materialize(orders)
    found = place.check(orders)
    said = _plain(found)
    body = (place.base / "orders" / "manifest.json").read_bytes()
    assert (found.passed, found.check_name, found.severity) == (True, "manifest", ERROR)
    assert len(place.parts) > 1
    assert said == {
        "rivet/parts_checked": len(place.parts),
        "rivet/faults": 0,
        "rivet/bytes": sum(p.stat().st_size for p in place.parts),
        "rivet/rows": ROWS,
        "rivet/run_id": json.loads(body)["run_id"],
        "rivet/checksum": f"xxh3:{xxhash.xxh3_64_hexdigest(body)}",
        "rivet/verification": "size",
        "rivet/manifest": (place.base / "orders" / "manifest.json").as_uri(),
        "rivet/unknown_objects": 0,
        "rivet/duration_seconds": said["rivet/duration_seconds"],
    }
    assert isinstance(said["rivet/duration_seconds"], float)


def test_it_belongs_to_the_materialization_it_judged(place: Place) -> None:
    place.materialize(orders)
    (record,) = place.instance.fetch_materializations(orders.key, limit=1).records
    found = place.check(orders)
    assert found.target_materialization_data.storage_id == record.storage_id


def test_in_the_run_that_materializes_it_judges_that_delivery(place: Place) -> None:
    for _ in range(2):
        result = dg.materialize(
            [orders, *build_manifest_checks(orders)], instance=place.instance, resources=place.resources
        )
        (found,) = result.get_asset_check_evaluations()
        (event,) = result.get_asset_materialization_events()
        said = event.materialization.metadata
        assert found.passed
        assert _plain(found)["rivet/run_id"] == said["rivet/run_id"].value
        assert _plain(found)["rivet/checksum"] == said["rivet/checksum"].value


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda part: part.write_bytes(part.read_bytes() + b"x"), "size"),
        (lambda part: part.write_bytes(part.read_bytes()[:-1]), "size"),
        (lambda part: part.unlink(), "missing"),
    ],
    ids=["append a byte", "truncate", "delete"],
)
def test_a_damaged_part_fails_with_part_and_kind(place: Place, damage: Callable[[Path], object], kind: str) -> None:
    place.materialize(orders)
    part = place.parts[1]
    size = part.stat().st_size
    damage(part)
    found = place.check(orders)
    assert (found.passed, found.severity) == (False, ERROR)
    (fault,) = _faults(found)
    assert (fault["path"], fault["kind"]) == (part.relative_to(place.base / "orders").as_posix(), kind)
    assert fault["expected"] == f"{size} bytes"
    assert _plain(found)["rivet/faults"] == 1
    assert fault["path"] in found.description


def test_an_edited_manifest_fails(place: Place) -> None:
    place.materialize(orders)
    manifest = place.base / "orders" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"rows"', b'"rows" '))
    found = place.check(orders)
    assert [(f["kind"], f["path"]) for f in _faults(found)] == [("manifest", "manifest.json")]
    assert not found.passed


def test_a_manifest_and_marker_edited_together_fail(place: Place) -> None:
    """They agree with each other, and not with what the materialization recorded."""
    place.materialize(orders)
    _edit_manifest_and_marker(place)
    assert [f["kind"] for f in _faults(place.check(orders))] == ["manifest", "marker"]


@pytest.mark.parametrize("body", [b"xxh3:0123456789abcdef\n", b"", b"yes"])
def test_an_edited_marker_fails(place: Place, body: bytes) -> None:
    place.materialize(orders)
    (place.base / "orders" / "_SUCCESS").write_bytes(body)
    found = place.check(orders)
    assert [(f["kind"], f["path"]) for f in _faults(found)] == [("marker", "_SUCCESS")]
    assert not found.passed


def test_a_deleted_marker_fails(place: Place) -> None:
    place.materialize(orders)
    (place.base / "orders" / "_SUCCESS").unlink()
    (fault,) = _faults(place.check(orders))
    assert (fault["kind"], fault["found"]) == ("marker", "nothing")


def test_a_deleted_manifest_fails(place: Place) -> None:
    place.materialize(orders)
    (place.base / "orders" / "manifest.json").unlink()
    assert [(f["kind"], f["found"]) for f in _faults(place.check(orders))] == [("manifest", "nothing")]


def test_a_foreign_object_is_a_note(place: Place) -> None:
    place.materialize(orders)
    (place.base / "orders" / "data" / "theirs.parquet").write_bytes(b"theirs")
    found = place.check(orders)
    said = _plain(found)
    assert (found.passed, said["rivet/unknown_objects"]) == (True, 1)
    assert "data/theirs.parquet" in said["rivet/notes"][0]
    assert (place.base / "orders" / "data" / "theirs.parquet").exists()


def test_a_byte_that_turned_is_red_in_the_check_of_the_content_alone(place: Place) -> None:
    """Its size is the same, and a local file has no checksum of its own."""
    place.materialize(orders)
    part = place.parts[1]
    body = bytearray(part.read_bytes())
    body[len(body) // 2] ^= 1
    part.write_bytes(body)
    built = [orders, *build_manifest_checks(orders, checks=("manifest", "content"))]
    result = dg.materialize(
        built,
        selection=dg.AssetSelection.all_asset_checks(),
        instance=place.instance,
        resources=place.resources,
    )
    (step,) = (e.step_key for e in result.all_events if e.is_step_success)
    found = {e.check_name: e for e in result.get_asset_check_evaluations()}
    assert (step, {n: e.passed for n, e in found.items()}) == ("orders_checks", {"manifest": True, "content": False})
    (fault,) = _faults(found["content"])
    assert (fault["path"], fault["kind"]) == (part.relative_to(place.base / "orders").as_posix(), "checksum")
    assert hashlib.md5(body).hexdigest() in fault["found"]
    said = _plain(found["content"])
    assert (said["rivet/faults"], said["rivet/rows"]) == (1, ROWS)
    assert said["rivet/bytes_read"] == said["rivet/bytes"] == sum(p.stat().st_size for p in place.parts)
    numbers = {n: type(found["content"].metadata[n]) for n in ("rivet/faults", "rivet/rows", "rivet/bytes_read")}
    assert set(numbers.values()) == {dg.IntMetadataValue}


def test_many_faults_are_counted_and_the_table_stays_short(place: Place) -> None:
    place.materialize(orders)
    manifest = json.loads((place.base / "orders" / "manifest.json").read_bytes())
    manifest["parts"] = [{**manifest["parts"][0], "part_id": n, "path": f"data/{n}.parquet"} for n in range(1, 121)]
    manifest |= {"part_count": 120, "row_count": 120 * manifest["parts"][0]["rows"]}
    body = json.dumps(manifest).encode()
    (place.base / "orders" / "manifest.json").write_bytes(body)
    (place.base / "orders" / "_SUCCESS").write_text(f"xxh3:{xxhash.xxh3_64_hexdigest(body)}\n")
    # Nothing recorded says that this is not the manifest.
    with dg.DagsterInstance.ephemeral() as new:
        found = Place(place.base, new).check(orders)
    assert (_plain(found)["rivet/faults"], len(_faults(found))) == (120, 50)
    assert _plain(found)["rivet/parts_checked"] == 120


def test_a_delivery_that_another_instance_replaced_passes_with_a_warning(place: Place, tmp_path: Path) -> None:
    place.materialize(orders)
    (record,) = place.instance.fetch_materializations(orders.key, limit=1).records
    run_id = record.asset_materialization.metadata["rivet/run_id"].value
    with dg.DagsterInstance.ephemeral() as elsewhere:
        Place(tmp_path, elsewhere).materialize(orders)
    found = place.check(orders)
    successor = json.loads((place.base / "orders" / "manifest.json").read_bytes())["run_id"]
    assert (found.passed, found.severity) == (True, WARN)
    assert successor != run_id
    assert _plain(found)["rivet/successor"] == successor
    assert successor in found.description


def test_after_a_second_materialization_the_newest_is_judged(place: Place) -> None:
    for _ in range(2):
        place.materialize(orders)
    found = place.check(orders)
    assert (found.passed, found.severity, "rivet/successor" in found.metadata) == (True, ERROR, False)


def test_a_materialization_that_somebody_reported_by_hand_is_skipped_over(place: Place) -> None:
    place.materialize(orders)
    place.instance.report_runless_asset_event(dg.AssetMaterialization(orders.key, metadata={"theirs": 1}))
    _edit_manifest_and_marker(place)
    assert [f["kind"] for f in _faults(place.check(orders))] == ["manifest", "marker"]


def test_an_asset_that_was_never_materialized_fails_and_says_so(place: Place) -> None:
    found = place.check(orders)
    assert (found.passed, found.severity) == (False, ERROR)
    assert [(f["kind"], f["found"]) for f in _faults(found)] == [("manifest", "nothing")]
    assert "materialize it" in found.description


def test_an_asset_of_which_no_run_had_a_row_says_that_none_left_a_delivery(place: Place) -> None:
    shop = place.base / "shop.db"
    with sqlite3.connect(shop) as database:
        database.execute("create table orders (id integer)")
    database.close()
    place.resources["source"] = rd.DatabaseResource(url=f"sqlite:///{shop}")
    empty = rd.build_export_asset(rd.Export(name="orders", table="orders", skip_empty=True))
    assert place.materialize(empty).success
    found = place.check(empty)
    assert (found.passed, found.severity) == (False, ERROR)
    assert "no materialization of this asset with a delivery is recorded" in found.description


def test_without_any_record_the_manifest_found_is_judged(place: Place) -> None:
    """A new deployment, or an event log that was wiped."""
    place.materialize(orders)
    with dg.DagsterInstance.ephemeral() as new:
        elsewhere = Place(place.base, new)
        found = elsewhere.check(orders)
        assert (found.passed, _plain(found)["rivet/rows"]) == (True, ROWS)
        assert "no materialization" in found.description
        place.parts[0].unlink()
        assert [f["kind"] for f in _faults(elsewhere.check(orders))] == ["missing"]


def test_a_dataset_that_rivet_wrote_is_judged(place: Place) -> None:
    body = BY_RIVET.read_bytes()
    prefix = place.base / "orders"
    prefix.mkdir()
    part = prefix / json.loads(body)["parts"][0]["path"]
    part.write_bytes(b"x" * 10_401)
    (prefix / "manifest.json").write_bytes(body)
    (prefix / "_SUCCESS").write_text(f"xxh3:{xxhash.xxh3_64_hexdigest(body)}\n")
    found = place.check(orders)
    said = _plain(found)
    assert (found.passed, said["rivet/rows"], said["rivet/verification"]) == (True, 30, "unknown")
    part.unlink()
    assert [f["kind"] for f in _faults(place.check(orders))] == ["missing"]


def test_each_partition_is_judged_on_its_own_in_its_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = checking.judge

    def damages_a(destination: Any, prefix: Any, **recorded: Any) -> Any:
        if prefix.root == "parted/partition=a/":
            (part,) = (place.base / "parted" / "partition=a" / "data").iterdir()
            part.write_bytes(b"")
        return judge(destination, prefix, **recorded)

    monkeypatch.setattr(checking, "judge", damages_a)
    found = {}
    for key in ("a", "b/c"):
        built = [parted, *build_manifest_checks(parted)]
        result = dg.materialize(built, instance=place.instance, resources=place.resources, partition_key=key)
        (found[key],) = result.get_asset_check_evaluations()
    bad, good = found["a"], found["b/c"]
    assert (bad.partition, bad.passed, [f["kind"] for f in _faults(bad)]) == ("a", False, ["size"])
    assert (good.partition, good.passed, _plain(good)["rivet/rows"]) == ("b/c", True, 1)


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
def test_in_a_run_of_a_range_each_of_its_partitions_is_judged(place: Place) -> None:
    @dg.asset(
        name="parted",
        partitions_def=dg.StaticPartitionsDefinition(["a", "b/c", "d", "e"]),
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def ranged(context: dg.AssetExecutionContext) -> dict[str, pd.DataFrame]:
        return {key: pd.DataFrame({"key": [key]}) for key in context.partition_keys}

    tags = {"dagster/asset_partition_range_start": "b/c", "dagster/asset_partition_range_end": "e"}
    place.materialize(ranged, tags=tags)
    for check in ("manifest", "content"):
        good = place.check(ranged, check, tags=tags)
        assert good.passed, good.description
        assert {_plain(good)[f"rivet/{name}"] for name in ("partitions_checked", "parts_checked", "rows")} == {3}
    (part,) = (place.base / "parted" / "partition=d" / "data").iterdir()
    part.unlink()
    bad = place.check(ranged, tags=tags)
    # What Dagster shows of a partition, and what conditions go by, is what was recorded of it and of its delivery.
    run_id = place.instance.get_runs(limit=1)[0].run_id
    recorded = place.instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    of_each = {e.partition: e for r in recorded if (e := r.dagster_event.asset_check_evaluation_data).partition}
    assert {key: e.passed for key, e in of_each.items()} == {"b/c": True, "d": False, "e": True}
    for key, e in of_each.items():
        wanted = dg.AssetRecordsFilter(dg.AssetKey("parted"), asset_partitions=[key])
        (delivered,) = place.instance.fetch_materializations(wanted, limit=1).records
        assert e.target_materialization_data.storage_id == delivered.storage_id
    assert (bad.passed, bad.severity) == (False, ERROR)
    assert "3 partitions checked, 1 failed; d: data/part-" in bad.description
    assert [(f["path"].partition(":")[0], f["kind"]) for f in _faults(bad)] == [("d", "missing")]
    other = Place(place.base, dg.DagsterInstance.ephemeral())
    other.materialize(ranged, tags=tags)
    late = place.check(ranged, tags=tags)
    assert (late.passed, late.severity) == (True, WARN)
    assert "superseded" in late.description
    other.instance.dispose()


def test_a_partition_can_be_judged_later(place: Place) -> None:
    for key in ("a", "b/c"):
        place.materialize(parted, partition_key=key)
    (part,) = (place.base / "parted" / "partition=a" / "data").iterdir()
    part.unlink()
    bad, good = (place.check(parted, tags={"dagster/partition": key}) for key in ("a", "b/c"))
    assert (bad.partition, bad.passed, [f["kind"] for f in _faults(bad)]) == ("a", False, ["missing"])
    assert (good.partition, good.passed, _plain(good)["rivet/rows"]) == ("b/c", True, 1)
    of_none = place.check(parted, raise_on_error=False)
    assert "choose a partition" in failure(of_none, "parted_manifest").user_failure_data.description


def test_a_blocking_check_holds_downstream_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    @dg.asset(deps=[orders], io_manager_key="none")
    def after() -> None:
        ran.append(True)

    (check,) = build_manifest_checks(orders, blocking=True)
    judge = checking.judge

    def damaged_first(*args: Any, **kwargs: Any) -> Any:
        place.parts[0].unlink()
        return judge(*args, **kwargs)

    monkeypatch.setattr(checking, "judge", damaged_first)
    resources = {**place.resources, "none": dg.InMemoryIOManager()}
    result = dg.materialize([orders, check, after], instance=place.instance, resources=resources, raise_on_error=False)
    assert (result.success, ran) == (False, [])


def test_a_store_that_cannot_be_asked_gives_no_evaluation(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from rivet_dagster.destinations.local import LocalDestination

    def fails(self: object, key: str, **_range: object) -> object:
        msg = f"{key}: the store does not answer"
        raise rd.DestinationError(msg)

    place.materialize(orders)
    monkeypatch.setattr(LocalDestination, "read", fails)
    result = place.check(orders, raise_on_error=False)
    assert not result.success
    (failed,) = [e for e in result.all_events if e.is_step_failure]
    assert "does not answer" in str(failed.step_failure_data.error)


class TestBuilding:
    """What is refused when the check is built, and what it is built from."""

    @BETA
    def test_a_stream_keeps_nothing_to_check(self) -> None:
        @dg.asset(io_manager_def=rd.StdoutIOManager())
        def printed() -> pd.DataFrame:
            return pd.DataFrame({"x": [1]})

        with pytest.raises(rd.ConfigError, match=r"printed: .*keeps objects, found stdout"):
            build_manifest_checks(printed)

    def test_a_stream_is_known_by_the_promises_on_the_asset(self) -> None:
        @dg.asset(metadata={"rivet/commit_protocol": "Streaming"})
        def printed() -> pd.DataFrame:
            return pd.DataFrame({"x": [1]})

        with pytest.raises(rd.ConfigError, match="keeps objects"):
            build_manifest_checks(printed)

    def test_a_stream_that_shows_only_at_run_time_fails_without_a_verdict(self, place: Place) -> None:
        place.resources = {"io_manager": rd.StdoutIOManager()}
        result = place.check(orders, raise_on_error=False)
        (failed,) = [e for e in result.all_events if e.is_step_failure]
        assert "keeps objects" in str(failed.step_failure_data.user_failure_data.description)

    def test_another_io_manager_is_named(self, place: Place) -> None:
        place.resources = {"io_manager": dg.InMemoryIOManager()}
        result = place.check(orders, raise_on_error=False)
        (failed,) = [e for e in result.all_events if e.is_step_failure]
        assert "InMemoryIOManager" in str(failed.step_failure_data.user_failure_data.description)

    @BETA
    def test_an_io_manager_of_the_asset_itself_is_used(self, tmp_path: Path) -> None:
        @dg.asset(io_manager_def=rd.LocalIOManager(path=str(tmp_path)))
        def own() -> pd.DataFrame:
            return pd.DataFrame({"x": [1]})

        defs = dg.Definitions(assets=[own], asset_checks=build_manifest_checks(own))
        result = defs.resolve_implicit_global_asset_job_def().execute_in_process()
        (found,) = result.get_asset_check_evaluations()
        assert found.passed

    def test_an_export_is_checked_under_its_key(self, place: Place) -> None:
        export = rd.Export(name="orders", table="orders")
        (check,) = build_manifest_checks(export, key_prefix=["shop", "public"])
        (key,) = check.check_keys
        assert (key.asset_key.path, key.name) == (["shop", "public", "orders"], "manifest")

    def test_each_asset_of_a_multi_asset_has_its_check(self) -> None:
        @dg.multi_asset(outs={"one": dg.AssetOut(), "two": dg.AssetOut(io_manager_key="lake")})
        def both() -> tuple[pd.DataFrame, pd.DataFrame]:
            return pd.DataFrame({"x": [1]}), pd.DataFrame({"x": [2]})

        (together,) = build_manifest_checks(both)
        assert {k.asset_key.path[0] for k in together.check_keys} == {"one", "two"}
        assert {"io_manager", "lake"} <= together.required_resource_keys
        built = {c.check_key.asset_key.path[0]: c for c in build_manifest_checks(both, blocking=True)}
        assert set(built) == {"one", "two"}
        assert ["lake" in built[name].required_resource_keys for name in ("one", "two")] == [False, True]

    def test_a_check_that_does_not_exist_is_refused_with_those_that_do(self) -> None:
        with pytest.raises(rd.ConfigError, match=r"some of manifest, content.*found 'contents'"):
            build_manifest_checks(orders, checks=["manifest", "contents"])
        assert build_manifest_checks(orders, checks=()) == []
        (built,) = build_manifest_checks(orders, checks=["content", "content"])
        assert [key.name for key in built.check_keys] == ["content"]

    def test_an_asset_without_partitions_is_judged_beside_one_that_has_some(self, place: Place) -> None:
        built = [orders, parted, *build_manifest_checks(orders), *build_manifest_checks(parted)]
        more = {"instance": place.instance, "resources": place.resources, "partition_key": "a"}
        found = {e.asset_key.path[0]: e for e in dg.materialize(built, **more).get_asset_check_evaluations()}
        assert {name: (e.passed, e.partition) for name, e in found.items()} == {
            "orders": (True, None),
            "parted": (True, "a"),
        }

    def test_what_an_asset_brings_itself_is_not_given_twice(self) -> None:
        with pytest.raises(rd.ConfigError, match="brings its own"):
            build_manifest_checks(orders, key_prefix="shop")
