"""The servers start, listen on loopback only, keep what they are given, and are gone afterwards."""

from __future__ import annotations

import io
import os
import secrets
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.servers import Unavailable, azurite, gcs_emulator, localstack, mariadb, moto, postgres, require
from tests.servers.process import StartFailed, running, scratch

STARTERS = [azurite, gcs_emulator, localstack, mariadb, moto, postgres]


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def listening(processes: set[psutil.Process]) -> set[tuple[str, int]]:
    addresses = set()
    for process in processes:
        # A server's short-lived workers, such as PostgreSQL's autovacuum, end while they are looked at.
        with suppress(psutil.NoSuchProcess):
            connections = process.net_connections("inet")
            addresses |= {tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN}
    return addresses


@pytest.mark.parametrize("starter", STARTERS)
def test_a_server_listens_on_loopback_only_and_leaves_nothing_running(starter):
    before = children()
    with require(starter) as server:
        started = children() - before
        addresses = listening(started)
        port = server.port if starter in {mariadb, postgres} else urlsplit(server.url).port
        assert port is None or port in {listened for _, listened in addresses}
        assert {address for address, _ in addresses} <= {"127.0.0.1"}
        assert started or port is None
    assert not [process for process in started if process.is_running()]


@pytest.mark.parametrize("starter", STARTERS)
def test_a_server_is_ended_when_the_test_fails(starter):
    before = children()
    started = set()

    def fail_inside() -> None:
        with require(starter):
            started.update(children() - before)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail_inside()
    assert not [process for process in started if process.is_running()]


@pytest.mark.parametrize("starter", [moto, localstack])
def test_s3_keeps_objects(starter):
    bucket = f"lake-{secrets.token_hex(4)}"
    with require(starter) as server, closing(server.client()) as client:
        client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key="a/b", Body=b"rows")
        assert client.get_object(Bucket=bucket, Key="a/b")["Body"].read() == b"rows"
        # Servers that share a directory remove each other's buckets of one name.
        assert not [*Path("/tmp").glob(f"localstack*/{bucket}")]


def test_localstack_refuses_a_digest_that_does_not_match():
    with require(localstack) as server, closing(server.client()) as client:
        client.create_bucket(Bucket="lake")
        with pytest.raises(client.exceptions.ClientError, match="BadDigest"):
            client.put_object(Bucket="lake", Key="a", Body=b"rows", ContentMD5="1B2M2Y8AsgTpgAmY7PhCfg==")


def test_gcs_keeps_objects():
    with require(gcs_emulator) as server, server.client() as client:
        bucket = client.create_bucket("lake")
        bucket.blob("a/b").upload_from_file(io.BytesIO(b"rows"), retry=None)
        assert bucket.blob("a/b").download_as_bytes(retry=None) == b"rows"


def test_azurite_keeps_objects_and_checks_its_key():
    from azure.core.exceptions import HttpResponseError

    with require(azurite) as server, server.client() as service:
        service.create_container("lake").upload_blob("a/b", b"rows")
        assert service.get_blob_client("lake", "a/b").download_blob().readall() == b"rows"
    with (
        require(azurite) as other,
        replace(other, key=server.key).client() as service,
        pytest.raises(HttpResponseError, match="AuthorizationFailure"),
    ):
        service.create_container("lake")


def test_postgres_keeps_databases_apart_and_checks_its_password():
    with require(postgres) as server:
        one, two = server.new_database(), server.new_database()
        for database in one, two:
            database.execute("CREATE TABLE t AS SELECT 1 AS id")
        with one.client() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM t")
            assert cursor.fetchone() == (1,)
        if server.password:
            from adbc_driver_postgresql import dbapi

            with pytest.raises(dbapi.Error, match="password authentication failed"):
                dbapi.connect(server.url.replace(server.password, "wrong"))
            assert server.password not in repr(server)


def test_an_absent_server_is_a_skip_that_names_the_command(monkeypatch):
    monkeypatch.delenv("RIVET_REQUIRE_SERVICES", raising=False)
    monkeypatch.delenv("RIVET_LOCALSTACK_PYTHON", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"pip install 'localstack-core\[base-runtime\]==4\.9\.2'"):
        require(localstack).__enter__()


def test_an_absent_server_fails_where_services_are_required(monkeypatch):
    monkeypatch.setenv("RIVET_REQUIRE_SERVICES", "1")
    monkeypatch.setenv("RIVET_AZURITE", os.devnull + "/azurite-blob")
    with pytest.raises(pytest.fail.Exception, match="npm install --no-save azurite@"):
        require(azurite).__enter__()
    with pytest.raises(Unavailable), azurite():
        pass


def test_a_server_that_dies_at_once_is_reported_with_its_output():
    dies = ["/bin/sh", "-c", "echo no such option; exit 2"]
    with scratch() as directory, pytest.raises(StartFailed, match="no such option"):
        running(lambda _port: dies, directory=directory).__enter__()
    assert not directory.exists()
