"""The checks `row_count` and `schema` as Dagster runs them: what a difference says, and when it is an error."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import rivet_dagster as rd
from tests.orchestration.kit import plain
from tests.servers import postgres

ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
COUNTRIES = dg.StaticPartitionsDefinition(["de", "fr"])


class Shop:
    """A table of orders, a lake, and one instance."""

    def __init__(self, root: Path, instance: dg.DagsterInstance) -> None:
        self.file, self.instance = root / "shop.db", instance
        self.resources = {
            "source": rd.DatabaseResource(url=f"sqlite:///{self.file}"),
            "io_manager": rd.LocalIOManager(path=str(root / "lake")),
        }
        self.sql(
            "create table orders (id integer primary key, country text)",
            "insert into orders values (1, 'de'), (2, 'fr'), (3, 'de')",
        )

    def sql(self, *statements: str) -> None:
        connection = sqlite3.connect(self.file, isolation_level=None)
        try:
            for statement in statements:
                connection.execute(statement)
        finally:
            connection.close()

    def run(self, *built: Any, check: bool, **more: Any) -> dg.ExecuteInProcessResult:
        some = dg.AssetSelection.all_asset_checks()
        return dg.materialize(
            built,
            selection=some if check else dg.AssetSelection.all() - some,
            instance=self.instance,
            resources=self.resources,
            raise_on_error=False,
            **more,
        )

    def export(self, asset: Any, **more: Any) -> None:
        assert self.run(asset, check=False, **more).success

    def check(self, asset: Any, name: str, *, how: dict[str, Any] | None = None, **more: Any) -> Any:
        built = rd.build_manifest_checks(asset, checks=name, **(how or {}))
        result = self.run(asset, *built, check=True, **more)
        assert result.success
        (found,) = result.get_asset_check_evaluations()
        return found


@pytest.fixture
def shop(tmp_path: Path, instance: dg.DagsterInstance) -> Shop:
    return Shop(tmp_path, instance)


def orders(**more: Any) -> dg.AssetsDefinition:
    partitions = more.pop("partitions_def", None)
    return rd.build_export_asset(rd.Export(**{"name": "orders", "table": "orders", **more}), partitions_def=partitions)


def numbers(found: Any) -> tuple[int, ...]:
    said = found.metadata
    keys = ("rivet/rows", "rivet/source_rows", "rivet/difference")
    assert {type(said[k]) for k in keys} == {dg.IntMetadataValue}
    return tuple(said[k].value for k in keys)


class TestRowCount:
    def test_a_snapshot_is_compared_with_all_rows_and_a_difference_warns(self, shop: Shop) -> None:
        asset = orders()
        shop.export(asset)
        found = shop.check(asset, "row_count")
        assert (found.passed, found.severity, numbers(found)) == (True, ERROR, (3, 3, 0))
        assert "equal numbers do not say that the rows are equal" in plain(found.metadata)["rivet/notes"]
        shop.sql("insert into orders values (4, 'de')")
        found = shop.check(asset, "row_count")
        assert (found.passed, found.severity, numbers(found)) == (False, WARN, (3, 4, 1))
        assert "came or went since" in found.description
        (fault,) = plain(found.metadata)["rivet/fault_table"]
        assert (fault["kind"], fault["found"]) == ("rows", "4 rows in the source now")
        assert fault["expected"].startswith("3 rows, as delivered at 20")
        assert shop.check(asset, "row_count", how={"severity": ERROR}).severity is ERROR

    def test_rows_that_no_later_run_reads_are_an_error(self, shop: Shop) -> None:
        asset = orders(mode=rd.Incremental(cursor_column="id"))
        shop.export(asset)
        shop.sql("insert into orders values (10, 'de'), (20, 'fr')")
        shop.export(asset)
        assert numbers(shop.check(asset, "row_count")) == (2, 2, 0)
        shop.sql("delete from orders where id = 10")
        fewer = shop.check(asset, "row_count")
        assert (fewer.passed, fewer.severity, numbers(fewer)) == (False, WARN, (2, 1, -1))
        shop.sql("insert into orders values (11, 'de'), (12, 'de')")
        more = shop.check(asset, "row_count")
        assert (more.passed, more.severity, numbers(more)) == (False, ERROR, (2, 3, 1))
        assert "no later run reads this window again" in more.description
        assert shop.check(asset, "row_count", how={"severity": WARN}).severity is WARN

    def test_each_partition_of_a_range_is_counted(self, shop: Shop) -> None:
        asset = orders(partition_by="country", partitions_def=COUNTRIES)
        for key in ("de", "fr"):
            shop.export(asset, partition_key=key)
            found = shop.check(asset, "row_count", tags={"dagster/partition": key})
            assert (found.partition, found.passed) == (key, True)
        shop.sql("insert into orders values (9, 'fr')")
        tags = {"dagster/asset_partition_range_start": "de", "dagster/asset_partition_range_end": "fr"}
        found = shop.check(asset, "row_count", tags=tags)
        assert (found.passed, found.severity, numbers(found)) == (False, WARN, (3, 4, 1))
        assert "2 partitions checked, 1 failed; fr:" in found.description

    def test_a_bundle_counts_all_of_its_exports_in_one_step(self, shop: Shop) -> None:
        shop.sql("create table empty (id integer)")
        defs = rd.build_export_definitions(
            [rd.Export(name="orders", table="orders"), rd.Export(name="empty", table="empty")],
            source=shop.resources["source"],
            destination=shop.resources["io_manager"],
            name="lake",
            bundle=True,
        )
        (bundle,) = defs.assets
        (built,) = rd.build_manifest_checks(bundle, checks=["manifest", "row_count"])
        assert (built.op.name, built.op.pool) == ("lake_bundle_checks", "lake_source")
        assert {"lake_source", "lake_destination"} <= built.required_resource_keys
        result = dg.materialize([bundle, built], instance=shop.instance, resources=defs.resources)
        found = {(e.asset_key.path[0], e.check_name): e for e in result.get_asset_check_evaluations()}
        assert {k: e.passed for k, e in found.items()} == {
            (name, check): True for name in ("orders", "empty") for check in ("manifest", "row_count")
        }
        assert numbers(found["orders", "row_count"]) == (3, 3, 0)

    def test_an_export_whose_asset_lives_elsewhere_names_its_source(self, shop: Shop) -> None:
        export = rd.Export(name="orders", table="orders")
        shop.export(orders())
        (built,) = rd.build_manifest_checks(export, checks="row_count", source="shop_db")
        assert (built.required_resource_keys >= {"shop_db", "io_manager"}, built.op.pool) == (True, "shop_db")
        shop.resources["shop_db"] = shop.resources.pop("source")
        (found,) = shop.run(orders_elsewhere(), built, check=True).get_asset_check_evaluations()
        assert found.passed

    def test_what_has_no_source_or_another_is_refused(self, shop: Shop) -> None:
        @dg.asset
        def plain_one() -> None: ...

        with pytest.raises(rd.ConfigError, match="asks the source of an export"):
            rd.build_manifest_checks(plain_one, checks=["row_count"])
        with pytest.raises(rd.ConfigError, match="brings its own key, partitions and source"):
            rd.build_manifest_checks(orders(), source="source")
        asset = orders()
        shop.export(asset)
        shop.resources["source"] = dg.ResourceDefinition.hardcoded_resource("nothing")
        result = shop.run(asset, *rd.build_manifest_checks(asset, checks="row_count"), check=True)
        (failed,) = (e for e in result.all_events if e.is_step_failure)
        assert "expected the resource 'source' to be an DatabaseResource" in str(failed.step_failure_data.error)

    def test_an_export_that_was_changed_is_not_compared(self, shop: Shop) -> None:
        shop.export(orders())
        found = shop.check(orders(table=None, query="select 1 as id"), "row_count")
        assert (found.passed, found.severity) == (True, WARN)
        assert "not compared: the export has changed since the delivery" in found.description

    def test_the_limits_of_the_database_hold_and_one_that_does_not_answer_gives_no_verdict(
        self, shop: Shop, servers: Any
    ) -> None:
        database = servers(postgres).new_database()
        database.execute("create table orders as select 1 as id")
        asset = orders()
        shop.resources["source"] = rd.DatabaseResource(url=database.url)
        shop.export(asset)
        assert shop.check(asset, "row_count").passed
        database.execute(
            "drop table orders",
            "create view orders as select i as id from generate_series(1, 2000000000) as i where i < 0",
        )
        shop.resources["source"] = rd.DatabaseResource(url=database.url, statement_timeout="200ms")
        result = shop.run(asset, *rd.build_manifest_checks(asset, checks=("row_count", "manifest")), check=True)
        # The other check of the step has its verdict all the same.
        assert [(e.check_name, e.passed) for e in result.get_asset_check_evaluations()] == [("manifest", True)]
        (failed,) = (e for e in result.all_events if e.is_step_failure)
        assert "statement timeout" in str(failed.step_failure_data.error)


def orders_elsewhere() -> dg.AssetSpec:
    return dg.AssetSpec("orders")


class TestSchema:
    def test_a_change_warns_once_with_a_table_of_columns(self, shop: Shop) -> None:
        asset = orders()
        shop.export(asset)
        found = shop.check(asset, "schema")
        assert (found.passed, "nothing to compare with" in found.description) == (True, True)
        shop.export(asset)
        assert shop.check(asset, "schema").description.startswith("marker and manifest agree, 2 columns as in")
        shop.sql("drop table orders", "create table orders (id text, price real)")
        shop.export(asset)
        found = shop.check(asset, "schema")
        assert (found.passed, found.severity) == (False, WARN)
        assert {
            f["path"]: (f["kind"], f["expected"], f["found"]) for f in plain(found.metadata)["rivet/fault_table"]
        } == {
            "id": ("schema", "int64", "string"),
            "country": ("schema", "string", "no such column"),
            "price": ("schema", "no such column", "double"),
        }
        assert shop.check(asset, "schema", how={"severity": ERROR}).severity is ERROR
        shop.export(asset)
        assert shop.check(asset, "schema").passed

    def test_a_run_that_found_nothing_to_add_is_no_delivery_of_its_own(self, shop: Shop) -> None:
        asset = orders(query="select * from orders", table=None, skip_empty=True)
        shop.export(asset)
        shop.sql("drop table orders", "create table orders (id integer)", "insert into orders values (1)")
        shop.export(asset)
        shop.sql("delete from orders")
        shop.export(asset)
        found = shop.check(asset, "schema")
        assert (found.passed, [f["path"] for f in plain(found.metadata)["rivet/fault_table"]]) == (False, ["country"])

    def test_partitions_are_compared_with_themselves(self, shop: Shop) -> None:
        asset = orders(partition_by="country", partitions_def=COUNTRIES)
        shop.export(asset, partition_key="de")
        shop.sql("alter table orders add column price real")
        shop.export(asset, partition_key="fr")
        tags = {"dagster/partition": "fr"}
        assert shop.check(asset, "schema", tags=tags).passed
        shop.export(asset, partition_key="de")
        found = shop.check(asset, "schema", tags={"dagster/partition": "de"})
        assert (found.passed, [f["path"] for f in plain(found.metadata)["rivet/fault_table"]]) == (False, ["price"])

    def test_another_instance_compares_with_what_the_destination_keeps(self, shop: Shop) -> None:
        asset = orders(retain=1)
        shop.export(asset)
        shop.sql("alter table orders add column price real")
        shop.export(asset)
        with dg.DagsterInstance.ephemeral() as new:
            shop.instance = new
            assert not shop.check(asset, "schema").passed


class TestEarlierDeliveries:
    """An incremental dataset is no more whole than its oldest part."""

    @pytest.fixture
    def parts(self, shop: Shop, tmp_path: Path) -> list[Path]:
        """Of two deliveries, the older first."""
        self.asset = orders(mode=rd.Incremental(cursor_column="id", settle="none"))
        self.shop, self.lake, found = shop, tmp_path / "lake" / "orders", []
        for more in ((), ("insert into orders values (4, 'fr')",)):
            shop.sql(*more)
            shop.export(self.asset)
            found.append(next(p for p in (self.lake / "data").iterdir() if p not in found))
        assert shop.check(self.asset, "manifest").passed
        return found

    def test_a_part_of_them_that_is_gone_or_cut_is_a_fault(self, parts: list[Path]) -> None:
        whole = parts[0].read_bytes()
        parts[0].write_bytes(whole[:-1])
        cut = self.shop.check(self.asset, "manifest")
        parts[0].unlink()
        gone = self.shop.check(self.asset, "manifest")
        parts[0].write_bytes(whole)
        good = self.shop.check(self.asset, "manifest")
        assert [found.passed for found in (cut, gone, good)] == [False, False, True]
        faults = [fault for found in (cut, gone) for fault in plain(found.metadata)["rivet/fault_table"]]
        assert [(fault["path"], fault["kind"]) for fault in faults] == [
            (f"data/{parts[0].name}", "size"),
            (f"data/{parts[0].name}", "missing"),
        ]
        assert good.metadata["rivet/parts_checked"].value == 2

    def test_one_whose_manifest_is_gone_is_a_fault(self, parts: list[Path]) -> None:
        (older,) = [p for p in self.lake.glob("manifest-*.json") if p.name[9:-5] in parts[0].name]
        older.unlink()
        found = self.shop.check(self.asset, "manifest")
        assert not found.passed
        (fault,) = plain(found.metadata)["rivet/fault_table"]
        assert (fault["path"], fault["expected"]) == ("manifest.json", "the deliveries that it adds to")
