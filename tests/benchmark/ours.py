"""One export by this package, as a process: `python -m tests.benchmark.ours NAME URL TABLE DIRECTORY RANGE_BYTES`."""

from __future__ import annotations

import logging
import sys

NAMES = ("ours-full", "ours-chunked-1", "ours-chunked-2", "ours-dagster-full", "ours-dagster-chunked-2")


def by_library(url, table, destination, mode, **output) -> None:
    from rivet_dagster.attempt import Attempt, CommitSettings
    from rivet_dagster.commit import commit_export
    from rivet_dagster.exports.extraction import plan_export
    from rivet_dagster.exports.output import resolve_output
    from rivet_dagster.exports.spec import Export
    from rivet_dagster.layout import Prefix
    from rivet_dagster.sources.connect import connect

    export, source = Export(name=table, table=table, mode=mode, **output), connect(url)
    commit_export(
        destination,
        prefix=Prefix(f"{table}/"),
        attempt=Attempt(export_name=table),
        plan=lambda head: plan_export(
            export, export_name=table, source=source, output=resolve_output(export=export), head=head
        ),
        settings=CommitSettings(),
        log=logging.getLogger(__name__),
    )


def by_dagster(url, table, directory, mode) -> None:
    import rivet_dagster as rd

    defs = rd.build_export_definitions(
        [rd.Export(name=table, table=table, mode=mode)],
        source=rd.DatabaseResource(url=url),
        destination=rd.LocalIOManager(path=directory),
    )
    defs.resolve_job_def("exports").execute_in_process()


def main() -> None:
    from rivet_dagster.destinations.local import LocalDestination
    from rivet_dagster.exports.modes import Chunked, Full

    name, url, table, directory, range_bytes = sys.argv[1:]
    mode = Full() if name.endswith("full") else Chunked(bytes_per_part=int(range_bytes), parallel=int(name[-1]))
    if "dagster" in name:
        by_dagster(url, table, directory, mode)
    else:
        by_library(url, table, LocalDestination(directory), mode)


if __name__ == "__main__":
    main()
