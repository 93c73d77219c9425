"""Database URLs, and that no part of a secret in one ever shows."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.errors import ConfigError
from rivet_dagster.sources.connect import connect
from rivet_dagster.sources.postgresql import PostgresSource
from rivet_dagster.sources.url import parse_url

PASSWORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(PASSWORDS, st.sampled_from(["postgresql", "postgres", "postgresql+psycopg", "PostgreSQL+asyncpg"]))
def test_no_spelling_of_a_password_survives(password: str, scheme: str) -> None:
    url = parse_url(f"{scheme}://user:{quote(password, safe='')}@host:5432/shop")
    spellings = {password, quote(password, safe=""), quote(password), quote_plus(password)}
    for spelling in spellings:
        assert url.redact(spelling) == "***"
        assert set(password) == {"*"} or password not in url.redact(f"could not use {spelling} here")
    assert password not in repr(url) or password in repr(parse_url("postgresql://host/shop"))


def test_a_mask_is_not_masked_again() -> None:
    assert parse_url("postgresql://user:*@host/shop").redact("*, %2A") == "***, ***"


def test_the_origin_of_rows_is_the_url_without_its_secrets() -> None:
    one = parse_url("postgresql://me:secret@host:5432/shop?sslmode=require&password=x").origin
    assert parse_url("postgresql://me:rotated@host:5432/shop?password=y&sslmode=require").origin == one
    others = (
        "postgresql://you:secret@host:5432/shop?sslmode=require",
        "postgresql://me@other:5432/shop?sslmode=require",
        "postgresql://me@host:5433/shop?sslmode=require",
        "postgresql://me@host:5432/shops?sslmode=require",
        "postgresql://me@host:5432/shop?sslmode=require&host=other",
        "duckdb:///shop",
        "sqlite:///shop",
        "sqlite:////shop",
    )
    assert len({one, *(parse_url(url).origin for url in others)}) == 1 + len(others)


def test_a_file_is_the_same_by_each_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("sqlite:///shop.db").origin == parse_url(f"sqlite:///{tmp_path}/shop.db").origin


@given(PASSWORDS)
def test_a_password_among_the_parameters_is_a_secret_too(password: str) -> None:
    url = parse_url(f"postgresql://host/shop?user=me&password={quote(password, safe='')}&sslmode=prefer")
    assert url.redact(password) == "***"


def test_parameters_are_read_as_libpq_reads_them() -> None:
    url = parse_url("postgresql://host/shop?password=a+b%2Bc&x=1&x=2&empty=")
    assert url.parameters == {"password": "a+b+c", "x": "2", "empty": ""}
    assert url.redact("<a+b+c> <a+b%2Bc>") == "<***> <***>"


def test_credentials_in_any_url_are_masked() -> None:
    url = parse_url("postgresql://host/shop")
    assert url.redact("see postgresql://me:hush@elsewhere/db now") == "see postgresql://***@elsewhere/db now"
    assert url.redact("host=h password=hush user=u") == "host=h password=*** user=u"
    assert url.redact("password = 'hu sh' x") == "password = *** x"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hu@sh@host/shop",
        "postgresql://me:hu/sh@host/shop",
        "postgresql://me:hu%sh@host/shop",
        "postgresql://me:hush",
        "postgresql://me:hush/shop",
        "postgresql://me@host:hush/shop",
        "hush",
        "hush://",
        "://hush",
        "host=h password=hush",
        "",
    ],
)
def test_a_url_that_cannot_be_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        connect(url)
    assert "hu" not in str(raised.value).replace("hush:// is not supported", "")
    assert "sh" not in str(raised.value).replace("hush:// is not supported", "").replace("shop", "")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host/shop",
        "postgres://me:p%40ss@host:5432/shop?sslmode=require",
        "postgresql+psycopg2://host/shop",
        "postgresql://one:1,two:2/shop",
        "postgresql://[::1]:5432/shop",
        "postgresql:///shop?host=/var/run",
        "postgresql://?dbname=shop",
        "postgresql://host/other?dbname=shop",
        "postgresql://host/sh%6Fp",
    ],
)
def test_postgresql_urls_of_every_shape_are_taken(url: str) -> None:
    source = connect(url)
    assert isinstance(source, PostgresSource)
    assert source.engine == "postgresql"
    assert source.database == "shop"


@pytest.mark.parametrize("scheme", ["nosql", "s3", "postgresql+nothing"])
def test_a_scheme_that_is_not_supported_names_those_that_are(scheme: str) -> None:
    with pytest.raises(ConfigError, match=r"postgresql://, mysql://, mariadb://, sqlite:/// and duckdb:///"):
        connect(f"{scheme}://me:hush@host/shop")


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "duckdb:///", "duckdb://x", "duckdb:///:memory:"]
)
def test_a_file_database_needs_a_file(url: str) -> None:
    from rivet_dagster.rows import Query

    with pytest.raises(ConfigError, match="file was expected"):
        connect(url).open(Query(sql="SELECT 1 AS x", casts={}))


@pytest.mark.parametrize("bounds", [{"batch_rows": 0}, {"batch_bytes": 0}])
def test_a_batch_has_room_for_a_row(bounds: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        connect("postgresql://host/shop", **bounds)
