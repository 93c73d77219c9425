import dagster as dg
from dagster_aws.s3 import S3Resource

import rivet_dagster as rd

defs = rd.build_export_definitions(
    [rd.Export(name="orders", table="public.orders", mode=rd.Incremental(cursor_column="updated_at"))],
    source=rd.DatabaseResource(url=dg.EnvVar("DATABASE_URL")),
    destination=rd.S3IOManager(s3=S3Resource(), bucket="lake"),
    name="lake",
    schedule="0 2 * * *",
    checks=("manifest", "content", "row_count"),
)
