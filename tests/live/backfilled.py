"""What `test_engines.py` runs: one set of definitions, and nothing but an executor added to it."""

import json
import os

import dagster as dg
from dagster_celery import celery_executor

import rivet_dagster as rd

as_they_are = rd.build_export_definitions(
    [rd.Export(name="visits", table="visits", partition_by="seen_on")],
    source=rd.DatabaseResource(url=dg.EnvVar("DATABASE_URL")),
    destination=rd.LocalIOManager(path=os.environ["LAKE"]),
    name="lake",
    partitions_def=dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-02-02"),
)
on_celery = celery_executor.configured(json.loads(os.environ["CELERY"]))
step_by_step = dg.Definitions.merge(as_they_are, dg.Definitions(executor=on_celery))
in_the_worker = dg.Definitions.merge(as_they_are, dg.Definitions(executor=dg.in_process_executor))
