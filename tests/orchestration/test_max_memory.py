"""`max_memory` holds: measured as the peak of a process that exports, above one that exports nothing to speak of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tests.servers import postgres

ROWS = 40_000
BUDGET = 100_000_000

EXPORT = textwrap.dedent("""
    import json, re, sys
    import rivet_dagster as rd

    url, path, max_memory = sys.argv[1:]

    def peak():
        # Not getrusage, which keeps the parent's peak from before exec.
        return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

    def export(name):
        mode = rd.Chunked(parallel=4, rows_per_part=5_000)
        defs = rd.build_export_definitions(
            [rd.Export(name=name, table=f"public.{name}", mode=mode, max_memory=max_memory or None)],
            source=rd.DatabaseResource(url=url),
            destination=rd.LocalIOManager(path=path),
        )
        [event] = defs.resolve_job_def("exports").execute_in_process().get_asset_materialization_events()
        return [event.materialization.metadata[n].value for n in ("dagster/row_count", "dagster/size_bytes")]

    export("small")
    usual = peak()
    rows, size = export("wide")
    print(json.dumps({"rows": rows, "bytes": size, "more": peak() - usual}))
""")


@pytest.fixture(scope="module")
def wide(servers):
    """40,000 rows of 20 columns, some 75 MB of texts that compress badly; and one row of the same columns."""
    server = servers(postgres)
    texts = ", ".join(
        f"md5(n::text || '{i}') || md5('{i}' || n::text) || md5(n::text || 'x{i}') as c{i}" for i in range(19)
    )
    server.execute(
        f"create table public.wide as select n::bigint as id, {texts} from generate_series(1, {ROWS}) n",
        "alter table public.wide add primary key (id)",
        "create table public.small as select * from public.wide where id = 1",
        "alter table public.small add primary key (id)",
    )
    return server


def exported(server, lake, max_memory):
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, server.url, str(lake), max_memory],
        env={**os.environ, "DAGSTER_HOME": ""},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_wide_table_takes_no_more_than_it_may(wide, tmp_path):
    # It has room for one of the four ranges at a time.
    held = exported(wide, tmp_path, str(BUDGET))
    free = exported(wide, tmp_path, "")
    for found in (held, free):
        assert found["rows"] == ROWS
        assert found["bytes"] > 35_000_000, "the test must be about something"
    assert held["more"] < BUDGET
    assert free["more"] > BUDGET, "without it, more is taken"
