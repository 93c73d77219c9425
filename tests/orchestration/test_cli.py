"""The console script on the user's own definitions: what it says, in both ways, and what it leaves alone."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import rivet_dagster as rd
from rivet_dagster.cli import main
from rivet_dagster.orchestration.places import opened_at
from tests.harnesses import s3
from tests.orchestration.kit import on_disk, run
from tests.servers import postgres
from tests.sources.databases import Postgres

SECRET = "s3cr3t-pa55word"


def said(*arguments: Any, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert SECRET not in result.output
    return result


def told(*arguments: Any, code: int = 0) -> dict[str, Any]:
    """The one JSON document."""
    return json.loads(said(*arguments, "--json", code=code).stdout)


def by_check(document: dict[str, Any]) -> dict[tuple[str, str], bool | None]:
    return {(c["subject"], c["check"]): c["ok"] for c in document["checks"]}


class Project:
    """A file of definitions, as a user writes it, and the database and lake that it names."""

    def __init__(self, root: Path) -> None:
        self.root, self.file, self.lake = root, root / "defs.py", root / "lake"
        self.database = root / "shop.db"
        self.sql("create table events (id integer primary key, note text)")
        self.write(
            'rd.Export(name="events", table="events", mode=rd.Incremental(cursor_column="id"))',
            'rd.Export(name="notes", query="select note from events")',
        )

    def sql(self, statement: str) -> None:
        connection = sqlite3.connect(self.database, isolation_level=None)
        try:
            connection.execute(statement)
        finally:
            connection.close()

    def write(self, *exports: str, url: str | None = None, destination: str | None = None) -> None:
        listed = ",\n".join(exports)
        self.file.write_text(
            "import dagster as dg\nimport rivet_dagster as rd\nprint('loading')\n"
            f"defs = rd.build_export_definitions(\n[{listed}],\n"
            f"source=rd.DatabaseResource(url={url or repr(f'sqlite:///{self.database}')}),\n"
            f"destination={destination or f'rd.LocalIOManager(path={str(self.lake)!r})'}, name='lake')\n"
        )

    def export(self, instance: dg.DagsterInstance) -> None:
        scope: dict[str, Any] = {}
        exec(self.file.read_text(), scope)
        assert scope["defs"].resolve_job_def("lake").execute_in_process(instance=instance).success


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    # What a process of its own would forget.
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield Project(tmp_path)
    for name in ("defs", "shop_project", "shop_project.definitions"):
        sys.modules.pop(name, None)


def test_the_doctor_looks_at_all_and_leaves_nothing(project: Project) -> None:
    document = told("doctor", "-f", project.file)
    assert document["ok"] is True
    assert by_check(document) == {
        ("source lake_source", "reach"): True,
        ("source lake_source", "clock"): True,
        ("export events", "read"): True,
        ("export events", "settle"): True,
        ("export notes", "read"): True,
        **{
            ("destination lake_destination", step): True
            for step in ("open", "write", "head", "read", "list", "conditional create", "conditional replace", "remove")
        },
    }
    assert not project.lake.exists()
    shown = said("doctor", "-f", project.file).stdout
    assert all(f"{c['subject']}  " in shown for c in document["checks"])


def test_the_doctor_names_what_fails_and_the_remedy(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.sql("drop table events")
    document = told("doctor", "-f", project.file, code=1)
    failed = {c["subject"]: c for c in document["checks"] if c["ok"] is False}
    assert failed.keys() == {"export events", "export notes"}
    assert "no such table" in failed["export events"]["found"]
    assert "grant SELECT" in failed["export events"]["remedy"]
    project.write(
        'rd.Export(name="misspelt", query="selec 1")',
        'rd.Export(name="cast", query="select 1 as one", columns={"two": "text"})',
        'rd.Export(name="none", query="select 1 as one", mode=rd.Incremental(cursor_column="two"))',
        """rd.Export(name="text", query="select 'a' as one", mode=rd.Incremental(cursor_column="one"))""",
    )
    remedies = {c["subject"]: c["remedy"] for c in told("doctor", "-f", project.file, code=1)["checks"] if not c["ok"]}
    assert remedies.pop("export misspelt").startswith("correct the query")
    assert remedies.pop("export none").startswith("correct the cursor")
    # What says itself what to do is not contradicted.
    assert remedies == {"export cast": None, "export text": None}
    project.write('rd.Export(name="events", table="events")')
    assert "grant SELECT" in said("doctor", "-f", project.file, "events", code=1).stdout
    monkeypatch.delenv("NOT_THERE", raising=False)
    project.write('rd.Export(name="events", table="events")', url='dg.EnvVar("NOT_THERE")')
    found = {c["check"]: c for c in told("doctor", "-f", project.file, code=1)["checks"][:2]}
    assert "the environment variable NOT_THERE is not set" in found["reach"]["found"]
    assert (found["reach"]["remedy"], found["read"]["ok"]) == (None, None)


@pytest.fixture
def pg(servers: Any) -> Postgres:
    return Postgres(servers(postgres).new_database())


def test_grants_and_writers_of_a_real_server(project: Project, pg: Postgres) -> None:
    role = f"doctor_{pg.row('select current_database()')[0]}"
    pg.execute(
        "create table events (id bigint primary key, at timestamptz not null)",
        "create table hidden (id bigint primary key)",
        "create sequence jumping cache 100",
        "create table cached (id bigint primary key default nextval('jumping'))",
        "alter sequence jumping owned by cached.id",
        f"create role {role} login password '{SECRET}'",
        f"grant select on events, cached to {role}",
        f"grant pg_read_all_stats to {role}",
    )
    at = pg.url.partition("@")[2]
    project.write(
        'rd.Export(name="events", table="events", mode=rd.Incremental(cursor_column="at"))',
        'rd.Export(name="hidden", table="hidden")',
        'rd.Export(name="hidden_too", query="select * from hidden")',
        'rd.Export(name="cached", table="cached", mode=rd.Incremental(cursor_column="id"))',
        url=repr(f"postgresql://{role}:{SECRET}@{at}"),
    )
    document = told("doctor", "-f", project.file, code=1)
    found = by_check(document)
    assert {k: v for k, v in found.items() if k[0].startswith("export")} == {
        ("export events", "read"): True,
        ("export events", "settle"): True,
        ("export hidden", "read"): False,
        ("export hidden_too", "read"): False,
        ("export cached", "read"): True,
        ("export cached", "settle"): False,
    }
    assert "start the database" not in json.dumps(document)
    texts = {(c["subject"], c["check"]): c["found"] for c in document["checks"]}
    assert "permission denied" in texts["export hidden", "read"]
    assert "100 values at a time" in texts["export cached", "settle"]
    assert texts["source lake_source", "clock"].endswith("machine's")
    shown = told("plan", "-f", project.file, "events", code=0)["exports"][0]
    assert shown["window"]["low"] is None
    assert shown["window"]["high_open"] is True
    assert shown["source"].startswith("lake_source: postgresql database")


def test_a_plan_says_what_a_run_would_do_and_does_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    home = project.root / "home"
    home.mkdir()
    for key in range(1, 4):
        project.sql(f"insert into events values ({key}, 'x')")
    first = {x["export"]: x for x in told("plan", "-f", project.file)["exports"]}
    assert (first["events"]["delivery"], first["events"]["continues"]) == ("snapshot", None)
    assert first["events"]["window"] == {"low": None, "low_open": False, "high": 3, "high_open": False, "nulls": False}
    assert first["notes"]["columns"] == [{"name": "note", "type": "string"}]
    assert not project.lake.exists()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        project.export(instance)
    project.sql("insert into events values (4, 'x')")
    before = on_disk(project.lake)
    document = told("plan", "-f", project.file, "events")
    (then,) = document["exports"]
    assert document["event_log"] is True
    assert then["delivery"] == "append"
    assert then["continues"]["cursor"]["value"] == then["window"]["low"] == 3
    assert (then["window"]["low_open"], then["window"]["high"]) == (True, 4)
    assert then["notes"] == []
    assert "after 3 to 4" in said("plan", "-f", project.file, "events").stdout
    monkeypatch.delenv("DAGSTER_HOME")
    (alone,) = told("plan", "-f", project.file, "events")["exports"]
    assert "no record of the dataset" in alone["notes"][0]
    assert on_disk(project.lake) == before
    # What a run would refuse, a plan refuses in the same words.
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    head = json.loads((project.lake / "events" / "manifest.json").read_bytes())
    for path in (project.lake / "events").glob("*"):
        if path.is_file():
            path.unlink()
    lost = told("plan", "-f", project.file, "events", code=1)["exports"][0]
    assert head["run_id"] in lost["error"]
    assert "the destination has lost it" in lost["error"]


def test_a_plan_of_partitions_is_of_the_newest_unless_one_is_named(project: Project) -> None:
    project.write('rd.Export(name="events", table="events", partition_by="note")')
    text = project.file.read_text().replace(
        "name='lake'", "name='lake', partitions_def=dg.StaticPartitionsDefinition(['a', 'b'])"
    )
    project.file.write_text(text)
    (newest,) = told("plan", "-f", project.file)["exports"]
    assert (newest["partition"], newest["window"]["high"]) == ("b", "b")
    assert newest["destination"].endswith("/events/partition%3Db/")
    (named,) = told("plan", "-f", project.file, "--partition", "a")["exports"]
    assert named["partition"] == "a"
    (unknown,) = told("plan", "-f", project.file, "--partition", "c", code=1)["exports"]
    assert unknown["error"] == "events: expected the key of a partition, such as 'b', found 'c'"
    assert (unknown["delivery"], unknown["partition"]) == (None, None)


def test_a_plan_carries_every_finding(project: Project) -> None:
    project.write('rd.Export(name="events", table="events", retain=3)', destination="rd.StdoutIOManager()")
    (shown,) = told("plan", "-f", project.file)["exports"]
    assert "stdout-no-receipt" in {d["rule"] for d in shown["diagnostics"]}
    # What cannot even be loaded is said whole.
    project.write('rd.Export(name="events", table="events", max_file_size="1MB")', destination="rd.StdoutIOManager()")
    result = said("plan", "-f", project.file, code=1)
    assert "stdout-no-split" in result.stderr
    assert told("plan", "-f", project.file, code=1)["ok"] is False


def test_validate_finds_what_is_wrong(project: Project) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        for key in (1, 2):
            project.sql(f"insert into events values ({key}, 'note')")
            project.export(instance)
    (events, notes) = told("validate", project.lake)["datasets"]
    assert (events["dataset"], events["deliveries"], events["rows"], events["ok"]) == ("append", 2, 2, True)
    assert (notes["dataset"], notes["deliveries"], notes["rows"]) == ("snapshot", 1, 2)
    # The delivery before the head, and a byte of the same size.
    oldest = min((project.lake / "events" / "data").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    body = bytearray(oldest.read_bytes())
    body[9] ^= 1
    oldest.write_bytes(body)
    (project.lake / "notes" / "stray.txt").write_text("mine")
    assert told("validate", project.lake)["ok"] is True
    (damaged, fine) = told("validate", "--content", project.lake, code=1)["datasets"]
    assert [f["path"] for f in damaged["faults"]][:1] == [f"data/{oldest.name}"]
    assert (fine["ok"], fine["unknown"]) == (True, ["stray.txt"])
    oldest.unlink()
    shown = said("validate", project.lake / "events", code=1).stdout
    assert re.search(r"\b1 FAULT\b", shown)
    assert f"{oldest.name}: missing: expected" in shown
    (nothing,) = told("validate", project.root / "nowhere", code=1)["datasets"]
    assert nothing["faults"][0]["kind"] == "manifest"
    assert nothing["notes"] == ["there is no such directory"]
    assert "nowhere/: there is no such directory" in said("validate", project.root / "nowhere", code=1).stdout
    assert "this is a file" in said("validate", project.file, code=1).stdout


def test_a_dataset_does_not_hide_those_below_it(tmp_path: Path) -> None:
    @dg.asset
    def shop() -> pa.Table:
        return pa.table({"day": [1]})

    @dg.asset(key_prefix="shop", partitions_def=dg.StaticPartitionsDefinition(["a"]))
    def orders() -> pa.Table:
        return pa.table({"day": [1]})

    lake = tmp_path / "lake"
    with dg.DagsterInstance.ephemeral() as instance:
        for asset, key in ((shop, None), (orders, "a")):
            assert run([asset], rd.LocalIOManager(path=str(lake)), instance, partition_key=key).success
    assert len(told("validate", lake)["datasets"]) == 2
    next((lake / "shop" / "orders" / "partition=a" / "data").iterdir()).unlink()
    for where in (lake, lake / "shop"):
        assert [d["ok"] for d in told("validate", where, code=1)["datasets"]] == [True, False]


def test_a_partition_is_found_by_its_key_and_by_what_is_shown(project: Project, servers: Any) -> None:
    @dg.asset(key_prefix="Sales", partitions_def=dg.StaticPartitionsDefinition(["DE", "a b/c"]))
    def orders() -> pa.Table:
        return pa.table({"day": [1]})

    with dg.DagsterInstance.ephemeral() as instance:
        for key in ("DE", "a b/c"):
            assert run([orders], rd.LocalIOManager(path=str(project.lake)), instance, partition_key=key).success
    written = project.lake / "%53ales" / "orders" / "partition=%44%45"
    shown = said("validate", project.lake).stdout
    assert re.search(rf"^{written}/ +ok", shown, re.MULTILINE)
    project.write(
        'rd.Export(name="events", table="events")', destination=f"rd.LocalIOManager(path={str(project.lake)!r})"
    )
    told_by = project.lake / "Sales" / "orders" / "partition=DE"
    for where in (written, written.parent / "partition=DE", told_by, told_by.as_uri(), f"{told_by}/manifest.json"):
        for more in ((), ("-f", project.file)):
            (found,) = told("validate", where, *more)["datasets"]
            assert (found["place"], found["rows"]) == (f"{written}/", 1)
    client = servers.client(s3)
    client.create_bucket(Bucket="by-key")
    for path in (p for p in written.rglob("*") if p.is_file()):
        client.put_object(Bucket="by-key", Key=path.relative_to(project.lake).as_posix(), Body=path.read_bytes())
    with pytest.MonkeyPatch.context() as environment:
        server = servers(s3)
        environment.setenv("AWS_ENDPOINT_URL", server.url)
        environment.setenv("AWS_ACCESS_KEY_ID", server.access_key)
        environment.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
        environment.setenv("AWS_DEFAULT_REGION", server.region)
        (found,) = told("validate", "s3://by-key/Sales/orders/partition=DE")["datasets"]
    assert found["place"] == "s3://by-key/%53ales/orders/partition=%44%45/"


def test_what_cannot_be_looked_at_hides_nothing_else(project: Project) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        project.sql("insert into events values (1, 'note')")
        project.export(instance)
    # Links are not followed: nobody can tell what they hold.
    (project.lake / "broken").mkdir()
    (project.lake / "broken" / "manifest.json").symlink_to(project.file)
    below = project.lake / "events" / "partition=a"
    below.mkdir()
    (below / "_SUCCESS").symlink_to(project.root)
    shown = said("validate", project.lake, code=2).stdout
    assert shown.count("NOT JUDGED") == 2
    (broken, events, out, notes) = told("validate", project.lake, code=2)["datasets"]
    assert (broken["place"], broken["ok"]) == (f"{project.lake}/broken/", False)
    assert "manifest.json" in broken["error"]
    assert (events["ok"], events["error"], notes["ok"]) == (True, None, True)
    assert f"{out['place']}: {out['error']}" in shown
    # The system's own refusal has a place and a remedy, too.
    refused = told("validate", project.lake / ("x" * 300), code=2)["error"]
    assert refused.startswith("local: expected")
    assert "File name too long" in refused
    # What is wrong for certain is said first.
    next((project.lake / "notes" / "data").iterdir()).unlink()
    assert told("validate", project.lake, code=1)["ok"] is False


def test_a_chain_that_is_not_whole_is_wrong_and_not_merely_unknown(project: Project) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        for key in (1, 2, 3):
            project.sql(f"insert into events values ({key}, 'note')")
            project.export(instance)
    head = json.loads((project.lake / "events" / "manifest.json").read_bytes())
    (project.lake / "events" / f"manifest-{head['previous']['run_id']}.json").unlink()
    (found,) = told("validate", project.lake / "events", code=1)["datasets"]
    assert found["error"] is None
    assert head["previous"]["run_id"] in found["faults"][0]["found"]


def test_a_store_that_answers_nobody_is_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (found,) = told("validate", "s3://nobucket/x", code=2)["datasets"]
    assert "credentials" in found["error"]
    assert "NOT JUDGED" in said("validate", "s3://nobucket/x", code=2).stdout


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "give . for the working directory"),
        ("file://otherhost/tmp/x", "found one of the host otherhost"),
        ("file:///a%00", "with a NUL"),
        ("https://[::1/lake", "none that can be read"),
    ],
)
def test_what_is_no_place_is_refused(where: str, message: str) -> None:
    assert message in said("validate", where, code=2).stderr


def test_validate_reaches_a_store_with_and_without_definitions(
    project: Project, servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = servers(s3), servers.client(s3)
    client.create_bucket(Bucket="operations")
    keys = f"endpoint_url={server.url!r}, region_name={server.region!r}"
    keys += f", aws_access_key_id={server.access_key!r}, aws_secret_access_key={server.secret_key!r}"
    resource = f"__import__('dagster_aws.s3').s3.S3Resource({keys})"
    destination = f"rd.S3IOManager(s3={resource}, bucket='operations', prefix='lake')"
    project.sql("insert into events values (1, 'note')")
    project.write('rd.Export(name="events", table="events")', destination=destination)
    with dg.DagsterInstance.ephemeral() as instance:
        project.export(instance)
    (found,) = told("validate", "-f", project.file, "s3://operations/lake/events")["datasets"]
    assert (found["ok"], found["rows"], found["uri"]) == (True, 1, "s3://operations/lake/events/")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", server.region)
    (alone,) = told("validate", "s3://operations/")["datasets"]
    assert alone == found
    objects = [o["Key"] for o in client.list_objects_v2(Bucket="operations")["Contents"]]
    assert all(by_check(told("doctor", "-f", project.file)).values())
    assert [o["Key"] for o in client.list_objects_v2(Bucket="operations")["Contents"]] == objects


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("abfss://lake@acc.dfs.core.windows.net/a/b", ("https://acc.blob.core.windows.net", "lake", "a/b/")),
        ("https://acc.blob.core.windows.net/lake/a/manifest.json", ("https://acc.blob.core.windows.net", "lake", "a/")),
        ("https://acc.blob.core.windows.net/lake", ("https://acc.blob.core.windows.net", "lake", "")),
    ],
)
def test_a_container_is_found_by_what_tools_of_azure_call_it(where: str, place: tuple[str, ...]) -> None:
    with opened_at(where, None) as (destination, prefix):
        assert (destination._blobs.primary_endpoint.rpartition("/")[0], destination._container, prefix.root) == place


def test_definitions_are_found_where_dagster_finds_them(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    package = project.root / "shop_project"
    package.mkdir()
    (package / "__init__.py").touch()
    lazy = "import dagster as dg\nimport defs as _written\n\n@dg.definitions\ndef defs():\n    return _written.defs\n"
    (package / "definitions.py").write_text(lazy)
    (project.root / "workspace.yaml").write_text("load_from:\n  - python_file: defs.py\n")
    monkeypatch.chdir(project.root)
    assert len(told("plan")["exports"]) == 2
    assert len(told("plan", "-w", "workspace.yaml", "events")["exports"]) == 1
    (project.root / "workspace.yaml").unlink()
    for table in (
        '[tool.dagster]\nmodule_name = "shop_project.definitions"\n',
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop_project"\n',
    ):
        (project.root / "pyproject.toml").write_text(table)
        assert len(told("plan")["exports"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "give -m/--module-name"),
        (["plan", "-m", "no_such_module_here"], "No module named"),
        (["plan", "-f", "nowhere.py"], "no such file"),
        (["plan", "-f", "defs.py", "evnts"], "found evnts"),
        (["doctor", "-f", "empty.py"], "expected one dagster.Definitions in it, found none"),
        (["doctor", "-w", "remote.yaml"], "grpc_server runs elsewhere"),
        (["validate"], "Missing argument"),
        (["plan", "--nonsense"], "No such option"),
    ],
)
def test_what_cannot_be_carried_out_is_one_message(
    project: Project, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(project.root)
    (project.root / "empty.py").touch()
    (project.root / "remote.yaml").write_text("load_from:\n  - grpc_server: {port: 4266}\n")
    assert message in said(*arguments, code=2).stderr


@pytest.mark.parametrize(
    "where",
    [
        f"s3://AKIA:{SECRET}@bucket/x",
        f"s3://AKIA:a/{SECRET}@bucket/x",
        f"s3://{SECRET}@bucket/x",
        f"s3://bucket/x?AWS_SECRET_ACCESS_KEY={SECRET}",
        f"gs://bucket/x?token={SECRET}",
        f"az://acct:{SECRET}@lake/x",
        f"abfss://lake:{SECRET}@acct.dfs.core.windows.net/x",
        f"https://me:{SECRET}@acct.blob.core.windows.net/lake/x",
        f"https://acct.blob.core.windows.net/lake/x?sv=1&sig={SECRET}",
        f"file://me:{SECRET}@/srv/x",
        f"postgresql://me:{SECRET}@host/x",
    ],
)
def test_no_secret_in_a_prefix_is_repeated_or_used(where: str) -> None:
    shown = said("validate", where, code=2).stderr
    assert shown.startswith(f"Error: {where.partition(':')[0]}://")
    assert SECRET not in json.dumps(told("validate", where, code=2))
    # Neither where click refuses the line.
    assert "unexpected extra argument" in said("validate", "lake", where, code=2).stderr
    assert "No such command" in said(where, code=2).stderr


def test_what_the_users_own_code_raises_is_one_message_without_secrets(project: Project) -> None:
    project.file.write_text(f"raise RuntimeError('postgresql://me:{SECRET}@host/db?password={SECRET}')")
    assert "RuntimeError: postgresql://***@host/db?***" in said("plan", "-f", project.file, code=2).stderr
    project.write('rd.Export(name="events", table="events")', url="'sqlite:///x.db'")
    broken = f"def setup_for_execution(self, context): raise RuntimeError('password={SECRET}')"
    text = project.file.read_text().replace("source=rd.Data", "source=Broken")
    project.file.write_text(
        f"import rivet_dagster as rd\nclass BrokenbaseResource(rd.DatabaseResource):\n    {broken}\n{text}"
    )
    (reach, *_) = told("doctor", "-f", project.file, code=1)["checks"]
    assert reach["ok"] is False
    assert "password=***" in reach["found"]
    document = told("validate", "ftp://host/x", code=2)
    assert document["error"].startswith("ftp://host/x: expected a path, or a URI that begins with file://")


def test_the_version_is_that_of_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "rivet_dagster-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rivet-dagster\nVersion: 1.2.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert said("--version").stdout == "rivet-dagster 1.2.3\n"


def test_the_console_script_is_what_the_package_declares() -> None:
    root = Path(rd.__file__).parents[1]
    assert 'rivet-dagster = "rivet_dagster.cli:main"' in (root / "pyproject.toml").read_text()
    done = subprocess.run([sys.executable, "-m", "rivet_dagster.cli", "-h"], capture_output=True, text=True, check=True)
    assert {"doctor", "plan", "validate"} <= set(done.stdout.split())
