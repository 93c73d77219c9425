"""The fault proxy forwards faithfully, and each fault does to client and store what its name says."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import boto3.s3.transfer
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, HTTPClientError

from tests.servers import azurite, gcs_emulator, moto, require
from tests.servers.faultproxy import (
    FaultProxy,
    answer,
    cut_reply,
    cut_request,
    drop_reply,
    drop_request,
    flip_byte,
    hold,
    park,
    park_body,
    park_reply,
    rewrite,
)
from tests.servers.reverseproxy import requests_in_order

MIB = 1 << 20


@pytest.fixture(scope="module")
def store():
    with require(moto) as server:
        with closing(server.client()) as client:
            client.create_bucket(Bucket="lake")
        yield server


@pytest.fixture
def proxy(store):
    with FaultProxy(store.url) as proxy:
        yield proxy


@pytest.fixture
def client(store, proxy):
    with closing(store.at(proxy.url).client(read_timeout=10)) as client:
        yield client


@pytest.fixture
def key(request):
    return request.node.name


@pytest.fixture
def raw(store):
    """The store behind the proxy's back."""
    with closing(store.client()) as client:
        yield client


def stored(raw, key: str) -> bytes | None:
    try:
        return raw.get_object(Bucket="lake", Key=key)["Body"].read()
    except raw.exceptions.NoSuchKey:
        return None


def test_everything_passes_unchanged(client, raw, proxy, key):
    body = os.urandom(3 * MIB)
    client.put_object(Bucket="lake", Key=f"{key}/ü %2F+", Body=body, Metadata={"a": "b"})
    assert stored(raw, f"{key}/ü %2F+") == body
    head = client.head_object(Bucket="lake", Key=f"{key}/ü %2F+")
    assert (head["ContentLength"], head["Metadata"]) == (3 * MIB, {"a": "b"})
    assert client.get_object(Bucket="lake", Key=f"{key}/ü %2F+", Range="bytes=5-9")["Body"].read() == body[5:10]
    client.delete_object(Bucket="lake", Key=f"{key}/ü %2F+")
    assert stored(raw, f"{key}/ü %2F+") is None
    assert [(e.method, e.status) for e in proxy.exchanges] == [
        ("PUT", 200),
        ("HEAD", 200),
        ("GET", 206),
        ("DELETE", 204),
    ]


def test_large_and_concurrent_multipart_uploads_pass_unchanged(client, raw, key):
    body = os.urandom(40 * MIB)
    client.upload_fileobj(
        io.BytesIO(body), "lake", key, Config=boto3.s3.transfer.TransferConfig(multipart_chunksize=5 * MIB)
    )
    assert hashlib.sha256(stored(raw, key)).digest() == hashlib.sha256(body).digest()


def test_trailing_checksums_pass_unchanged(client, raw, key):
    client.put_object(Bucket="lake", Key=key, Body=io.BytesIO(b"rows" * MIB), ChecksumAlgorithm="SHA256")
    assert stored(raw, key) == b"rows" * MIB


def test_one_connection_serves_many_requests_and_chunked_bodies(proxy, raw, key):
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=10)
    connection.connect()
    ours = connection.sock.getsockname()
    for name in "one", "two":
        connection.request("PUT", f"/lake/{key}/{name}", body=iter([name.encode(), b"!"]), encode_chunked=True)
        response = connection.getresponse()
        response.read()
        assert (response.status, stored(raw, f"{key}/{name}")) == (200, f"{name}!".encode())
    assert connection.sock.getsockname() == ours
    connection.close()


