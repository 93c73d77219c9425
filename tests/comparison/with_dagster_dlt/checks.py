import dagster as dg
import dlt
import pyarrow.dataset as ds
from sqlalchemy import create_engine, text


@dg.asset_check(asset=["shop", "orders"])
def every_order_landed() -> dg.AssetCheckResult:
    landed = len(ds.dataset("s3://lake/shop/orders").to_table(["id"])["id"].unique())
    with create_engine(dlt.secrets["sources.sql_database.credentials"]).connect() as database:
        expected = database.execute(text("select count(*) from orders")).scalar_one()
    return dg.AssetCheckResult(passed=landed == expected, metadata={"landed": landed, "expected": expected})


schedule = dg.ScheduleDefinition(name="lake_schedule", target="*", cron_schedule="0 2 * * *")
