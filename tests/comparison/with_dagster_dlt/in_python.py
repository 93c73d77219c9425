import dagster as dg
import dlt
import pyarrow.dataset as ds
from dagster_dlt import DagsterDltResource, dlt_assets
from dlt.sources.sql_database import sql_database
from sqlalchemy import create_engine, text

source = sql_database(table_names=["orders"], backend="pyarrow", defer_table_reflect=True)
source.orders.apply_hints(primary_key="id", incremental=dlt.sources.incremental("updated_at"))

pipeline = dlt.pipeline("shop", destination=dlt.destinations.filesystem("s3://lake"), dataset_name="shop")


@dlt_assets(dlt_source=source, dlt_pipeline=pipeline)
def lake(context: dg.AssetExecutionContext, dlt: DagsterDltResource):
    yield from dlt.run(context=context)


@dg.asset_check(asset="dlt_sql_database_orders")
def every_order_landed() -> dg.AssetCheckResult:
    landed = len(ds.dataset("s3://lake/shop/orders").to_table(["id"])["id"].unique())
    with create_engine(dlt.secrets["sources.sql_database.credentials"]).connect() as database:
        expected = database.execute(text("select count(*) from orders")).scalar_one()
    return dg.AssetCheckResult(passed=landed == expected, metadata={"landed": landed, "expected": expected})


defs = dg.Definitions(
    assets=[lake],
    asset_checks=[every_order_landed],
    schedules=[dg.ScheduleDefinition(name="lake_schedule", target="*", cron_schedule="0 2 * * *")],
    resources={"dlt": DagsterDltResource()},
)