def test_expect_100_continue_is_answered(proxy, raw, key):
    with socket.create_connection(urlsplit(proxy.url).netloc.split(":"), timeout=10) as connection:
        connection.sendall(
            f"PUT /lake/{key} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"rows")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    assert stored(raw, key) == b"rows"


def test_a_client_that_dies_half_way_is_half_a_request_for_the_store(proxy, raw, key):
    with socket.create_connection(urlsplit(proxy.url).netloc.split(":"), timeout=10) as connection:
        connection.sendall(f"PUT /lake/{key} HTTP/1.1\r\nHost: x\r\nContent-Length: 400\r\n\r\nrows".encode())
    while not proxy.exchanges:
        threading.Event().wait(0.01)
    assert (proxy.exchanges[0].request.missing, proxy.exchanges[0].status) == (396, None)
    assert stored(raw, key) is None


def test_azure_and_gcs_pass_unchanged():
    body = os.urandom(9 * MIB)
    with require(azurite) as server, FaultProxy(server.url) as proxy:
        with server.at(proxy.url).client(max_single_put_size=MIB, max_block_size=4 * MIB) as service:
            service.create_container("lake").upload_blob("a/b", body, validate_content=True)
        with server.client() as raw:
            assert raw.get_blob_client("lake", "a/b").download_blob().readall() == body
        assert len(proxy.requests("PUT", "comp=block&")) == 3
    with require(gcs_emulator) as server, FaultProxy(server.url) as proxy, server.client() as raw:
        raw.create_bucket("lake")
        with server.at(proxy.url).client() as client:
            blob = client.bucket("lake").blob("a/b", chunk_size=4 * MIB)
            blob.upload_from_file(io.BytesIO(body), checksum="crc32c", retry=None)
            assert blob.download_as_bytes(retry=None) == body
        assert raw.bucket("lake").blob("a/b").download_as_bytes(retry=None) == body


@pytest.mark.parametrize(("offset", "expected"), [(0, b"sows"), (-1, b"rowr")])
def test_flip_byte(client, raw, proxy, key, offset, expected):
    rule = proxy.on("PUT", key[:14], flip_byte(offset))
    client.put_object(Bucket="lake", Key=key, Body=b"rows")
    assert (stored(raw, key), rule.hits, proxy.exchanges[0].fault) == (expected, 1, "flip_byte")
    client.put_object(Bucket="lake", Key=key, Body=b"rows")
    assert stored(raw, key) == b"rows"


@pytest.mark.parametrize("reset", [True, False])
def test_cut_request(client, raw, proxy, key, reset):
    proxy.on("PUT", "cut", cut_request(MIB, reset=reset))
    with pytest.raises(HTTPClientError):
        client.put_object(Bucket="lake", Key=key, Body=b"x" * 2 * MIB)
    assert stored(raw, key) is None
    assert requests_in_order(proxy.exchanges)[0][::2] == ("PUT", None)


def test_cut_reply(client, raw, proxy, key):
    raw.put_object(Bucket="lake", Key=key, Body=b"rows")
    proxy.on("GET", key, cut_reply(2, reset=False))
    with pytest.raises(HTTPClientError):
        client.get_object(Bucket="lake", Key=key)["Body"].read()


def test_drop_reply_takes_effect(client, raw, proxy, key):
    rule = proxy.on("PUT", key, drop_reply())
    with pytest.raises(ConnectionClosedError):
        client.put_object(Bucket="lake", Key=key, Body=b"rows")
    assert (stored(raw, key), rule.answers[0].status, proxy.exchanges[0].status) == (b"rows", 200, None)


def test_drop_request_takes_none(client, raw, proxy, key):
    proxy.on("PUT", key, drop_request(reset=False))
    with pytest.raises(HTTPClientError):
        client.put_object(Bucket="lake", Key=key, Body=b"rows")
    assert stored(raw, key) is None


@pytest.mark.parametrize("after_forwarding", [True, False])
def test_answer(client, raw, proxy, key, after_forwarding):
    body = b"<Error><Code>SlowDown</Code></Error>"
    proxy.on(
        "PUT", "answer", answer(503, body, headers={"Retry-After": "1"}, after_forwarding=after_forwarding), times=2
    )
    for _ in range(2):
        with pytest.raises(ClientError, match="SlowDown") as caught:
            client.put_object(Bucket="lake", Key=key, Body=b"rows")
        assert caught.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "1"
    assert (stored(raw, key) == b"rows") is after_forwarding
    client.put_object(Bucket="lake", Key=key, Body=b"rows!")
    assert stored(raw, key) == b"rows!"


def test_hold_lands_after_its_sender_gave_up(client, raw, proxy, key):
    rule = proxy.on("PUT", key, hold())
    with pytest.raises(ConnectionClosedError):
        client.put_object(Bucket="lake", Key=key, Body=b"late")
    client.put_object(Bucket="lake", Key=key, Body=b"rows")
    assert stored(raw, key) == b"rows"
    rule.release()
    rule.wait_until_done()
    assert (stored(raw, key), rule.answers[0].status) == (b"late", 200)


def test_what_is_held_when_the_proxy_ends_never_lands(store, raw, key):
    with FaultProxy(store.url) as proxy, closing(store.at(proxy.url).client()) as client:
        proxy.on("PUT", key, hold())
        with pytest.raises(ConnectionClosedError):
            client.put_object(Bucket="lake", Key=key, Body=b"late")
    assert stored(raw, key) is None


@pytest.mark.parametrize(("action", "meanwhile"), [(park(), None), (park_body(2), None), (park_reply(), b"rows")])
def test_parked_requests_wait_for_the_test(client, raw, proxy, key, action, meanwhile):
    rule = proxy.on("PUT", "parked", action)
    with ThreadPoolExecutor() as pool:
        put = pool.submit(client.put_object, Bucket="lake", Key=key, Body=b"rows")
        rule.wait_for_hit()
        if meanwhile is not None:
            while not rule.answers:
                threading.Event().wait(0.01)
        assert not put.done()
        assert stored(raw, key) == meanwhile
        rule.release()
        assert put.result(10)["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert stored(raw, key) == b"rows"


def test_rewrite(client, raw, proxy, key):
    proxy.on(
        "PUT",
        key,
        rewrite(
            request=lambda request: replace(request, body=b"other rows"),
            response=lambda response: replace(response, headers=(*response.without("ETag"), ("ETag", '"forged"'))),
        ),
    )
    assert client.put_object(Bucket="lake", Key=key, Body=b"rows")["ETag"] == '"forged"'
    assert stored(raw, key) == b"other rows"


def test_rules_choose_by_order_occurrence_and_condition(client, raw, proxy, key):
    never = proxy.on("GET|POST", key, answer(500))
    second = proxy.on("PUT", key, answer(500), nth=2)
    tagged = proxy.on("PUT", key, answer(409), when=lambda request: request.header("X-AMZ-META-TAG") == "yes")
    for metadata in {}, {}, {}, {"tag": "yes"}, {"tag": "yes"}:
        with suppress(ClientError):
            client.put_object(Bucket="lake", Key=key, Body=b"rows", Metadata=metadata)
    assert [exchange.status for exchange in proxy.exchanges] == [200, 500, 200, 409, 200]
    assert (never.hits, second.hits, tagged.hits) == (0, 1, 1)


def test_a_broken_action_fails_the_test_that_uses_it(store, key):
    def use() -> None:
        with FaultProxy(store.url) as proxy, closing(store.at(proxy.url).client()) as client:
            proxy.on("PUT", key, flip_byte(100))
            with suppress(HTTPClientError):
                client.put_object(Bucket="lake", Key=key, Body=b"rows")

    with pytest.raises(IndexError):
        use()
