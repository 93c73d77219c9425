"""The demo as somebody meets it in Dagster's UI: `dagster dev`, a browser, and a look at the disk."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
from functools import partial
from pathlib import Path

import dagster as dg
import pytest
import yaml

from tests.browser.chromium import chromium
from tests.servers import require
from tests.servers.process import answers_http, running

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / ".ci" / "artifacts" / "screenshots"
PATIENCE_MS = 60_000


@pytest.fixture
def browser():
    with require(chromium) as found:
        yield found


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """The demo's directory, with one delivery of each of its exports; and all that `dagster dev` needs."""
    monkeypatch.setenv("RIVET_DEMO_DIR", str(tmp_path / "demo"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    defs = runpy.run_path(str(ROOT / "rivet_dagster" / "definitions.py"))["defs"]
    # Two processes that make an instance at once break it, so it is there before the UI comes.
    with dg.DagsterInstance.get() as instance:
        assert defs.resolve_job_def("daily").execute_in_process(instance=instance).success
    return tmp_path / "demo"


@pytest.fixture
def site(demo, tmp_path):
    """The URL of the demo's UI."""
    slow = {"python_file": {"relative_path": str(ROOT / "tests" / "browser" / "slow.py"), "location_name": "slow"}}
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump({"load_from": [slow]}))
    workspaces = ["-w", str(ROOT / "workspace.yaml"), "-w", "slow.yaml"]
    command = [sys.executable, "-m", "dagster", "dev", *workspaces, "--host", "127.0.0.1", "--port"]
    with running(
        lambda port: [*command, str(port)],
        directory=tmp_path,
        ready=partial(answers_http, path="/server_info"),
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def page(browser, site):
    opened = browser.new_page(base_url=site, viewport={"width": 1500, "height": 1100})
    opened.set_default_timeout(PATIENCE_MS)
    welcome = opened.get_by_text("Skip", exact=True)
    opened.add_locator_handler(welcome, welcome.click)
    return opened


@pytest.fixture
def shot(page):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return lambda name: page.screenshot(path=SCREENSHOTS / f"{name}.png")


def materialize(page, asset):
    """Click on the button of an asset, and go to the run that it started."""
    page.goto(f"/assets/{asset}")
    page.get_by_role("button", name="Materialize").first.click()
    page.get_by_text("View", exact=True).first.click()
    page.wait_for_url("**/runs/*")


def listed(prefix):
    return [prefix / part["path"] for part in json.loads((prefix / "manifest.json").read_text())["parts"]]


def test_somebody_exports_looks_checks_and_cancels(demo, page, shot):
    orders, slow = demo / "exports" / "orders", demo / "exports" / "slow_orders"
    earlier = (orders / "_SUCCESS").read_text().strip()

    materialize(page, "orders")
    page.get_by_text("Success", exact=True).first.wait_for()
    shot("run")
    marker = (orders / "_SUCCESS").read_text().strip()
    assert marker != earlier

    page.goto("/assets/orders?view=events")
    page.get_by_text(marker).first.wait_for()
    for shown in ("14000", listed(orders)[0].stem[-5:], (orders / "manifest.json").as_uri()):
        assert page.get_by_text(shown).first.is_visible(), shown
    shot("materialization")

    page.goto("/assets/orders")
    page.get_by_role("button", name="Plots").click()
    page.locator("canvas").first.scroll_into_view_if_needed()
    for number in ("dagster/row_count", "rivet/bytes", "rivet/duration_seconds", "rivet/rows_per_second"):
        page.get_by_text(number).first.wait_for()
    shot("plots")

    page.goto("/assets/orders?view=checks")
    page.get_by_text("Passed", exact=True).first.wait_for()
    shot("check-passed")
    with listed(orders)[0].open("ab") as part:
        part.write(b"x")
    page.get_by_role("button", name="Execute all").click()
    page.get_by_text("Failed", exact=True).first.wait_for()
    page.get_by_text(re.compile("size: expected")).first.wait_for()
    shot("check-failed")

    materialize(page, "slow_orders")
    while not [*slow.glob("data/part-*")]:
        assert not page.get_by_text("Failure", exact=True).is_visible()
        page.wait_for_timeout(100)
    page.get_by_role("button", name="Terminate").click()
    page.get_by_role("dialog").get_by_role("button", name="Terminate").click()
    page.get_by_text("Canceled", exact=True).first.wait_for()
    page.get_by_text("RUN_CANCELED").first.wait_for()
    shot("canceled")
    (record,) = (p for p in slow.rglob("*") if p.is_file() and p.name != ".rivet.lock")
    assert json.loads(record.read_text())["status"] == "failed"
