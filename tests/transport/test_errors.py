"""Errors name the place and the remedy, and never a secret."""

from __future__ import annotations

import hashlib
import logging
import socket
import ssl
import tempfile
import traceback
from datetime import datetime, timedelta, timezone

import pytest
import requests
from azure.core.exceptions import ServiceRequestError
from botocore import exceptions as sdk
from urllib3.exceptions import MaxRetryError, SSLError

from rivet_dagster.contract import ABSENT, ANY
from rivet_dagster.destinations.answers import NO_REPLY, UNTRUSTED
from rivet_dagster.destinations.network import no_answer
from rivet_dagster.errors import DestinationError, NoAnswer, PreconditionFailed
from tests.servers.faultproxy import answer, drop_request
from tests.servers.process import refusing_port
from tests.transport.backends import KEY, S3, Azure, Moto


def every_call(destination):
    return {
        "write": lambda: destination.write(KEY, b"x", md5=hashlib.md5(b"x").digest(), expect=ANY),
        "head": lambda: destination.head(KEY),
        "read": lambda: destination.read(KEY),
        "list": lambda: [*destination.list("data/")],
        "move": lambda: destination.move(KEY, "there"),
        "remove": lambda: destination.remove(KEY),
    }


CALLS = ["write", "head", "read", "list", "move", "remove"]


def whole_text(error):
    """What a log or an event shows of it: with its traceback and all that it was raised from."""
    return "".join(traceback.format_exception(error)) + repr(error)


def plainly_refused(call):
    """A definite error: neither to be repeated nor to be read back."""
    with pytest.raises(DestinationError) as caught:
        call()
    assert not isinstance(caught.value, (NoAnswer, PreconditionFailed)), caught.value
    return str(caught.value)


@pytest.fixture
def nobody_there():
    with refusing_port() as port:
        yield port


@pytest.mark.parametrize("call", CALLS)
def test_a_bucket_that_is_not_there(backend, call):
    destination = backend.destination(bucket="no-such-bucket")
    said = plainly_refused(every_call(destination)[call])
    assert "no-such-bucket" in said
    assert "create the bucket or container" in said


@pytest.mark.parametrize("call", CALLS)
def test_an_endpoint_that_refuses_connections(backend, call, nobody_there):
    port = nobody_there
    client = backend.server.at(f"http://127.0.0.1:{port}").client()
    said = plainly_refused(every_call(backend.destination(client=client))[call])
    assert f"127.0.0.1:{port} cannot be reached" in said
    assert "?" not in said


