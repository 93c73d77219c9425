"""What the daemon of `test_schedule.py` loads: an incremental export that runs every minute."""

import os

import dagster as dg

import rivet_dagster as rd

defs = rd.build_export_definitions(
    [rd.Export(name="events", table="events", mode=rd.Incremental(cursor_column="written_at"))],
    source=rd.DatabaseResource(url=dg.EnvVar("DATABASE_URL")),
    destination=rd.LocalIOManager(path=os.environ["LAKE"]),
    name="lake",
    schedule="* * * * *",
)
