"""A write is whole or not there; on a stream, it is an error that says so."""

from __future__ import annotations

import hashlib

import pytest
import xxhash

from rivet_dagster.contract import ABSENT, ANY
from rivet_dagster.errors import DestinationError, IntegrityError, PreconditionFailed
from rivet_dagster.testing import ScriptedBody
from tests.contract.kit import KEY, LARGE, MIB, SMALL, Boom, boom, content, md5, staged, write

OLD = content(SMALL, "old")


def assert_nothing_changed(harness, destination, before, sent):
    """The key holds what it held, nothing else is there; a stream shows the old and a true part of the new."""
    if destination.capabilities.partial_write_risk:
        out = harness.shown(KEY) or b""
        assert out.startswith(before or b"")
        tail = out[len(before or b"") :]
        assert len(tail) < len(sent) or not sent
        assert sent.startswith(tail)
    else:
        assert harness.raw() == ({} if before is None else {harness.raw_name(KEY): before})
        assert harness.open_uploads() == []


@pytest.fixture(params=[SMALL, LARGE], ids=["small", "large"])
def body(request):
    return content(request.param)


@pytest.fixture(params=[None, OLD], ids=["absent", "existing"])
def before(request):
    return request.param


@pytest.fixture
def destination(harness, before):
    found = harness.fresh()
    if before is not None:
        write(found, KEY, before)
    return found


def test_every_size_arrives_whole(harness):
    """At the borders where a destination changes how it sends, as any body and as a staged part."""
    for size_bytes in harness.borders:
        whole = content(size_bytes, str(size_bytes))
        destination = harness.fresh()
        outcome = destination.write(KEY, ScriptedBody(whole), md5=md5(whole), expect=ANY)
        assert (harness.shown(KEY) or b"") == whole
        assert outcome.size_bytes == size_bytes
        destination = harness.fresh()
        with staged(destination, KEY, whole) as part:
            outcome = destination.write(KEY, part, md5=md5(whole), expect=ABSENT)
        assert (harness.shown(KEY) or b"") == whole
        assert outcome.size_bytes == size_bytes
        assert harness.open_uploads() == []


def test_an_empty_body_is_an_object(harness):
    destination = harness.fresh()
    assert write(destination, KEY, b"").size_bytes == 0
    at_rest = destination.capabilities.commit_protocol.leaves_objects_at_rest
    assert harness.raw() == {harness.raw_name(KEY): b""}
    assert harness.shown(KEY) == (b"" if at_rest else None)


def test_the_outcome_is_what_the_store_says(harness, body):
    destination = harness.fresh()
    with staged(destination, KEY, body) as part:
        outcome = destination.write(KEY, part, md5=md5(body), expect=ABSENT)
        digests = part.digests
    at_rest = destination.capabilities.commit_protocol.leaves_objects_at_rest
    assert (outcome.version is not None) is at_rest
    if outcome.checksum is None:
        assert outcome.level
    else:
        assert outcome.checksum.value == digests[outcome.checksum.kind]
        assert outcome.checksum.level


