"""What `workspace.yaml` loads: a shop's tables as Parquet, a preview on stdout, and an asset that builds on them."""

import os
from pathlib import Path

import dagster as dg
import pandas as pd

import rivet_dagster as rd
from rivet_dagster.rows import Source
from rivet_dagster.shop import ensure_shop

__all__ = ["DATA_DIR", "MAIN_JOB", "ShopDatabase", "defs"]

DATA_DIR = Path(os.environ.get("RIVET_DEMO_DIR", "data")).resolve()
"""Everything the demo writes is below it: `data` in the working directory unless `RIVET_DEMO_DIR` says otherwise."""

MAIN_JOB = "daily"


class ShopDatabase(rd.DatabaseResource):
    """The demo's SQLite database: made when it is first opened, so that loading these definitions stays fast."""

    def source(self) -> Source:
        """The shop, with all its rows."""
        ensure_shop(Path(self.url.removeprefix("sqlite:///")))
        return super().source()


latest_orders = rd.build_export_asset(
    rd.Export(name="latest_orders", query="select id, total, placed_at from orders order by id desc limit 5"),
    source="shop_source",
    io_manager_key="stdout",
    group_name="preview",
)


@dg.asset(group_name="shop", io_manager_key="shop_destination", kinds={"pandas", "parquet"})
def revenue_per_day(orders: pd.DataFrame) -> pd.DataFrame:
    """What was sold on each day: reads the committed export `orders`, and is committed in the same way."""
    sold = orders[orders["status"] != "cancelled"]
    per_day = sold.groupby(sold["placed_at"].dt.date)["total"].agg(revenue="sum", orders="count")
    return per_day.rename_axis("day").reset_index()


daily = dg.define_asset_job(
    MAIN_JOB,
    selection=dg.AssetSelection.groups("shop"),
    description="Exports the shop's tables, adds up the revenue, and checks every delivery.",
)
preview = dg.define_asset_job(
    "preview",
    selection=dg.AssetSelection.groups("preview"),
    description="Prints the latest orders as CSV to the step's standard output, which Dagster captures.",
)

defs = dg.Definitions.merge(
    rd.build_export_definitions(
        [
            rd.Export(name="customers", table="customers"),
            rd.Export(name="orders", table="orders"),
            rd.Export(name="order_items", table="order_items", max_file_size="64KB"),
        ],
        source=ShopDatabase(url=f"sqlite:///{DATA_DIR / 'shop.db'}"),
        destination=rd.LocalIOManager(path=str(DATA_DIR / "exports")),
        name="shop",
        group_name="shop",
    ),
    dg.Definitions(
        assets=[revenue_per_day, latest_orders],
        asset_checks=rd.build_manifest_checks(revenue_per_day),
        jobs=[daily, preview],
        schedules=[dg.ScheduleDefinition(job=daily, cron_schedule="0 6 * * *")],
        resources={"stdout": rd.StdoutIOManager()},
    ),
)
