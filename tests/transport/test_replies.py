"""Replies that say something else than what was sent: each is caught, and none is taken for more than it proves."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace

import pytest
from awscrt.checksums import crc64nvme

from rivet_dagster.contract import Checksum
from rivet_dagster.errors import IntegrityError, NoAnswer, PreconditionFailed
from tests.servers.faultproxy import answer, drop_reply, rewrite
from tests.transport.backends import KEY, MIB, TIMEOUT_S

OTHER = hashlib.md5(b"other").digest()
RETRYING = {"read_timeout": TIMEOUT_S, "retries": {"total_max_attempts": 3}}


def with_headers(**headers):
    """Set headers of a reply; `None` takes one away."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def change(response):
        kept = response.without(*named)
        return replace(response, headers=(*kept, *((k, v) for k, v in named.items() if v is not None)))

    return rewrite(response=change)


def with_json(**said):
    def change(response):
        described = {**json.loads(response.body), **said}
        kept = {name: value for name, value in described.items() if value is not None}
        return replace(response, body=json.dumps(kept).encode())

    return rewrite(response=change)


def step(backend, name):
    way, _, what = name.partition("-")
    return next(s for s in backend.steps if s.way == way and s.name == what)


# --- S3


@pytest.mark.parametrize("name", ["single-put", "parts-first", "parts-complete"])
def test_s3_a_reply_without_an_etag_is_unknown(s3, name):
    which = step(s3, name)
    change = with_headers(etag=None)
    if name == "parts-complete":
        change = rewrite(response=lambda r: replace(r, body=b'<?xml version="1.0"?><CompleteMultipartUploadResult/>'))
    s3.break_(which, change)
    content = s3.content(which.way)
    with pytest.raises(NoAnswer, match="ETag"):
        s3.write(content, way=which.way)
    assert s3.open_uploads() == []
    assert s3.shown() == ({KEY: content} if which.finishes else {})


def test_s3_the_etag_of_one_request_is_compared_where_there_is_nothing_better(backends):
    moto = backends("moto")
    outcome = moto.write(moto.content("single"))
    assert outcome.checksum == Checksum(
        kind="md5", value=hashlib.md5(moto.content("single")).digest(), level="etag-md5"
    )
    moto.begin()
    moto.break_(step(moto, "single-put"), with_headers(etag=f'"{OTHER.hex()}"'))
    with pytest.raises(IntegrityError, match=OTHER.hex()):
        moto.write(moto.content("single"))


@pytest.mark.parametrize("name", ["single-put", "parts-complete"])
def test_s3_its_own_checksum_is_compared(backends, name):
    store = backends("localstack")
    which = step(store, name)
    content = store.content(which.way)
    outcome = store.write(content, way=which.way)
    assert outcome.checksum is not None
    assert outcome.checksum.level == "s3-crc64nvme"
    assert store.destination().head(KEY).checksum == outcome.checksum
    store.begin()
    wrong = base64.b64encode(bytes(8)).decode()
    change = with_headers(x_amz_checksum_crc64nvme=wrong)
    if name == "parts-complete":
        right = base64.b64encode(outcome.checksum.value)

        def lie(response):
            body = response.body
            start = body.index(b"<ChecksumCRC64NVME>") + len(b"<ChecksumCRC64NVME>")
            return replace(response, body=body[:start] + wrong.encode() + body[start + len(right) :])

        change = rewrite(response=lie)
    store.break_(which, change)
    with pytest.raises(IntegrityError, match="s3-crc64nvme"):
        store.write(store.content(which.way), way=which.way)


@pytest.mark.parametrize("way", ["single", "parts"])
def test_s3_every_request_with_data_carries_its_digests(s3, way):
    content = s3.content(way)
    s3.write(content, way=way)
    pieces = [content] if way == "single" else [content[: 5 * MIB], content[5 * MIB :]]
    sent = s3.proxy.requests("PUT")
    assert len(sent) == len(pieces)
    for exchange, piece in zip(sent, pieces, strict=True):
        md5, crc = hashlib.md5(piece).digest(), crc64nvme(piece).to_bytes(8, "big")
        assert exchange.request.header("content-md5") == base64.b64encode(md5).decode()
        assert exchange.request.header("x-amz-checksum-crc64nvme") == base64.b64encode(crc).decode()


