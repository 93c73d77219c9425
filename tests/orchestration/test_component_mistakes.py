"""The most likely mistakes in a component's YAML, each with all that a person is told: where, what, and what to do."""

from __future__ import annotations

import logging

import pytest

from tests.orchestration.projects import Project, mistakes, project

__all__ = ["project"]

pytestmark = pytest.mark.filterwarnings("ignore:Parameter `execution_type`")

# What is right but for the one field that a case puts in place of another.
RIGHT = {
    "source": "{url_env: DATABASE_URL}",
    "destination": "{type: local, path: lake}",
    "exports": "\n  - {name: orders, table: orders}",
}
# The line of each of them in the file; a line of an export is the one of `exports` and how many follow.
LINES = {"source": 3, "destination": 4, "exports": 5}


def _written(project: Project, **fields: str):
    attributes = "\n".join(f"{name}: {value}" for name, value in {**RIGHT, **fields}.items() if value)
    return project.write(attributes)


CASES = {
    "misspelt field": (
        {"schedul": "'0 2 * * *'"},
        "7: schedul: there is no such field; did you mean schedule?",
    ),
    "misspelt field of an export": (
        {"exports": "\n  - {name: orders, table: orders}\n  - name: items\n    tabel: items"},
        "8: exports[1].tabel: there is no such field; did you mean table?",
    ),
    "misspelt field of a mode": (
        {"exports": "\n  - name: orders\n    table: orders\n    mode:\n      kind: chunked\n      paralel: 2"},
        "10: exports[0].mode.paralel: there is no such field; did you mean parallel?",
    ),
    "field of another mode": (
        {"exports": "\n  - {name: orders, table: orders, mode: {kind: full, cursor_column: updated_at}}"},
        "6: exports[0].mode.cursor_column: there is no such field; known are kind",
    ),
    "unknown mode": (
        {"exports": "\n  - {name: orders, table: orders, mode: incrementel}"},
        (
            "6: exports[0].mode: kind: expected full, chunked, incremental or time_window, found 'incrementel'; "
            "did you mean incremental?"
        ),
    ),
    "a mode without what it needs": (
        {"exports": "\n  - {name: orders, table: orders, mode: incremental}"},
        (
            "6: exports[0].mode: expected exactly one of cursor_column and cursor_expression, found neither; "
            "write mode: {kind: incremental, cursor_column: updated_at}"
        ),
    ),
    "a directory without a name": (
        {"destination": '{type: local, path: ""}'},
        "4: destination.path: expected a directory, found ''; give . for the working directory",
    ),
    "ranges of a query": (
        {"exports": "\n  - {name: orders, query: select 1, mode: chunked}"},
        (
            "6: exports[0]: expected a table for Chunked, found a query: only a table's catalog can vouch for a key; "
            "give `table`, or export the query with Full()"
        ),
    ),
    "both table and query": (
        {"exports": "\n  - {name: orders, table: orders, query: select 1}"},
        "6: exports[0]: expected exactly one of `table` and `query`, found both",
    ),
    "neither table nor query": (
        {"exports": "\n  - {name: orders}"},
        "6: exports[0]: expected exactly one of `table` and `query`, found neither",
    ),
    "unknown format": (
        {"exports": "\n  - {name: orders, table: orders, format: cvs}"},
        '6: exports[0].format: expected "parquet" or "csv", or one of them with settings; found \'cvs\'',
    ),
    "wrong type": (
        {"exports": "\n  - {name: orders, table: orders, retain: three}"},
        "6: exports[0].retain: expected a whole number, found 'three'",
    ),
    "a list that is none": (
        {"exports": "{name: orders, table: orders}"},
        "5: exports: expected a list, found a mapping",
    ),
    "bad size": (
        {"exports": "\n  - {name: orders, table: orders, max_file_size: 256 Megs}"},
        (
            '6: exports[0].max_file_size: expected a size of at least one byte, such as "256MB", "1.5 GiB" or 1048576; '
            "found '256 Megs'"
        ),
    ),
    "bad duration": (
        {"source": "{url_env: DATABASE_URL, statement_timeout: soon}"},
        (
            '3: source.statement_timeout: expected a length of time with a unit, such as "1h", "90s" or "5 minutes"; '
            "found 'soon'"
        ),
    ),
    "bad cron line": (
        {"schedule": "'0 2 * *'"},
        "7: schedule: expected a cron line such as \"0 2 * * *\", found '0 2 * *'",
    ),
    "unknown destination": (
        {"destination": "{type: gcp, bucket: lake}"},
        "4: destination.type: expected local, s3, gcs, azure or stdout, found 'gcp'; did you mean gcs?",
    ),
    "no bucket": (
        {"destination": "{type: s3, s3: {}}"},
        "4: destination: expected bucket or bucket_env, found nothing; it is required",
    ),
    "a field of another destination": (
        {"destination": "{type: s3, bucket: lake, s3: {}, path: lake}"},
        (
            "4: destination.path: there is no such field; known are type, format, max_file_size, max_memory, retain, "
            "verify, symlink_manifest, takeover_after, unsafe_unfenced_commits, s3, bucket_env, bucket, prefix"
        ),
    ),
    "a secret in clear": (
        {"destination": "\n  type: s3\n  bucket: lake\n  s3:\n    aws_secret_access_key: hunter2"},
        (
            "8: destination.s3.aws_secret_access_key: a secret is not written here; put it into an environment "
            "variable and give aws_secret_access_key_env: ITS_NAME"
        ),
    ),
    "a password in the URL": (
        {"source": "{url: 'postgresql://me:hunter2@host/shop'}"},
        (
            "3: source.url: expected a URL without secrets, found one with a password, token or signature in it, which "
            "Dagster would show in its UI; put the URL into an environment variable and give url_env: ITS_NAME"
        ),
    ),
    "a signature in a URL": (
        {
            "destination": "{type: azure, container: c, blob_storage: {account_url: 'https://a.blob.core.windows.net/"
            "?sv=1&sig=hunter2', credential: {credential_type: anonymous}}}"
        },
        (
            "4: destination.blob_storage.account_url: expected a URL without secrets, found one with a password, "
            "token or signature in it, which Dagster would show in its UI; put the URL into an environment variable "
            "and give account_url_env: ITS_NAME"
        ),
    ),
    "the URL where its variable's name belongs": (
        {"source": "{url_env: 'postgresql://me:hunter2@host/shop'}"},
        "3: source.url_env: expected the name of an environment variable, such as ITS_NAME",
    ),
    "no URL at all": (
        {"source": "{url: shop.db}"},
        "3: source.url: a database URL was expected, like postgresql://user@host/database; found something else",
    ),
    "a database that nobody knows": (
        {"source": "{url: 'postgers://me@host/shop'}"},
        (
            "3: source: postgers:// is not supported; supported are postgresql://, mysql://, mariadb://, sqlite:/// "
            "and duckdb:///, and every URL for which a dialect of SQLAlchemy is installed"
        ),
    ),
    "no source": (
        {"source": ""},
        "2: source: expected a value, found none; it is required",
    ),
    "a variable that is not set": (
        {"destination": '{type: local, path: "{{ env.NOPE }}"}'},
        (
            "4: destination.path: {{ env.NOPE }}: expected the environment variable NOPE to be set, found that it "
            "is not; set it, or write {{ env('NOPE', 'a default') }}"
        ),
    ),
    "a variable that is not set, within a text": (
        {"destination": '{type: local, path: "/data/{{ env.NOPE }}/out"}'},
        (
            "4: destination.path: /data/{{ env.NOPE }}/out: expected the environment variable NOPE to be set, found "
            "that it is not; set it, or write {{ env('NOPE', 'a default') }}"
        ),
    ),
    "a template that is none": (
        {"destination": '{type: local, path: "{{ evn.NOPE }}"}'},
        (
            "4: destination.path: the template {{ evn.NOPE }} cannot be rendered: UndefinedError: 'evn' not found "
            "in scope, available scope is: env, dg, datetime, automation_condition, context"
        ),
    ),
    "one name twice": (
        {"exports": "\n  - {name: orders, table: orders}\n  - {name: orders, query: select 1}"},
        "7: exports[1].name: 'orders' is the key of exports[0] as well; give another name or key_prefix",
    ),
    "parts on stdout": (
        {"destination": "{type: stdout}", "exports": "\n  - {name: orders, table: orders, max_file_size: 1MB}"},
        (
            "6: exports[0]: stdout-no-split: max_file_size=1000000 divides into named parts, and a stream has no "
            "names; remove max_file_size, or choose a destination that keeps objects"
        ),
    ),
    "partitions without a column": (
        {"partitions_def": "{type: daily, start_date: 2026-01-01}"},
        (
            "6: exports[0]: expected to be told which rows are of a partition, found none; name the column, "
            'rd.Export(…, partition_by="created_at"), without another mode than Full'
        ),
    ),
    "a column without partitions": (
        {"exports": "\n  - {name: orders, table: orders, partition_by: created_at}"},
        "6: exports[0].partition_by: partition_by says which rows are of a partition; give partitions_def, too",
    ),
    "partitions of another kind": (
        {"partitions_def": "{type: static, start_date: 2026-01-01}"},
        "7: partitions_def.start_date: static partitions have no such setting; leave it out",
    ),
    "a bundle with partitions": (
        {
            "bundle": "true",
            "partitions_def": "{type: daily, start_date: 2026-01-01}",
            "exports": "\n  - {name: orders, table: orders, partition_by: created_at}",
        },
        "8: partitions_def: partitions_def and bundle=True do not go together; leave one of them out",
    ),
    "a bundle with a pool of its own": (
        {"bundle": "true", "exports": "\n  - {name: orders, table: orders, pool: shop}"},
        "6: exports[0].pool: it is of a step, and a bundle is one step; give it for all exports",
    ),
    "parallel without a bundle": (
        {"parallel": "2"},
        "7: parallel: parallel is how many exports of a bundle run at a time, 1 or more; found 2 with bundle=False",
    ),
    "an owner that is none": (
        {"owners": "[me]"},
        (
            "7: owners: Dagster refuses it: Invalid owner 'me'. Owner must be an email address or a team name prefixed "
            "with 'team:'."
        ),
    ),
    "unknown check": (
        {"checks": "[manifest, contents]"},
        "7: checks[1]: expected manifest, content, row_count or schema, found 'contents'; did you mean content?",
    ),
    "a gate that cannot be": (
        {"exports": "\n  - name: orders\n    table: orders\n    quality:\n      null_ratio_max: {id: 5}"},
        "9: exports[0].quality.null_ratio_max.id: expected a number from 0 to 1, found 5",
    ),
    "nothing to export": (
        {"exports": "[]"},
        "5: exports: expected at least one, found none",
    ),
    "a template of another kind": (
        {"partitions_def": '"{{ dg.AutomationCondition.eager() }}"'},
        (
            "7: partitions_def: expected a mapping of its fields, or a template that gives a PartitionsDefinition, "
            "found AndAutomationCondition"
        ),
    ),
    "a setting of another database": (
        {"source": "{url: 'sqlite:///shop.db', statement_timeout: 5s}"},
        "3: source.statement_timeout: for postgresql://, mysql:// and mariadb:// only, found sqlite://; remove it",
    ),
}


