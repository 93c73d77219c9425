"""The three tables, made by the server alone, and what a faithful copy of each column has to say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# Words without sense, so that texts compress about as texts do.
_WORDS = "(select string_agg(substr(md5(w::text), 1, 2 + w % 8), ' ') from generate_series(1, 4000) w)"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        kind: int, numeric, exact (a numeric without limits), instant, text, bool, date, double, json, uuid or list.
        made: SQL over the row number `n` and the pool of words `w`.
    """

    name: str
    type: str
    kind: str
    made: str


@dataclass(frozen=True, slots=True)
class Fixture:
    """One table with the primary key `id`.

    Attributes:
        range_rows: how many rows those who read in ranges read at a time.
        row_bytes: about how much a row is once it is read, for those who count bytes.
    """

    name: str
    rows: int
    range_rows: int
    row_bytes: int
    columns: tuple[Column, ...]

    def statements(self, rows: int) -> Iterator[str]:
        """What makes it, in one session."""
        made = ", ".join(f"({c.made})::{c.type} as {c.name}" for c in self.columns)
        yield "select setseed(0.25)"
        yield f"create unlogged table {self.name} as select {made} from {_WORDS} as t(w), generate_series(1, {rows}) n"
        yield f"alter table {self.name} add primary key (id)"
        yield f"vacuum (freeze, analyze) {self.name}"


def _text(shortest: int, longest: int) -> str:
    part = f"substr(w, 1 + (random() * 15000)::int, {shortest - 32} + (random() ^ 3 * {longest - shortest})::int)"
    return f"{part} || md5(n::text)"


def _often(made: str) -> str:
    """NULL in three of ten rows."""
    return f"case when random() >= 0.3 then {made} end"


_ID = Column("id", "bigint", "int", "n")
_CREATED = Column("created_at", "timestamptz", "instant", "'2026-01-01'::timestamptz - random() * interval '900 days'")
_UPDATED = Column("updated_at", "timestamptz", "instant", "'2026-01-01'::timestamptz - random() * interval '90 days'")
_AMOUNT = Column("amount", "numeric(12,2)", "numeric", "random() * 1e6")
_STATUS = Column("status", "text", "text", "(array['new','paid','sent','back'])[1 + n % 4]")

FIXTURES = {
    fixture.name: fixture
    for fixture in (
        Fixture(
            "narrow",
            10_000_000,
            250_000,
            51,
            (_ID, Column("user_id", "int", "int", "random() * 1e6"), _AMOUNT, _CREATED, _UPDATED, _STATUS),
        ),
        Fixture(
            "wide",
            1_000_000,
            50_000,
            766,
            (
                _ID,
                Column("ext_id", "uuid", "uuid", "md5(n::text)"),
                Column("user_id", "int", "int", "random() * 1e6"),
                Column("name", "text", "text", _text(40, 60)),
                Column("email", "text", "text", _often("substr(md5(n::text), 1, 12) || '@example.org'")),
                Column("country", "text", "text", "(array['de','fr','nl','pl','it','es'])[1 + (random() * 5)::int]"),
                Column("title", "text", "text", _often(_text(60, 120))),
                Column("body", "text", "text", _text(200, 1000)),
                _AMOUNT,
                # More digits than a double has, and no more than rivet can be told of.
                Column(
                    "rate", "numeric", "exact", "round((1 + random() * 999)::numeric + (random() / 1e9)::numeric, 18)"
                ),
                Column("score", "float8", "double", "1 + random()"),
                Column("ratio", "float8", "double", _often("1 + random() * 1e4")),
                Column("active", "bool", "bool", "random() < 0.5"),
                Column("born", "date", "date", _often("date '2000-01-01' - (random() * 20000)::int")),
                _CREATED,
                _UPDATED,
                _STATUS,
                Column("tags", "text[]", "list", "array['t' || n % 97, 'u' || n % 89]"),
                Column("counts", "int[]", "list", "array[n % 1000, n % 777, n % 555]"),
                Column("payload", "jsonb", "json", "jsonb_build_object('n', n, 'k', md5(n::text), 'b', n % 2 = 0)"),
            ),
        ),
        Fixture(
            "skewed",
            5_000_000,
            100_000,
            129,
            (
                # Odd, so that each number below 2³² comes once, in no order.
                Column("id", "bigint", "int", "n::bigint * 2654435761 % 4294967296"),
                Column("account_id", "int", "int", "1e6 * random() ^ 8"),
                Column("amount", "numeric(18,4)", "numeric", _often("random() ^ 12 * 1e12")),
                Column("created_at", "timestamptz", "instant", _often(_CREATED.made)),
                Column("status", "text", "text", _often("'s' || (20 * random() ^ 5)::int")),
                Column("note", "text", "text", _often(_text(40, 300))),
                Column("long", "text", "text", f"case when n % 500 = 0 then repeat({_text(400, 4000)}, 3) end"),
            ),
        ),
    )
}
