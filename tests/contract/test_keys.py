"""Odd keys arrive as they are; what is no key is refused before anything is touched."""

from __future__ import annotations

import pytest

from rivet_dagster.contract import ABSENT, ANY
from rivet_dagster.errors import DestinationError
from tests.contract.kit import md5, objects, staged, write

GOOD = [
    "plain",
    "a b/c  d.csv",
    " leading and trailing ",
    "ünïcödé/日本語/🦀.parquet",
    "100%/50%25/%2e%2e/%00",
    "a+b&c=d;e@f:g$h,i!j~k",
    "query?x=1#fragment",
    'it\'s "quoted" `so` (and) [so] {too} <here> |*^',
    "_SUCCESS",
    "region=EU%2fWest/day=2024-01-01/part-run-00001.csv.gz",
    "trailing.dots.../a..b",
    "CON/nul/aux",
    "d/" * 20 + "deep",
    "l" * 200,
    "ö" * 100,
]
BAD = {
    "": "it is empty",
    "/": "absolute",
    "/etc/passwd": "absolute",
    "a//b": "empty segment",
    "a/": "empty segment",
    ".": "dot",
    "./a": "dot",
    "..": "dot",
    "../a": "dot",
    "a/../../b": "dot",
    "a/..": "dot",
    ".hidden": "dot",
    "a/.rivet.lock": "dot",
    "a\\..\\b": "backslash",
    "nul\0byte": "backslash or a character",
    "line\nbreak": "backslash or a character",
    "half\ud800": "backslash or a character",
    "k" * 1025: "at most 1024",
    "d/" * 600 + "deep": "at most 1024",
}


@pytest.mark.parametrize("key", GOOD)
def test_an_odd_key_arrives_as_it_is(harness, key):
    destination = harness.fresh()
    body = key.encode()
    with staged(destination, key, body) as part:
        destination.write(key, part, md5=md5(body), expect=ABSENT)
    assert harness.raw() == {harness.raw_name(key): body}
    assert destination.uri(key).startswith(destination.uri())


@pytest.mark.parametrize("key", GOOD)
def test_an_odd_key_is_found_read_moved_and_removed(harness, key):
    destination = objects(harness)
    if destination is None:
        return
    write(destination, key, b"content", ABSENT)
    directory = key[: key.rfind("/") + 1]
    listed = list(destination.list(directory))
    assert [found.key for found in listed] == [key]
    assert destination.head(key) == listed[0]
    assert destination.read(key).body == b"content"
    destination.move(key, f"moved/{key}")
    assert harness.raw() == {harness.raw_name(f"moved/{key}"): b"content"}
    destination.remove(f"moved/{key}")
    assert harness.raw() == {}


@pytest.mark.parametrize("key", BAD)
def test_what_is_no_key_is_refused_before_anything_is_touched(harness, key):
    destination = harness.fresh()
    before = harness.raw()
    with pytest.raises(DestinationError, match=BAD[key]):
        destination.stage(key)
    with pytest.raises(DestinationError, match=BAD[key]):
        destination.write(key, b"x", md5=md5(b"x"), expect=ANY)
    assert harness.raw() == before


@pytest.mark.parametrize("key", BAD)
def test_nothing_is_looked_at_or_moved_by_what_is_no_key(harness, key):
    destination = objects(harness)
    if destination is None:
        return
    write(destination, "good", b"content")
    calls = [
        lambda: destination.head(key),
        lambda: destination.read(key),
        lambda: destination.remove(key),
        lambda: destination.move(key, "other"),
        lambda: destination.move("good", key),
        lambda: list(destination.list(f"{key}/")),
        lambda: destination.hold(f"{key}/").__enter__(),
    ]
    for call in calls if destination.kind == "local" else calls[:-1]:
        with pytest.raises(DestinationError, match="is no key"):
            call()
    assert harness.raw() == {harness.raw_name("good"): b"content"}


def test_a_directory_ends_in_a_slash(harness):
    destination = objects(harness)
    if destination is None:
        return
    with pytest.raises(DestinationError, match="is no directory"):
        list(destination.list("orders"))