def test_an_endpoint_that_has_no_address(backend, monkeypatch):
    def unknown(*_arguments, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    client = backend.server.at("http://store.example.invalid:9000").client()
    destination = backend.destination(client=client)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = plainly_refused(every_call(destination)["head"])
    assert "store.example.invalid:9000 cannot be reached" in said


def test_a_certificate_that_nobody_trusts_is_told_from_a_broken_connection():
    """However deep an SDK has wrapped it."""
    untrusted = requests.exceptions.SSLError(
        MaxRetryError(None, "/", reason=SSLError(ssl.SSLCertVerificationError("certificate verify failed")))
    )
    # botocore keeps what it wraps as context only.
    bare = sdk.SSLError(endpoint_url="https://store", error=untrusted)
    assert no_answer(bare).code == NO_REPLY
    bare.__context__ = untrusted
    assert no_answer(bare).code == UNTRUSTED
    assert no_answer(ServiceRequestError(untrusted, error=untrusted)).code == UNTRUSTED
    assert no_answer(ssl.SSLEOFError("EOF occurred in violation of protocol")).code == NO_REPLY


FORBIDDEN = {
    "s3": (
        "application/xml",
        b"<Error><Code>SignatureDoesNotMatch</Code><Message>The signature SECRET123 does not match</Message></Error>",
    ),
    "gcs": (
        "application/json",
        b'{"error": {"code": 403, "message": "token SECRET123 is wrong", "errors": [{"reason": "forbidden"}]}}',
    ),
    "azure": (
        "application/xml",
        b"<Error><Code>AuthenticationFailed</Code><Message>Signature SECRET123 did not match</Message></Error>",
    ),
}


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("call", CALLS)
def test_a_credential_that_is_refused(backend, call, status):
    destination = backend.destination()
    kind, body = FORBIDDEN[destination.kind]
    backend.proxy.on(".*", "", answer(status, body, headers={"content-type": kind}), times=None)
    with pytest.raises(DestinationError) as caught:
        every_call(destination)[call]()
    assert not isinstance(caught.value, (NoAnswer, PreconditionFailed))
    assert "credential" in str(caught.value)
    # Google's SDK first tries to renew what was refused with 401, and an anonymous client cannot.
    assert str(status) in str(caught.value) or "no usable credentials" in str(caught.value)
    assert "SECRET123" not in whole_text(caught.value)


@pytest.mark.parametrize("call", ["head", "write"])
def test_s3_a_token_that_expires_is_told_by_a_head_too(s3, call):
    """The first request of a long run that meets it may well be the look at the head, and has no body to say why."""
    body = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    s3.proxy.on(".*", "", answer(400, body, headers={"content-type": "application/xml"}), times=None)
    with pytest.raises(DestinationError, match=r"400.*check the credential.*expired"):
        every_call(s3.destination())[call]()


def test_an_answer_that_nobody_knows_is_quoted_without_its_queries(backend):
    destination = backend.destination()
    kind, body = {
        "s3": ("application/xml", b"<Error><Code>Odd</Code><Message>see http://h/p?sig=SECRET123 x</Message></Error>"),
        "gcs": ("application/json", b'{"error": {"code": 400, "message": "see http://h/p?sig=SECRET123 x"}}'),
        "azure": (
            "application/xml",
            b"<Error><Code>Odd</Code><Message>see http://h/p?sig=SECRET123 x</Message></Error>",
        ),
    }[destination.kind]
    backend.proxy.on("PUT|POST", "", answer(400, body, headers={"content-type": kind}))
    with pytest.raises(DestinationError, match="see http://h/p") as caught:
        every_call(destination)["write"]()
    assert "SECRET123" not in whole_text(caught.value)


def test_a_store_that_does_not_know_a_condition_is_no_lost_answer(backend):
    """Backblaze B2 answers so to `If-None-Match`."""
    destination = backend.destination()
    body = b"<Error><Code>NotImplemented</Code><Message>A header you provided is not implemented</Message></Error>"
    backend.proxy.on("PUT|POST", "", answer(501, body, headers={"content-type": "application/xml"}), times=None)
    said = plainly_refused(lambda: destination.write(KEY, b"x", md5=hashlib.md5(b"x").digest(), expect=ABSENT))
    for word in ("501", "conditional writes", "use another one"):
        assert word in said


def test_no_credentials_at_all_for_s3(backends, monkeypatch):
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    moto = backends("moto")
    client = boto3.session.Session().client("s3", endpoint_url=moto.proxy.url, region_name="us-east-1")
    said = plainly_refused(every_call(moto.destination(client=client))["head"])
    assert "no usable credentials" in said
    assert moto.proxy.exchanges == []


def test_a_wrong_key_for_azure(azure):
    from dataclasses import replace

    key = "V1JPTkdLRVlXUk9OR0tFWVdST05HS0VZV1JPTkdLRVk="
    client = replace(azure.server.at(azure.proxy.url), key=key).client()
    with pytest.raises(DestinationError) as caught:
        every_call(azure.destination(client=client))["write"]()
    assert "403" in str(caught.value)
    assert "credential" in str(caught.value)
    assert key not in whole_text(caught.value)


@pytest.fixture
def signed(azure):
    """A client that has a signed URL's token instead of a key, and the token's signature."""
    from azure.storage.blob import AccountSasPermissions, BlobServiceClient, ResourceTypes, generate_account_sas

    def client(url, *, hours=1):
        token = generate_account_sas(
            azure.server.account,
            azure.server.key,
            resource_types=ResourceTypes(service=True, container=True, object=True),
            permission=AccountSasPermissions(read=True, write=True, delete=True, list=True, create=True),
            expiry=datetime.now(timezone.utc) + timedelta(hours=hours),
        )
        signature = token.split("sig=")[1].split("&")[0]
        return BlobServiceClient(f"{url}/{azure.server.account}", credential=token, retry_total=0), signature

    return client


def test_a_signed_url_serves_every_call(azure, signed):
    client, signature = signed(azure.proxy.url)
    destination = azure.destination(client=client)
    content = azure.content("parts")
    azure.write(content, way="parts", destination=destination)
    destination.move(KEY, "there")
    assert destination.read("there").body == content
    assert signature not in destination.uri("there")
    assert azure.shown() == {"there": content}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fault", ["expired", "refused", "reset", "404", "503", "400"])
def test_the_signature_of_a_url_is_in_no_error(azure, signed, call, fault, caplog, nobody_there):
    caplog.set_level(logging.INFO, logger="rivet_dagster")
    url = f"http://127.0.0.1:{nobody_there}" if fault == "refused" else azure.proxy.url
    client, signature = signed(url, hours=-1 if fault == "expired" else 1)
    if fault == "reset":
        azure.proxy.on(".*", "", drop_request(), times=None)
    elif fault.isdecimal():
        azure.proxy.on(".*", "", answer(int(fault)), times=None)
    with pytest.raises(DestinationError) as caught:
        every_call(azure.destination(client=client))[call]()
    text = whole_text(caught.value) + caplog.text
    assert signature not in text
    assert "sig=" not in text


def test_the_url_of_an_upload_session_is_in_no_error(google):
    """Whoever has it may write to the session."""
    for action in (answer(400), answer(404), answer(503), drop_request()):
        google.begin()
        google.proxy.on("PUT", "upload_id=", action)
        with pytest.raises(DestinationError) as caught:
            google.write(google.content("parts"), way="parts")
        (sent,) = google.proxy.requests("PUT", "upload_id=")
        assert sent.target.split("upload_id=")[1] not in whole_text(caught.value)


def test_a_region_that_is_not_the_buckets(backends):
    moto = backends("moto")
    body = b"<Error><Code>PermanentRedirect</Code><Message>use another endpoint</Message></Error>"
    moto.proxy.on("PUT", "", answer(301, body, headers={"content-type": "application/xml"}), times=None)
    said = plainly_refused(every_call(moto.destination())["write"])
    assert "region" in said


def test_the_staged_part_that_cannot_be_read_is_not_the_stores_fault(backend):
    """Neither unknown nor refused by the store: this machine's disk."""

    class Unreadable:
        size_bytes = 2 << 20

        def open(self):
            raise OSError(5, "Input/output error")

    with pytest.raises(DestinationError, match="staged") as caught:
        backend.destination().write(KEY, Unreadable(), md5=bytes(16), expect=ANY)
    assert not isinstance(caught.value, NoAnswer)
    assert backend.shown() == {}
    assert backend.open_uploads() == []


def test_a_machine_without_a_temporary_directory_is_told_what_to_set(s3, monkeypatch, tmp_path):
    """As in a container whose file system can only be read."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [f"{tmp_path}/nowhere"])
    with pytest.raises(DestinationError, match=r"nowhere.*set TMPDIR"):
        s3.destination().stage(KEY)


def test_a_mistake_of_ours_is_not_dressed_up_as_an_answer(backend):
    class Broken:
        size_bytes = 1

        def open(self):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        backend.destination().write(KEY, Broken(), md5=bytes(16), expect=ANY)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_while_a_request_is_under_way_leaves_nothing(backend, monkeypatch, kind):
    """In the SDK, not in the body: after the first part has been taken."""
    destination = backend.destination()

    def interrupt(*_arguments, **_more):
        raise kind

    if isinstance(backend, S3):
        client = backend.client()
        monkeypatch.setattr(client, "complete_multipart_upload", interrupt)
        destination = backend.destination(client=client)
    elif isinstance(backend, Azure):
        from azure.storage.blob import BlobClient

        monkeypatch.setattr(BlobClient, "commit_block_list", interrupt)
    else:
        import requests

        send, count = requests.Session.request, iter(range(10))
        monkeypatch.setattr(
            requests.Session, "request", lambda *a, **k: interrupt() if next(count) == 2 else send(*a, **k)
        )
    with pytest.raises(kind):
        backend.write(backend.content("parts"), way="parts", destination=destination)
    monkeypatch.undo()
    assert backend.shown() == {}
    assert backend.open_uploads() == []


def test_uploads_of_a_neighbour_are_left_alone(s3):
    """Those of keys that begin otherwise, and of the same key in another prefix."""
    client, bucket = s3.raw, s3.bucket
    ours, neighbour, other = f"{s3.prefix}/data/part-a-1", f"{s3.prefix}/data/part-b-1", f"{s3.prefix}x/data/part-a-1"
    for name in (ours, neighbour, other):
        client.create_multipart_upload(Bucket=bucket, Key=name)
    destination = s3.destination()
    (name,) = destination.unfinished("data/part-a-")
    assert name.startswith("data/part-a-1?uploadId=")
    destination.discard_unfinished("data/part-a-")
    assert [*destination.unfinished("data/part-a-")] == []
    left = client.list_multipart_uploads(Bucket=bucket, Prefix=s3.prefix)["Uploads"]
    assert sorted(upload["Key"] for upload in left) == sorted([neighbour, other])
    destination.discard_unfinished("")
    (upload,) = client.list_multipart_uploads(Bucket=bucket, Prefix=s3.prefix)["Uploads"]
    client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


def test_more_open_uploads_than_a_page_holds_are_all_discarded(s3):
    for number in range(5):
        s3.raw.create_multipart_upload(Bucket=s3.bucket, Key=f"{s3.prefix}/data/part-{number}")
    destination = s3.destination()
    assert len([*destination.unfinished("data/")]) == 5
    destination.discard_unfinished("data/")
    assert s3.open_uploads() == []


def test_parts_grow_where_a_store_limits_their_number(backends):
    s3, azure = backends("moto").destination(), backends("azure").destination(part_bytes=1000)
    assert isinstance(backends("moto"), Moto)
    for destination, most in ((s3, 10_000), (azure, 50_000)):
        for size in (1, 10**9, 5 * 2**40 - 1):
            assert -(-size // destination._part_size(size)) <= most
