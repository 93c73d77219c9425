"""The generation proxy answers google-cloud-storage as the real service does, also under concurrency."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.request

import pytest
from google.api_core.exceptions import NotFound, PreconditionFailed
from google.cloud.storage.exceptions import InvalidResponse

from tests.servers import require
from tests.servers.faultproxy import FaultProxy, drop_reply, hold
from tests.servers.generations import gcs

MIB = 1 << 20
COUNT_UP = """
import sys
from google.api_core.exceptions import NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

url, raises = sys.argv[1], int(sys.argv[2])
with Client(project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": url}) as client:
    bucket = client.bucket("lake")
    while raises:
        blob = bucket.get_blob("counter", retry=None)
        try:
            pinned = bucket.blob("counter", generation=blob.generation) if blob else None
            number = int(pinned.download_as_bytes(retry=None)) if pinned else 0
        except NotFound:
            continue
        try:
            bucket.blob("counter").upload_from_string(
                str(number + 1), if_generation_match=blob.generation if blob else 0, retry=None
            )
        except PreconditionFailed:
            continue
        raises -= 1
"""


@pytest.fixture(scope="module")
def store():
    with require(gcs) as server, server.client() as client:
        client.create_bucket("lake")
        yield server


@pytest.fixture
def bucket(store):
    with store.client() as client:
        yield client.bucket("lake")


@pytest.fixture
def key(request):
    return f"{request.node.name}/ü b"


def put(bucket, key: str, body: bytes = b"rows", **conditions: int) -> int:
    blob = bucket.blob(key)
    blob.upload_from_file(io.BytesIO(body), retry=None, checksum="md5", **conditions)
    return blob.generation


def resumable(bucket, key: str, body: bytes, **conditions: int) -> int:
    blob = bucket.blob(key, chunk_size=MIB // 4)
    blob.upload_from_file(io.BytesIO(body), retry=None, checksum="crc32c", **conditions)
    return blob.generation


def stored(bucket, key: str) -> bytes | None:
    try:
        return bucket.blob(key).download_as_bytes(retry=None)
    except NotFound:
        return None


@pytest.mark.parametrize("write", [put, resumable])
def test_create_only_happens_once(bucket, key, write):
    write(bucket, key, b"first", if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        write(bucket, key, b"second", if_generation_match=0)
    assert stored(bucket, key) == b"first"


@pytest.mark.parametrize("write", [put, resumable])
def test_a_write_replaces_the_generation_it_names_and_no_other(bucket, key, write):
    first = write(bucket, key, b"first")
    second = write(bucket, key, b"second", if_generation_match=first)
    assert second > first
    with pytest.raises(PreconditionFailed):
        write(bucket, key, b"third", if_generation_match=first)
    with pytest.raises(PreconditionFailed):
        write(bucket, key, b"third", if_generation_not_match=second)
    with pytest.raises(PreconditionFailed):
        write(bucket, f"{key}/absent", b"third", if_generation_match=first)
    assert (stored(bucket, key), stored(bucket, f"{key}/absent")) == (b"second", None)


def test_a_resumable_upload_that_was_overtaken_does_not_finish(bucket, key):
    writer = bucket.blob(key).open("wb", chunk_size=MIB // 4, if_generation_match=0, retry=None)
    writer.write(b"x" * MIB)
    put(bucket, key, b"first")
    with pytest.raises(InvalidResponse) as caught:
        writer.close()
    assert caught.value.response.status_code == 412
    assert stored(bucket, key) == b"first"


def test_a_finished_upload_says_so_again(store, bucket, key):
    with FaultProxy(store.url) as proxy, store.at(proxy.url).client() as client:
        proxy.on("PUT", "upload_id=", drop_reply(), when=lambda r: not r.header("content-range").endswith("*"))
        blob = client.bucket("lake").blob(key, chunk_size=MIB // 4)
        blob.upload_from_file(io.BytesIO(b"x" * MIB), if_generation_match=0, checksum="crc32c")
    assert bucket.get_blob(key).generation == blob.generation
    assert stored(bucket, key) == b"x" * MIB


def test_a_late_write_meets_the_newer_generation(store, bucket, key):
    first = put(bucket, key, b"first")
    with FaultProxy(store.url) as proxy, store.at(proxy.url).client() as client:
        rule = proxy.on("POST", "upload", hold())
        with pytest.raises(Exception, match="Connection"):
            put(client.bucket("lake"), key, b"late", if_generation_match=first)
        put(bucket, key, b"second", if_generation_match=first)
        rule.release()
        rule.wait_until_done()
        assert rule.answers[0].status == 412
    assert stored(bucket, key) == b"second"


def test_reads_are_of_the_generation_they_name(store, bucket, key):
    first = put(bucket, key, b"first")
    second = put(bucket, key, b"second")
    blob = bucket.get_blob(key)
    assert (blob.generation, blob.metageneration) == (second, 1)
    assert [(b.name, b.generation) for b in bucket.list_blobs(prefix=key)] == [(key, second)]
    assert bucket.blob(key, generation=second).download_as_bytes(retry=None) == b"second"
    assert blob.download_as_bytes(start=1, end=2, if_generation_match=second, retry=None) == b"ec"
    with pytest.raises(NotFound):
        bucket.blob(key, generation=first).download_as_bytes(retry=None)
    with pytest.raises(NotFound):
        bucket.blob(key, generation=first).reload()
    with pytest.raises(PreconditionFailed):
        blob.download_as_bytes(if_generation_match=first, retry=None)
    assert bucket.get_blob(key, if_generation_match=second) is not None
    with urllib.request.urlopen(blob.media_link) as answer:
        assert (answer.headers["x-goog-generation"], answer.read()) == (str(second), b"second")


def test_a_delete_removes_the_generation_it_names_and_no_other(bucket, key):
    first = put(bucket, key)
    second = put(bucket, key)
    with pytest.raises(PreconditionFailed):
        bucket.blob(key).delete(if_generation_match=first)
    with pytest.raises(NotFound):
        bucket.blob(key, generation=first).delete()
    bucket.blob(key).delete(if_generation_match=second)
    assert stored(bucket, key) is None
    with pytest.raises(NotFound):
        bucket.blob(key).delete(if_generation_match=second)
    assert put(bucket, key, if_generation_match=0) > second


def test_copies_obey_the_target_and_the_source(bucket, key):
    source = put(bucket, f"{key}/source", b"rows")
    blob = bucket.blob(f"{key}/source")
    copy = bucket.copy_blob(blob, bucket, f"{key}/copy", if_generation_match=0, if_source_generation_match=source)
    assert copy.generation > source
    with pytest.raises(PreconditionFailed):
        bucket.copy_blob(blob, bucket, f"{key}/copy", if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        bucket.copy_blob(blob, bucket, f"{key}/copy", if_source_generation_match=copy.generation)
    with pytest.raises(PreconditionFailed):
        bucket.blob(f"{key}/copy").rewrite(blob, if_generation_match=0)
    with pytest.raises(NotFound):
        bucket.blob(f"{key}/copy").rewrite(bucket.blob(f"{key}/absent"))
    rewritten = bucket.blob(f"{key}/copy")
    assert rewritten.rewrite(blob, if_generation_match=copy.generation)[0] is None
    assert rewritten.generation > copy.generation
    assert stored(bucket, f"{key}/copy") == b"rows"


def test_composing_and_patching_obey(bucket, key):
    first = put(bucket, key, b"rows")
    blob = bucket.blob(key)
    blob.metadata = {"a": "b"}
    blob.patch(if_metageneration_match=1)
    assert (blob.generation, blob.metageneration) == (first, 2)
    with pytest.raises(PreconditionFailed):
        blob.patch(if_metageneration_match=1)
    with pytest.raises(PreconditionFailed):
        bucket.blob(key).compose([blob, blob], if_generation_match=0)
    bucket.blob(key).compose([blob, blob], if_generation_match=first)
    assert stored(bucket, key) == b"rowsrows"


def test_a_precondition_failure_is_worded_as_by_the_service(store, bucket, key):
    put(bucket, key)
    request = urllib.request.Request(
        f"{store.url}/upload/storage/v1/b/lake/o?uploadType=media&name={urllib.parse.quote(key, safe='')}"
        "&ifGenerationMatch=0",
        data=b"rows",
        headers={"Content-Type": "text/csv"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(request):
        pass
    with caught.value as answer:
        error = json.load(answer)["error"]
    assert (answer.code, error["code"], error["errors"][0]["reason"]) == (412, 412, "conditionNotMet")


def test_a_cancelled_upload_is_gone(store, bucket, key):
    url = bucket.blob(key).create_resumable_upload_session(origin=store.url, if_generation_match=0, retry=None)
    statuses = []
    for method in "DELETE", "PUT":
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, data=b"rows", method=method))
        caught.value.close()
        statuses.append(caught.value.code)
    assert (statuses, stored(bucket, key)) == ([499, 410], None)


def test_eight_processes_that_raise_one_counter_lose_no_update(store, bucket):
    command = [sys.executable, "-c", COUNT_UP, store.url, "5"]
    processes = [subprocess.Popen(command) for _ in range(8)]
    assert [process.wait(120) for process in processes] == [0] * 8
    assert stored(bucket, "counter") == b"40"