def test_s3_our_own_checksum_said_back_proves_nothing(backends):
    """A store that repeats the header it was sent says so without a type."""
    moto = backends("moto")
    content = moto.content("single")

    def flip_and_echo(passage, rule):
        echo = passage.request.header("x-amz-checksum-crc64nvme")
        response = passage.forward(replace(passage.request, body=b"X" + passage.request.body[1:]))
        passage.reply(replace(response, headers=(*response.headers, ("x-amz-checksum-crc64nvme", echo))))

    assert not content.startswith(b"X")
    moto.break_(step(moto, "single-put"), flip_and_echo)
    with pytest.raises(IntegrityError, match="etag-md5"):
        moto.write(content)


def test_s3_an_encrypted_objects_etag_raises_no_false_alarm(backends):
    moto = backends("moto")
    moto.break_(step(moto, "single-put"), with_headers(etag=f'"{OTHER.hex()}"', x_amz_server_side_encryption="aws:kms"))
    moto.break_(step(moto, "single-look"), with_headers(etag=f'"{OTHER.hex()}"', x_amz_checksum_type=None))
    outcome = moto.write(moto.content("single"))
    assert (outcome.checksum, outcome.level) == (None, "size")
    assert outcome.version == OTHER.hex()


def test_s3_without_a_checksum_of_its_own_parts_count_as_they_arrived(backends):
    moto = backends("moto")
    untyped = with_headers(x_amz_checksum_type=None)
    moto.proxy.on("HEAD", "", untyped, times=None)
    outcome = moto.write(moto.content("parts"), way="parts")
    assert (outcome.checksum, outcome.level) == (None, "s3-part-md5")
    moto.begin()
    moto.proxy.on("HEAD", "", untyped, times=None)
    moto.break_(step(moto, "parts-last"), with_headers(x_amz_server_side_encryption="aws:kms"))
    outcome = moto.write(moto.content("parts"), way="parts")
    assert (outcome.checksum, outcome.level) == (None, "size")


def test_s3_the_etag_of_parts_is_never_taken_for_a_digest(s3):
    content = s3.content("parts")
    outcome = s3.write(content, way="parts")
    assert outcome.version.endswith("-2")
    assert outcome.checksum is None or outcome.checksum.kind == "crc64nvme"


@pytest.mark.parametrize("way", ["single", "parts"])
def test_s3_another_size_than_sent_is_caught(s3, way):
    s3.break_(step(s3, f"{way}-look"), rewrite(response=lambda r: replace(r, length="12")))
    with pytest.raises(IntegrityError, match="the store holds 12"):
        s3.write(s3.content(way), way=way)


def test_s3_a_version_that_someone_else_wrote_meanwhile_says_nothing_about_ours(s3):
    """What is seen after a write may be the next writer's: neither an alarm nor a proof."""
    content = s3.content("single")
    s3.break_(step(s3, "single-look"), rewrite(response=lambda r: replace(with_etag(r), length="12")))
    outcome = s3.write(content)
    assert outcome.size_bytes == len(content)
    assert outcome.version == hashlib.md5(content).hexdigest()


def with_etag(response):
    return replace(response, headers=(*response.without("etag"), ("etag", f'"{OTHER.hex()}"')))


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not-applied"])
def test_s3_completion_that_answers_200_with_an_error_inside_is_unknown(s3, applied):
    body = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>We encountered an error</Message></Error>"
    headers = {"content-type": "application/xml"}
    s3.break_(step(s3, "parts-complete"), answer(200, body, headers=headers, after_forwarding=applied))
    content = s3.content("parts")
    with pytest.raises(NoAnswer, match="InternalError"):
        s3.write(content, way="parts")
    assert s3.shown() == ({KEY: content} if applied else {})
    assert s3.open_uploads() == []


