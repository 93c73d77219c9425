"""Memory and disk are bounded by settings, whatever the size of the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tests.servers import postgres

ROWS = 2_000_000
MOST_MB = 400

EXPORT = textwrap.dedent("""
    import json, os, re, sys, tempfile, threading
    import dagster as dg
    import rivet_dagster as rd

    url, path = sys.argv[1:]
    spool = tempfile.gettempdir()

    def used(directory):
        sizes = 0
        for parent, _, names in os.walk(directory):
            for name in names:
                try:
                    sizes += os.stat(os.path.join(parent, name)).st_size
                except FileNotFoundError:
                    pass
        return sizes

    peak = {"spool": 0, "lake": 0}
    done = threading.Event()

    def watch():
        while not done.wait(0.02):
            peak["spool"] = max(peak["spool"], used(spool))
            peak["lake"] = max(peak["lake"], used(path))

    watcher = threading.Thread(target=watch)
    watcher.start()
    defs = rd.build_export_definitions(
        [rd.Export(name="narrow", table="public.narrow")],
        source=rd.DatabaseResource(url=url),
        destination=rd.LocalIOManager(path=path),
    )
    result = defs.resolve_job_def("exports").execute_in_process()
    done.set()
    watcher.join()
    [event] = result.get_asset_materialization_events()
    said = event.materialization.metadata
    print(json.dumps({
        "rows": said["dagster/row_count"].value,
        "bytes": said["dagster/size_bytes"].value,
        "rows_per_second": said["rivet/rows_per_second"].value,
        "pandas": "pandas" in sys.modules,
        # Not getrusage, which keeps the parent's peak from before exec.
        "rss_mb": int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024,
        **peak,
    }))
""")


@pytest.fixture(scope="module")
def narrow(servers):
    """The narrow fixture: keys, a decimal, two time stamps and a text of few values."""
    server = servers(postgres)
    server.execute(
        "create table public.narrow (id bigint primary key, user_id int not null, amount numeric(12,2),"
        " created_at timestamptz, updated_at timestamptz, status text)",
        "insert into public.narrow select n, (random() * 1e6)::int, (random() * 1e6)::numeric(12,2),"
        " now() - random() * interval '900 days', now() - random() * interval '90 days',"
        " (array['new','paid','sent','back'])[n % 4 + 1]"
        f" from generate_series(1, {ROWS}) n",
    )
    return server


def test_two_million_rows_need_neither_their_size_in_memory_nor_a_second_copy(narrow, tmp_path):
    lake, spool = tmp_path / "lake", tmp_path / "spool"
    lake.mkdir()
    spool.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, narrow.url, str(lake)],
        env={**os.environ, "TMPDIR": str(spool), "DAGSTER_HOME": ""},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["rows"] == ROWS
    assert not said["pandas"], "forty megabytes and half a second for a process that never sees a DataFrame"
    assert said["rss_mb"] < MOST_MB, said
    assert said["bytes"] > 10_000_000, "the test must be about something"
    assert said["lake"] < said["bytes"] * 1.05 + 100_000, f"more than one copy at the destination: {said}"
    assert said["spool"] < 1_000_000, f"a copy in the temporary directory: {said}"
