"""What goes wrong on the way to a store: changed bytes, lost answers, errors that call themselves a success."""

import hashlib
import json
import os
import re
from dataclasses import replace

import pyarrow as pa
import pytest

from tests import rivet_cli
from tests.faults.lakes import MIB, NO_WAIT, S3_ALONE, materialized, object_of, said, uploads_in_pieces
from tests.harnesses import S3Harness
from tests.servers.faultproxy import FaultProxy, answer, cut_request, drop_reply, drop_request, flip_byte, rewrite

OLD = pa.table({"id": [1, 2, 3], "name": ["a", None, ""]})
NEW = pa.table({"id": range(100), "name": [hashlib.sha256(b"%d" % n).hexdigest() for n in range(100)]})
SHAPE = {"format": "csv", "max_file_size": "3KB"}
OBJECTS = {
    "part": r"/data/part-.*-00002\.",
    "record": r"/manifest-.*\.json$",
    "manifest": r"/manifest\.json$",
    "marker": r"/_SUCCESS$",
}
# Behind what a store's protocol puts around the bytes.
CHANGED = flip_byte(-500)
CHANGED_FINGERPRINT = rewrite(request=lambda r: replace(r, body=r.body.replace(b"xxh3:", b"xxh2:", 1)))


def break_write(proxy, what, action, **more):
    """Break the writes of one kind of object."""
    pattern = re.compile(OBJECTS[what])
    return proxy.on("PUT|POST", ".*", action, when=lambda request: bool(pattern.search(object_of(request))), **more)


@pytest.fixture
def proxied(cloud):
    """A cloud, and the way to it."""
    with FaultProxy(cloud.harness.server.url) as proxy:
        yield cloud, proxy, cloud.harness.server.at(proxy.url)


def test_a_bit_that_flips_in_a_part_is_found_before_anything_is_visible(proxied):
    cloud, proxy, server = proxied
    rule = break_write(proxy, "part", CHANGED)
    broken = cloud.export(NEW, server=server, **SHAPE)
    assert (broken.success, materialized(broken), rule.hits) == (False, 0, 1)
    assert "IntegrityError" in said(broken)
    (left,) = cloud.raw.values()
    assert json.loads(left)["status"] == "failed"
    rule = break_write(proxy, "part", CHANGED)
    assert cloud.export(NEW, server=server, policy=NO_WAIT, **SHAPE).success
    assert rule.hits == 1
    assert cloud.rows() == NEW.to_pylist()
    assert cloud.litter() == []


def test_a_bit_that_flips_in_what_describes_the_parts_changes_nothing(proxied):
    cloud, proxy, server = proxied
    if isinstance(cloud.harness, S3Harness):
        pytest.skip("moto stores bytes whose digest is not the one sent with them; S3 does not")
    assert cloud.export(OLD, **SHAPE).success
    old = cloud.rows()
    for what in ("record", "manifest", "marker"):
        rule = break_write(proxy, what, CHANGED_FINGERPRINT)
        broken = cloud.export(NEW, server=server, **SHAPE)
        assert (broken.success, materialized(broken), rule.hits) == (False, 0, 1), what
        assert cloud.rows() == old, what
    assert cloud.export(NEW, **SHAPE).success
    assert cloud.rows() == NEW.to_pylist()
    assert cloud.litter() == []


LOST = {
    "requests and an answer": [drop_request(), cut_request(10), answer(503), drop_reply()],
    "500 and done": [answer(500, after_forwarding=True)],
}


@pytest.mark.parametrize("way", LOST)
def test_what_is_lost_is_looked_up_and_each_row_is_there_once(proxied, way):
    """At each kind of object in the same run, and without a retry policy."""
    cloud, proxy, server = proxied
    rules = [break_write(proxy, what, action) for what in OBJECTS for action in LOST[way]]
    done = cloud.export(NEW, server=server, **SHAPE)
    assert (done.success, materialized(done)) == (True, 1), said(done)
    assert {rule.hits for rule in rules} == {1}
    assert cloud.rows() == NEW.to_pylist()
    assert cloud.litter() == []


# No codec makes it smaller: one part that is sent in pieces.
NOISE = pa.table({"noise": [os.urandom(256 << 10) for _ in range(9 * MIB >> 18)]})
SENDS = {"s3": ("PUT", r"partNumber=2"), "gcs": ("PUT", r"upload_id="), "azure": ("PUT", r"comp=block&")}
FINISHES = {"s3": ("POST", r"\?uploadId="), "gcs": ("PUT", r"upload_id="), "azure": ("PUT", r"comp=blocklist")}


def kind_of(cloud):
    return cloud.io_manager().kind


def test_a_broken_upload_in_pieces_leaves_nothing_and_a_good_one_raises_no_false_alarm(proxied, monkeypatch, tmp_path):
    cloud, proxy, server = proxied
    kind = kind_of(cloud)
    with uploads_in_pieces(monkeypatch):
        for action in (flip_byte(1000), answer(403, b"<Error><Code>AccessDenied</Code></Error>")):
            rule = proxy.on(*SENDS[kind], action)
            broken = cloud.export(NOISE, server=server)
            assert (broken.success, rule.hits) == (False, 1)
            assert cloud.rows() is None
            assert not [name for name in cloud.raw if "/data/" in name]
            assert cloud.harness.open_uploads() == []
        # GCS has no request of its own that finishes: it is the last piece.
        lost = proxy.on(*FINISHES[kind], drop_reply(), nth=10 if kind == "gcs" else 1)
        done = cloud.export(NOISE, server=server, checks=True)
    assert done.success, said(done)
    assert lost.hits == 1
    assert cloud.rows() == NOISE.to_pylist()
    assert cloud.litter() == []
    assert [c.passed for c in done.get_asset_check_evaluations()] == [True]
    (event,) = done.get_asset_materialization_events()
    level = event.step_materialization_data.materialization.metadata["rivet/verification"].value
    # A lost answer is settled by reading back where the store keeps no checksum of its own.
    assert level.startswith((f"{kind}-", "readback-"))
    if kind == "s3":
        place = rivet_cli.s3(
            cloud.harness.bucket, f"{cloud.harness.directory}orders/", endpoint=cloud.harness.server.url
        )
        assert rivet_cli.validate(place, workdir=tmp_path).passed


NOT_DONE = answer(200, b"<Error><Code>InternalError</Code></Error>")
DONE = rewrite(response=lambda r: replace(r, headers=(), body=b"<Error><Code>InternalError</Code></Error>"))


@pytest.mark.parametrize("cloud", S3_ALONE, indirect=True)
@pytest.mark.parametrize("action", [NOT_DONE, DONE], ids=["not done", "done"])
def test_an_error_inside_of_a_success_is_settled_by_looking(proxied, monkeypatch, action):
    """As S3 may answer the request that completes an upload in pieces."""
    cloud, proxy, server = proxied
    with uploads_in_pieces(monkeypatch):
        rule = proxy.on(*FINISHES["s3"], action)
        done = cloud.export(NOISE, server=server)
    assert rule.hits == 1
    assert done.success, said(done)
    assert cloud.rows() == NOISE.to_pylist()
    assert cloud.litter() == []
