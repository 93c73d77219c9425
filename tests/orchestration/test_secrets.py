"""No password, key or token is in any event, log, manifest, file of the instance or answer of the UI's API."""

import json
import logging
from pathlib import Path
from urllib.parse import quote, quote_plus

import dagster as dg
import pytest

from tests.orchestration.kit import events, everything
from tests.servers import postgres

PASSWORD = "hunter2 p@ss/wörd%"
ENCODED = quote(PASSWORD, safe="")
KEY, TOKEN = "AKIAverysecretkey", "sig=verysecretsignature"
SPELLINGS = {PASSWORD, ENCODED, quote_plus(PASSWORD), quote(PASSWORD), "hunter2", KEY, TOKEN, "verysecretsignature"}

CODE = """
import dagster as dg
import rivet_dagster as rd
from dagster_aws.s3 import S3Resource
from dagster_azure.blob import AzureBlobStorageResource, AzureBlobStorageSASTokenCredential

sas = AzureBlobStorageSASTokenCredential(token=dg.EnvVar("TEST_TOKEN"))
s3 = S3Resource(
    endpoint_url=dg.EnvVar("TEST_S3_URL"),
    aws_access_key_id="me",
    aws_secret_access_key=dg.EnvVar("TEST_KEY"),
    region_name="us-east-1",
    max_attempts=1,
)


def exports(job, name, destination):
    return rd.build_export_definitions(
        [rd.Export(name=name, query="select 1 as id")],
        source=rd.DatabaseResource(url=dg.EnvVar("TEST_DATABASE_URL")),
        destination=destination,
        name=job,
        retry_policy=dg.RetryPolicy(max_retries=1),
    )


account = AzureBlobStorageResource(account_url=dg.EnvVar("TEST_AZURE_URL"), credential=sas)
defs = dg.Definitions.merge(
    exports("to_local_job", "to_local", rd.LocalIOManager(path=dg.EnvVar("TEST_LAKE"))),
    exports("to_s3_job", "to_s3", rd.S3IOManager(s3=s3, bucket="lake")),
    exports("to_azure_job", "to_azure", rd.AzureIOManager(blob_storage=account, container="lake")),
)
"""

RESOURCES = """
{ allTopLevelResourceDetailsOrError(
    repositorySelector: {repositoryName: "__repository__", repositoryLocationName: "loc"}
  ) { __typename ... on ResourceDetailsList { results {
        name description
        configFields { name description defaultValueAsJson }
        configuredValues { key value type }
        nestedResources { name resource { name configuredValues { key value type } } }
  } } ... on PythonError { message stack } } }
"""

LOGS = """
query($run: ID!) { logsForRun(runId: $run) { ... on EventConnection { events {
  __typename
  ... on MessageEvent { message level }
  ... on ErrorEvent { error { message stack errorChain { error { message stack } } } }
  ... on ExecutionStepFailureEvent { failureMetadata { metadataEntries { label ... on TextMetadataEntry { text } } } }
  ... on MaterializationEvent { metadataEntries { label description ... on JsonMetadataEntry { jsonString } } }
} } } }
"""

