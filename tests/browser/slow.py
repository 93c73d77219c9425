"""A code location beside the demo's: an export of its table `orders` that takes long enough to be terminated."""

import os

import rivet_dagster as rd

SHOP = os.environ["RIVET_DEMO_DIR"]

defs = rd.build_export_definitions(
    [rd.Export(name="slow_orders", table="orders", max_file_size="8KB")],
    source=rd.DatabaseResource(url=f"sqlite:///{SHOP}/shop.db", max_rows_per_second=200),
    destination=rd.LocalIOManager(path=f"{SHOP}/exports"),
    name="slow",
)