@pytest.mark.parametrize("body", [b"", b"<html>", b"<?xml version='1.0'?><CompleteMulti"])
def test_s3_completion_that_answers_nonsense_is_unknown(s3, body):
    s3.break_(step(s3, "parts-complete"), answer(200, body, after_forwarding=True))
    with pytest.raises(NoAnswer):
        s3.write(s3.content("parts"), way="parts")
    assert s3.shown() == {KEY: s3.content("parts")}
    assert s3.open_uploads() == []


def test_s3_a_completion_that_the_sdk_repeats_itself_is_unknown(backends):
    """LocalStack, like AWS at times, says NoSuchUpload to the repeat: the object is there."""
    s3 = backends("localstack")
    s3.break_(step(s3, "parts-complete"), drop_reply())
    destination = s3.destination(client=s3.server.at(s3.proxy.url).client(**RETRYING))
    content = s3.content("parts")
    with pytest.raises(NoAnswer, match="NoSuchUpload"):
        s3.write(content, way="parts", destination=destination)
    assert len(s3.proxy.requests("POST", "uploadId=")) == 2
    assert s3.shown() == {KEY: content}
    assert s3.open_uploads() == []


def test_s3_a_put_that_the_sdk_repeats_itself_meets_its_own_object(s3):
    s3.break_(step(s3, "single-put"), drop_reply())
    destination = s3.destination(client=s3.server.at(s3.proxy.url).client(**RETRYING))
    with pytest.raises(PreconditionFailed):
        s3.write(s3.content("single"), destination=destination)
    assert len(s3.proxy.requests("PUT")) == 2
    assert s3.shown() == {KEY: s3.content("single")}


def test_s3_a_conflicting_conditional_request_is_unknown(s3):
    body = b"<Error><Code>ConditionalRequestConflict</Code><Message>x</Message></Error>"
    s3.break_(step(s3, "single-put"), answer(409, body, headers={"content-type": "application/xml"}))
    with pytest.raises(NoAnswer, match="same expectation"):
        s3.write(s3.content("single"))


# --- GCS


@pytest.mark.parametrize("name", ["single-put", "parts-last"])
def test_gcs_its_own_md5_is_compared_and_nothing_is_removed_for_it(google, name):
    which = step(google, name)
    content = google.content(which.way)
    google.break_(which, with_json(md5Hash=base64.b64encode(OTHER).decode()))
    with pytest.raises(IntegrityError, match="gcs-md5"):
        google.write(content, way=which.way)
    # Removal is the caller's, who knows whether it is still ours.
    assert google.proxy.requests("DELETE") == []
    assert google.shown() == {KEY: content}


@pytest.mark.parametrize("missing", ["generation", "size"])
@pytest.mark.parametrize("name", ["single-put", "parts-last"])
def test_gcs_a_reply_that_does_not_say_what_it_wrote_is_unknown(google, name, missing):
    which = step(google, name)
    google.break_(which, with_json(**{missing: None}))
    with pytest.raises(NoAnswer, match="generation"):
        google.write(google.content(which.way), way=which.way)


@pytest.mark.parametrize("name", ["single-put", "parts-last"])
def test_gcs_another_size_than_sent_is_caught(google, name):
    which = step(google, name)
    google.break_(which, with_json(size="12"))
    with pytest.raises(IntegrityError, match="the store holds 12"):
        google.write(google.content(which.way), way=which.way)


@pytest.mark.parametrize("body", [b"", b"<html>"])
@pytest.mark.parametrize("name", ["single-put", "parts-last"])
def test_gcs_a_reply_that_is_no_json_is_unknown(google, name, body):
    which = step(google, name)
    google.break_(which, answer(200, body, after_forwarding=True))
    with pytest.raises(NoAnswer):
        google.write(google.content(which.way), way=which.way)
    assert google.shown() == {KEY: google.content(which.way)}