@pytest.mark.parametrize(("fields", "expected"), CASES.values(), ids=CASES)
def test_a_mistake_is_told_in_one_line(project: Project, fields, expected):
    path = _written(project, **fields)
    assert mistakes(project, path) == [f"defs.yaml:{expected}"]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(project: Project):
    path = _written(
        project,
        source="{url_env: DATABASE_URL, lock_timeut: 1s}",
        destination="{type: s3, s3: {max_attempts: many}}",
        exports="\n  - {name: orders, table: orders, verify: twice}\n  - {name: '', table: items}",
        bundle="maybe",
    )
    told = [line.split(":")[1:3] for line in mistakes(project, path)]
    assert told == [
        ["3", " source.lock_timeut"],
        ["4", " destination.s3.max_attempts"],
        ["6", " exports[0].verify"],
        ["7", " exports[1].name"],
        ["8", " bundle"],
    ]


def test_what_came_from_the_environment_is_not_shown(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:hunter2@host/shop")
    monkeypatch.setenv("SIZE", "hunter3")
    path = _written(
        project,
        source='{url: "{{ env.DATABASE_URL }}", lock_timeout: "mysql://me:hunter4@host/shop"}',
        exports='\n  - {name: orders, table: orders, max_file_size: "{{ env.SIZE }}"}',
    )
    told = "\n".join(mistakes(project, path))
    assert "hunter" not in told
    assert "3: source.url: expected a URL without secrets" in told
    assert "found '{{ env.SIZE }}'" in told


def test_a_variable_with_a_default_may_be_unset(project: Project):
    _written(project, destination="{type: local, path: \"{{ env('NOPE', '/srv') }}/{{ env.NOPE or 'lake' }}\"}")
    assert project.load().resources["lake_destination"].path == "/srv/lake"


def test_stdout_with_a_cursor_is_told_but_loads(project: Project, caplog: pytest.LogCaptureFixture):
    _written(
        project,
        destination="{type: stdout}",
        exports="\n  - {name: orders, table: orders, mode: {kind: incremental, cursor_column: id}}",
    )
    with caplog.at_level(logging.WARNING, logger="rivet_dagster"):
        project.load()
    assert (
        "[Degraded] stdout-no-state: orders: a stream keeps no cursor: every run exports from the beginning and stores "
        "nothing; export with Full(), or choose a destination that keeps objects"
    ) in caplog.messages