ASSETS = """
{ assetNodes { assetKey { path } description metadataEntries { label description
    ... on TextMetadataEntry { text } ... on JsonMetadataEntry { jsonString } } } }
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    path = tmp_path / "code" / "exports_of_a_test.py"
    path.parent.mkdir()
    path.write_text(CODE)
    monkeypatch.setenv("TEST_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("TEST_KEY", KEY)
    monkeypatch.setenv("TEST_TOKEN", TOKEN)
    # Azure's SDK waits for a minute and more; here nothing becomes better by waiting.
    monkeypatch.setattr("azure.core.pipeline.transport.HttpTransport.sleep", lambda _self, _seconds: None)
    # Nothing listens on these ports.
    monkeypatch.setenv("TEST_S3_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TEST_AZURE_URL", "http://127.0.0.1:9/account")
    monkeypatch.setenv("TEST_DATABASE_URL", f"postgresql://me:{ENCODED}@127.0.0.1:9/shop")
    return path


@pytest.fixture
def home(tmp_path):
    directory = tmp_path / "home"
    directory.mkdir()
    with dg.instance_for_test(temp_dir=str(directory)) as instance:
        yield instance, directory


@pytest.mark.parametrize("job", ["to_local_job", "to_s3_job", "to_azure_job"])
def test_a_database_that_does_not_answer_gives_nothing_away(code, home, capfd, caplog, job):
    instance, directory = home
    with caplog.at_level(logging.DEBUG):
        result = _definitions(code).resolve_job_def(job).execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    assert "STEP_FAILURE" in events(instance, result.run_id)
    _nothing_given_away(instance, directory, capfd, caplog)


def test_a_wrong_password_gives_nothing_away(code, home, capfd, caplog, servers, monkeypatch):
    server = servers(postgres)
    if server.port is None:
        pytest.skip("this PostgreSQL trusts its users")
    instance, directory = home
    url = f"postgresql://{server.user}:{ENCODED}@{server.host}:{server.port}/{server.database}"
    monkeypatch.setenv("TEST_DATABASE_URL", url)
    with caplog.at_level(logging.DEBUG):
        result = (
            _definitions(code)
            .resolve_job_def("to_local_job")
            .execute_in_process(instance=instance, raise_on_error=False)
        )
    assert "password authentication failed" in everything(instance)
    assert "STEP_UP_FOR_RETRY" not in events(instance, result.run_id)
    _nothing_given_away(instance, directory, capfd, caplog)


def test_a_good_run_gives_nothing_away(code, home, capfd, caplog, servers, monkeypatch, tmp_path):
    server = servers(postgres)
    if server.port is None:
        pytest.skip("this PostgreSQL trusts its users")
    instance, directory = home
    server.execute("drop role if exists secretive", f"create role secretive login password '{PASSWORD}'")
    url = f"postgresql://secretive:{ENCODED}@{server.host}:{server.port}/{server.database}"
    monkeypatch.setenv("TEST_DATABASE_URL", url)
    with caplog.at_level(logging.DEBUG):
        result = _definitions(code).resolve_job_def("to_local_job").execute_in_process(instance=instance)
    assert result.success
    _nothing_given_away(instance, directory, capfd, caplog)
    for part in (tmp_path / "lake").rglob("*"):
        if part.is_file():
            _clean(part.read_bytes().decode("latin-1"), str(part))
            _clean(part.read_bytes().decode("utf-8", "replace"), str(part))
    manifest = json.loads((tmp_path / "lake/to_local/manifest.json").read_bytes())
    assert manifest["identity"]["database"] == f"postgresql:{server.database}"
    assert "secretive" not in json.dumps(manifest)


def test_a_password_that_is_not_encoded_is_refused_without_a_piece_of_it(code, home, capfd, caplog, monkeypatch):
    instance, directory = home
    monkeypatch.setenv("TEST_DATABASE_URL", "postgresql://me:hunter2@tail/verysecretsignature@127.0.0.1:9/shop")
    with caplog.at_level(logging.DEBUG):
        _definitions(code).resolve_job_def("to_local_job").execute_in_process(instance=instance, raise_on_error=False)
    assert "percent-encoded" in everything(instance)
    _nothing_given_away(instance, directory, capfd, caplog)


def test_the_api_of_the_ui_shows_names_of_variables_only(code, home, capfd, caplog):
    instance, directory = home
    result = _definitions(code).resolve_job_def("to_s3_job").execute_in_process(instance=instance, raise_on_error=False)
    answers = _asked(instance, code, (RESOURCES, {}), (LOGS, {"run": result.run_id}), (ASSETS, {}))
    resources, logs, assets = answers
    named = {r["name"]: r for r in resources["allTopLevelResourceDetailsOrError"]["results"]}
    url = {v["key"]: v for v in named["to_local_job_source"]["configuredValues"]}["url"]
    assert url == {"key": "url", "value": "TEST_DATABASE_URL", "type": "ENV_VAR"}
    assert "environment variable" in named["to_local_job_source"]["description"]
    assert any(e["__typename"] == "ExecutionStepFailureEvent" for e in logs["logsForRun"]["events"])
    assert len(assets["assetNodes"]) == 3
    _clean(json.dumps(answers, ensure_ascii=False), "GraphQL")
    _nothing_given_away(instance, directory, capfd, caplog)


def test_the_check_for_secrets_would_find_one():
    with pytest.raises(AssertionError):
        _clean(f"postgresql://me:{ENCODED}@host", "a test")


def _definitions(code: Path) -> dg.Definitions:
    found: dict[str, object] = {}
    exec(compile(code.read_text(), str(code), "exec"), found)
    defs = found["defs"]
    assert isinstance(defs, dg.Definitions)
    return defs


def _asked(instance, code, *questions):
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import PythonFileTarget
    from dagster_graphql.schema import create_schema

    target = PythonFileTarget(
        python_file=str(code), attribute="defs", working_directory=str(Path.cwd()), location_name="loc"
    )
    answers = []
    with WorkspaceProcessContext(instance, target) as process:
        schema = create_schema()
        for query, variables in questions:
            found = schema.execute(query, context_value=process.create_request_context(), variable_values=variables)
            assert not found.errors, found.errors
            answers.append(found.data)
    return answers


def _nothing_given_away(instance, directory, capfd, caplog):
    _clean(everything(instance), "the event log")
    out, err = capfd.readouterr()
    _clean(out + err, "the output")
    _clean(caplog.text, "the log")
    for path in directory.rglob("*"):
        if path.is_file():
            _clean(path.read_bytes().decode("utf-8", "replace"), str(path))


def _clean(text: str, where: str) -> None:
    escaped = {json.dumps(s)[1:-1] for s in SPELLINGS} | {repr(s)[1:-1] for s in SPELLINGS}
    found = sorted(s for s in SPELLINGS | escaped if s in text)
    assert not found, f"{where} holds {found}"
