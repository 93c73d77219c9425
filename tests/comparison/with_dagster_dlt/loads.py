import dlt
from dlt.sources.sql_database import sql_database

source = sql_database(table_names=["orders"], backend="pyarrow", defer_table_reflect=True)
source.orders.apply_hints(primary_key="id", incremental=dlt.sources.incremental("updated_at"))

pipeline = dlt.pipeline("shop", destination=dlt.destinations.filesystem("s3://lake"), dataset_name="shop")
