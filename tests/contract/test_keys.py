"""Odd keys arrive as they are; what is no key is refused before anything is touched."""

from __future__ import annotations

import pytest

from rivet_dagster.contract import ABSENT, ANY, ObjectDestination
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


def test_odd_keys_arrive_as_they_are(harness):
    """Each under its own name, none in the place of another."""
    destination = harness.fresh()
    for key in GOOD:
        with staged(destination, key, key.encode()) as part:
            destination.write(key, part, md5=md5(key.encode()), expect=ABSENT)
        assert destination.uri(key).startswith(destination.uri())
    if isinstance(destination, ObjectDestination):
        assert harness.raw() == {key: key.encode() for key in GOOD}
    else:
        assert harness.shown("") == "".join(GOOD).encode()


def test_odd_keys_are_found_read_moved_and_removed(harness):
    destination = objects(harness)
    if destination is None:
        return
    for key in GOOD:
        harness.put(key, key.encode())
    for key in GOOD:
        directory = key[: key.rfind("/") + 1]
        (listed,) = (found for found in destination.list(directory) if found.key == key)
        assert destination.head(key) == listed
        assert destination.read(key).body == key.encode()
        destination.move(key, f"moved/{key}")
    assert harness.raw() == {f"moved/{key}": key.encode() for key in GOOD}
    for key in GOOD:
        destination.remove(f"moved/{key}")
    assert harness.raw() == {}


def test_what_is_no_key_is_refused_before_anything_is_touched(harness):
    destination = harness.fresh()
    before = harness.raw()
    for key, why in BAD.items():
        with pytest.raises(DestinationError, match=why):
            destination.stage(key)
        with pytest.raises(DestinationError, match=why):
            destination.write(key, b"x", md5=md5(b"x"), expect=ANY)
    assert harness.raw() == before


def test_nothing_is_looked_at_or_moved_by_what_is_no_key(harness):
    destination = objects(harness)
    if destination is None:
        return
    write(destination, "good", b"content")
    calls = [
        destination.head,
        destination.read,
        destination.remove,
        lambda key: destination.move(key, "other"),
        lambda key: destination.move("good", key),
        lambda key: list(destination.list(f"{key}/")),
    ]
    for key in BAD:
        for call in calls:
            with pytest.raises(DestinationError, match="is no key"):
                call(key)
    assert harness.raw() == {"good": b"content"}


def test_a_directory_ends_in_a_slash(harness):
    destination = objects(harness)
    if destination is None:
        return
    with pytest.raises(DestinationError, match="is no directory"):
        list(destination.list("orders"))