def test_a_body_that_fails_half_way_changes_nothing(harness, destination, before, body):
    failing = ScriptedBody(body, at=len(body) * 3 // 4, then=boom)
    with pytest.raises((Boom, DestinationError)):
        destination.write(KEY, failing, md5=md5(body), expect=ANY)
    assert_nothing_changed(harness, destination, before, body)


def test_a_short_body_changes_nothing(harness, destination, before, body):
    lying = ScriptedBody(body[:-1], promised=len(body))
    with pytest.raises(DestinationError, match=f"promised {len(body)} bytes and ended after {len(body) - 1}"):
        destination.write(KEY, lying, md5=md5(body), expect=ANY)
    assert_nothing_changed(harness, destination, before, body)


def test_a_long_body_changes_nothing(harness, destination, before, body):
    lying = ScriptedBody(body + b"!", promised=len(body))
    with pytest.raises(DestinationError, match=f"promised {len(body)} bytes and holds more"):
        destination.write(KEY, lying, md5=md5(body), expect=ANY)
    assert_nothing_changed(harness, destination, before, body + b"!")


def test_a_wrong_declared_md5_changes_nothing(harness, destination, before, body):
    with pytest.raises(IntegrityError, match="MD5"):
        destination.write(KEY, ScriptedBody(body), md5=md5(b"other"), expect=ANY)
    assert_nothing_changed(harness, destination, before, body)


def test_a_staged_part_that_is_not_the_declared_one_changes_nothing(harness, destination, before, body):
    with staged(destination, KEY, body) as part, pytest.raises(IntegrityError, match="MD5"):
        destination.write(KEY, part, md5=md5(b"other"), expect=ANY)
    if destination.capabilities.partial_write_risk:
        assert harness.shown(KEY) == (before or b"") + body
    else:
        assert_nothing_changed(harness, destination, before, body)


def test_a_write_replaces_or_follows(harness, destination, before, body):
    """A shorter body leaves nothing of a longer one behind."""
    write(destination, KEY, content(LARGE, "longer"))
    write(destination, KEY, body)
    if destination.capabilities.idempotent_overwrite:
        assert harness.raw() == {harness.raw_name(KEY): body}
    else:
        assert harness.shown(KEY) == (before or b"") + content(LARGE, "longer") + body


def test_a_staged_part_is_not_there_before_it_is_written(harness, destination, before, body):
    part = destination.stage(KEY)
    part.write(body)
    part.flush()
    part.close()
    if destination.capabilities.partial_write_risk:
        assert harness.shown(KEY) == (before or b"") + body
    else:
        assert harness.shown(KEY) == before
    part.discard()
    part.discard()
    if not destination.capabilities.partial_write_risk:
        assert harness.raw() == ({} if before is None else {harness.raw_name(KEY): before})


def test_discarding_does_not_touch_what_was_written(harness, body):
    destination = harness.fresh()
    part = destination.stage(KEY)
    part.write(body)
    part.close()
    destination.write(KEY, part, md5=part.digests["md5"], expect=ABSENT)
    part.discard()
    part.discard()
    assert harness.raw() == {harness.raw_name(KEY): body}


def test_a_staged_part_may_be_written_again(harness, body):
    """As after a reply that was lost: it meets itself, or takes its own place. What has left cannot leave again."""
    destination = harness.fresh()
    at_rest = destination.capabilities.commit_protocol.leaves_objects_at_rest
    with staged(destination, KEY, body) as part:
        destination.write(KEY, part, md5=md5(body), expect=ABSENT)
        if at_rest:
            with pytest.raises(PreconditionFailed):
                destination.write(KEY, part, md5=md5(body), expect=ABSENT)
        assert destination.write(KEY, part, md5=md5(body), expect=ANY).size_bytes == len(body)
    assert harness.raw() == {harness.raw_name(KEY): body}


def test_staging_hashes_counts_and_ends(harness, body):
    part = harness.fresh().stage(KEY)
    assert part.key == KEY
    assert not part.closed
    assert part.write(memoryview(body)[:100]) == 100
    assert part.write(bytearray(body[100:])) == len(body) - 100
    assert part.tell() == part.size_bytes == len(body)
    part.close()
    part.close()
    assert part.closed
    assert part.digests["md5"] == hashlib.md5(body).digest()
    assert part.digests["xxh3"] == xxhash.xxh3_64_intdigest(body).to_bytes(8, "big")
    with pytest.raises(ValueError, match="write after close"):
        part.write(b"more")
    part.discard()


def test_a_staged_part_is_read_again_from_the_start(harness, body):
    """By readers that do not know each other; where bytes have left, that is said."""
    destination = harness.fresh()
    with staged(destination, KEY, body) as part:
        if destination.capabilities.partial_write_risk:
            with pytest.raises(DestinationError, match="cannot be read again"):
                part.open()
            return
        with part.open() as one, part.open() as other:
            assert one.read(10) == other.read(10) == body[:10]
            assert one.seek(-5, 2) == len(body) - 5
            assert one.read() == body[-5:]
            assert one.seek(3) == one.tell() == 3
            assert other.read() == body[10:]
    with pytest.raises(DestinationError, match="discarded"):
        part.open()


def test_several_parts_are_staged_at_once(harness):
    """Encoding goes on while an earlier part is being sent; a stream takes one after the other."""
    destination = harness.fresh()
    if destination.capabilities.partial_write_risk:
        for number in range(3):
            write(destination, f"data/part-{number}", b"%d" % number)
        assert harness.shown(KEY) == b"012"
        return
    parts = [destination.stage(f"data/part-{number}") for number in range(3)]
    for number, part in enumerate(parts):
        part.write(b"%d" % number)
        part.close()
    for part in reversed(parts):
        destination.write(part.key, part, md5=part.digests["md5"], expect=ABSENT)
        part.discard()
    assert harness.raw() == {harness.raw_name(f"data/part-{n}"): b"%d" % n for n in range(3)}


def test_arrow_writers_encode_into_what_is_staged(harness):
    import gzip
    import io

    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    table = pa.table({"n": range(300_000), "t": ["é"] * 300_000})
    destination = harness.fresh()

    part = destination.stage("data/rows.parquet")
    with pq.ParquetWriter(part, table.schema) as writer:
        writer.write_table(table)
    part.close()
    destination.write(part.key, part, md5=part.digests["md5"], expect=ABSENT)
    part.discard()
    assert pq.read_table(pa.BufferReader(harness.shown(part.key))).equals(table)

    destination = harness.fresh()
    part = destination.stage("data/rows.csv.gz")
    with gzip.GzipFile(fileobj=part, mode="wb", mtime=0) as packed, pa.csv.CSVWriter(packed, table.schema) as writer:
        writer.write_table(table)
    part.close()
    destination.write(part.key, part, md5=part.digests["md5"], expect=ABSENT)
    part.discard()
    unpacked = gzip.decompress(harness.shown(part.key))
    assert pa.csv.read_csv(io.BytesIO(unpacked)).equals(table)


def test_an_encoder_that_fails_leaves_nothing(harness, destination, before):
    """A Parquet writer ends with a valid footer on its way out of an error: that must not become an object."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"n": range(MIB)})
    part = destination.stage(KEY)

    def encode() -> None:
        with pq.ParquetWriter(part, table.schema) as writer:
            writer.write_table(table)
            boom()

    with pytest.raises(Boom):
        encode()
    part.discard()
    if not destination.capabilities.partial_write_risk:
        assert_nothing_changed(harness, destination, before, b"")