def test_gcs_an_object_without_md5_has_its_crc32c(google):
    """As composed ones have, which the emulator does not imitate."""
    google.break_(step(google, "single-put"), with_json(md5Hash=None))
    outcome = google.write(google.content("single"))
    assert outcome.checksum is not None
    assert (outcome.checksum.kind, outcome.checksum.level) == ("crc32c", "gcs-crc32c")
    assert len(outcome.checksum.value) == 4


def test_gcs_a_version_that_is_no_generation_is_asked_about_all_the_same(google):
    """Whether there are preconditions at all is found out by a wrong one: it must reach the service."""
    google.write(google.content("single"))
    for wrong in ("wrong", "0", "-1", "9" * 30, "٣"):
        google.proxy.exchanges.clear()
        with pytest.raises(PreconditionFailed):
            google.write(google.content("single"), expect=wrong)
        assert len(google.proxy.requests("POST", "ifGenerationMatch=1")) == 1


# --- Azure


def test_azure_its_own_md5_is_compared(azure):
    content = azure.content("single")
    outcome = azure.write(content)
    assert outcome.checksum == Checksum(kind="md5", value=hashlib.md5(content).digest(), level="azure-md5")
    assert azure.destination().head(KEY).checksum == outcome.checksum
    azure.begin()
    azure.break_(step(azure, "single-put"), with_headers(content_md5=base64.b64encode(OTHER).decode()))
    with pytest.raises(IntegrityError, match="other bytes"):
        azure.write(azure.content("single"))


def test_azure_blocks_are_checked_one_by_one_and_get_no_label(azure):
    content = azure.content("parts")
    outcome = azure.write(content, way="parts")
    assert (outcome.checksum, outcome.level, outcome.size_bytes) == (None, "azure-block-md5", len(content))
    found = azure.raw.get_blob_client(azure.bucket, f"{azure.prefix}/{KEY}").get_blob_properties()
    assert found.content_settings.content_md5 is None
    assert azure.destination().head(KEY).checksum is None
    assert [listed.checksum for listed in azure.destination().list("data/")] == [None]
    sent = azure.proxy.requests("PUT", "comp=block")
    assert len(sent) == 4
    assert all(exchange.request.header("content-md5") for exchange in sent)


def test_azure_a_client_set_to_small_requests_raises_no_false_alarm(azure):
    """The SDK then sends blocks by itself, and the MD5 in the last answer is of their list."""
    client = azure.server.at(azure.proxy.url).client(max_single_put_size=1000, max_block_size=64 << 10)
    content = azure.content("single")
    outcome = azure.write(content, client=client)
    assert len(azure.proxy.requests("PUT", "comp=blocklist")) == 1
    assert (outcome.checksum, outcome.level) == (None, "azure-block-md5")
    assert azure.shown() == {KEY: content}


@pytest.mark.parametrize("name", ["single-put", "parts-commit"])
def test_azure_a_reply_without_an_etag_is_unknown(azure, name):
    which = step(azure, name)
    azure.break_(which, with_headers(etag=None))
    with pytest.raises(NoAnswer, match="ETag"):
        azure.write(azure.content(which.way), way=which.way)


def test_azure_blocks_of_two_writers_of_one_key_do_not_mix(azure):
    """The second stages all of its blocks before the first commits, and never comes to commit them."""
    first, second = azure.content("parts"), hashlib.shake_128(b"second").digest(len(azure.content("parts")))
    ended = []

    def let_the_second_stage(passage, rule):
        with pytest.raises(NoAnswer) as caught:
            azure.write(second, way="parts")
        ended.append(caught.value)
        passage.reply(passage.forward())

    azure.break_(step(azure, "parts-commit"), let_the_second_stage)
    azure.proxy.on("PUT", "comp=blocklist", answer(503))
    azure.write(first, way="parts")
    assert len(ended) == 1
    assert azure.shown() == {KEY: first}
