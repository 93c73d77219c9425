"""Keys are injective, reversible to the eye, and never lead out of a prefix."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.errors import ConfigError
from rivet_dagster.layout import Prefix, asset_prefix, make_token, segment, token_of

names = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
    st.sampled_from(
        [
            "data",
            "%64ata",
            "manifest.json",
            "manifest-x.json",
            "_SUCCESS",
            ".",
            "..",
            "a/b",
            "a%2fb",
            "A",
            "a",
            "partition=a",
        ]
    ),
)


@given(names, names)
def test_different_names_give_different_segments_even_where_case_is_folded(a, b):
    assert (segment(a).lower() == segment(b).lower()) == (a == b)


@given(names)
def test_a_segment_is_safe_everywhere(name):
    out = segment(name)
    assert re.fullmatch(r"[a-z0-9%.\-_]+", out)
    assert len(out) <= 180
    assert out[0] not in "_."
    assert out not in ("data", "manifest.json")
    assert token_of(out) is None or not out.startswith("manifest-")


@given(
    st.lists(names, min_size=1, max_size=3),
    st.lists(names, min_size=1, max_size=3),
    st.none() | names,
    st.none() | names,
)
def test_prefixes_of_different_assets_or_partitions_never_meet(a, b, pa, pb):
    one, two = asset_prefix(a, pa).root, asset_prefix(b, pb).root
    assert (one == two) == ((a, pa) == (b, pb))
    if one != two:
        assert not two.startswith(f"{one}data/")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("2024/01", "2024%2f01"),
        ("0.1", "0.1"),
        ("2024-01-01T00:00", "2024-01-01%5400%3a00"),
        ("a b", "a%20b"),
        ("..", "%2e."),
        ("EU", "%45%55"),
        ("été", "%c3%a9t%c3%a9"),
        ("_x", "%5fx"),
        ("100%", "100%25"),
        ("a=b", "a%3db"),
    ],
)
def test_examples(key, expected):
    assert segment(key) == expected
    assert asset_prefix(["wh", "orders"], key).root == f"wh/orders/partition={expected}/"


def test_an_empty_name_is_refused():
    with pytest.raises(ConfigError, match="at least one character"):
        asset_prefix(["a", ""])


def test_tokens_are_found_in_names():
    token = make_token("6f1e-run", "2024/01", "0badcafe")
    prefix = Prefix("a/")
    assert re.fullmatch(r"6f1e-run-[0-9a-f]{8}-0badcafe", token)
    assert token_of(prefix.part(token, 3, ".csv.gz")) == token
    assert token_of(prefix.side(token)) == token
    assert prefix.part(token, 3, ".parquet").startswith(prefix.parts_of(token))
    assert make_token("r", None, "00000001") == "r-00000000-00000001"
    assert make_token("a/b c", None, "1") == "a-b-c-00000000-1"
    for other in ("manifest.json", "_SUCCESS", "part-1.parquet", "data/notes.txt", "manifest-.json"):
        assert token_of(other) is None


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/./b", "a\\b", "", ".."])
def test_a_manifest_cannot_point_out_of_its_prefix(path):
    with pytest.raises(ConfigError, match="below the prefix"):
        Prefix("a/").at(path)
