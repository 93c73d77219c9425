"""What all sources share before the first row: naming the relation, its columns and their schema."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Query, ResultColumn
from rivet_dagster.sources.url import DatabaseUrl

__all__ = [
    "casts_of",
    "check_columns",
    "decimal_type",
    "existing_file",
    "positions",
    "query_text",
    "quoted",
    "schema_of",
    "selected",
    "split_name",
    "table_text",
    "what_is_read",
]

_DECIMAL128_DIGITS, _DECIMAL256_DIGITS = 38, 76
_NAME_PART = re.compile(r'"(?:[^"]|"")+"|[^\W\d][\w$]*')
_ALL_OF = "SELECT * FROM "
_TYPE_NAME = re.compile(r"[A-Za-z_][\w .]*(\(\s*\d+\s*(,\s*-?\d+\s*)?\))?[\w ]*(\[\])*")


def quoted(name: str) -> str:
    """A name as a standard SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def what_is_read(query: Query) -> str:
    """How messages name the query, and its casts, since a database does not say which of them failed.

    SQL text is not repeated: it may hold values that are nobody's business.
    """
    what = f"table {query.table}" if query.table is not None else "query"
    casts = ", ".join(f"{name!r} cast to {kind}" for name, kind in query.casts.items())
    return f"{what} with {casts}" if casts else what


def split_name(table: str, *, most: int, fold: bool) -> tuple[str, ...]:
    """The parts of a dotted table name, unquoted.

    Args:
        table: as the user wrote it; parts with other characters than letters, digits, `_` and `$` are in double quotes.
        most: how many parts the database knows.
        fold: parts without quotes are lower-cased, as PostgreSQL does.

    Raises:
        ConfigError: it is no such name.
    """
    parts: list[str] = []
    rest = table.strip()
    while match := _NAME_PART.match(rest):
        part = match.group()
        if part.startswith('"'):
            parts.append(part[1:-1].replace('""', '"'))
        else:
            # Only ASCII, as PostgreSQL folds in UTF-8 databases.
            parts.append(re.sub(r"[A-Z]+", lambda upper: upper.group().lower(), part) if fold else part)
        rest = rest[match.end() :]
        if not rest:
            break
        if not rest.startswith("."):
            parts.clear()
            break
        # A dot at the end leaves nothing, which is no name.
        rest = rest[1:] or "."
    if rest or not 1 <= len(parts) <= most:
        raise ConfigError(
            f"table {table!r}: one to {most} dotted names were expected; put names with other characters than "
            'letters, digits and _ in double quotes, like "my schema"."My-Table"'
        )
    return tuple(parts)


def query_text(query: Query, *, most: int, fold: bool) -> str:
    """The select statement of a query, without a semicolon at its end.

    Raises:
        ConfigError: not exactly one of `table` and `sql` is given, or a name in it cannot be.
    """
    if (query.table is None) == (query.sql is None):
        raise ConfigError("exactly one of `table` and `query` must be given")
    for column, type_name in query.casts.items():
        if not _TYPE_NAME.fullmatch(type_name.strip()):
            raise ConfigError(f"column {column!r}: cast to {type_name!r}: the name of a type was expected")
    if query.table is not None:
        return _ALL_OF + ".".join(map(quoted, split_name(query.table, most=most, fold=fold)))
    text = re.sub(r"[\s;]+$", "", query.sql or "").strip()
    if not text:
        raise ConfigError("the query is empty: one select statement was expected")
    return text


def table_text(query: Query, *, most: int, fold: bool) -> str:
    """The quoted name of a query's table, as its select statement has it; `query_text` says what it raises."""
    return query_text(query, most=most, fold=fold).removeprefix(_ALL_OF)


def positions(width: int) -> list[str]:
    """How `selected` names the columns of its query: by position, so that no name can be misread."""
    return [f"c{position}" for position in range(1, width + 1)]


def selected(expressions: Iterable[str], text: str, width: int) -> str:
    """SQL for expressions over the `positions` of a query that has `width` columns; its order of rows stays."""
    # On lines of its own, so that a comment at the end of the query does not swallow the parenthesis.
    return f"SELECT {', '.join(expressions)} FROM (\n{text}\n) AS q({', '.join(positions(width))})"


def casts_of(names: Sequence[str], casts: Mapping[str, str]) -> list[str]:
    """Expressions for `selected`: every column under its own name, cast where `casts` says so."""
    return [
        f"CAST({column} AS {casts[name]}) AS {quoted(name)}" if name in casts else f"{column} AS {quoted(name)}"
        for name, column in zip(names, positions(len(names)), strict=True)
    ]


def check_columns(names: Sequence[str], query: Query) -> None:
    """Refuse a result that could lose a column, and casts of columns that are not there.

    Names that differ in case only are different names.

    Raises:
        ConfigError: names what is wrong and the remedy.
    """
    what = what_is_read(query)
    if not names:
        raise ConfigError(f"{what}: the result has no columns")
    twice = [f"{name!r} ({times} times)" for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ConfigError(f"{what}: column names must be unique, found {', '.join(twice)}; give each its own with AS")
    if "" in names:
        raise ConfigError(f"{what}: column {names.index('') + 1} has no name; give it one with AS")
    unknown = [name for name in sorted({*query.casts, *query.coerce}) if name not in names]
    if unknown:
        raise ConfigError(f"{what}: no column {_listed(unknown)} to cast; the columns are {_listed(names)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def schema_of(columns: Iterable[ResultColumn]) -> pa.Schema:
    """The Arrow schema of every batch that has these columns."""
    return pa.schema([pa.field(c.name, c.arrow_type, nullable=c.nullable) for c in columns])


def decimal_type(precision: int, scale: int) -> pa.DataType | None:
    """The Arrow type for a SQL decimal of 1 to 76 digits and a scale within them; `None` where there is none."""
    if not 1 <= precision <= _DECIMAL256_DIGITS or not 0 <= scale <= precision:
        return None
    return pa.decimal128(precision, scale) if precision <= _DECIMAL128_DIGITS else pa.decimal256(precision, scale)


def existing_file(url: DatabaseUrl) -> Path:
    """The file that a `scheme:///path` URL names.

    Raises:
        ConfigError: it names no file.
        SourceError: the file is not there: it is never created.
    """
    path = Path(url.rest[1:])
    if not url.rest.startswith("/") or url.rest in {"/", "/:memory:"}:
        raise ConfigError(
            f"{url.scheme} URL: a file was expected, like {url.scheme}:///relative/file or {url.scheme}:////absolute/file"
        )
    if not path.is_file():
        raise SourceError(
            f"{url.scheme} database {path.name!r}: there is no such file (it is never created); check the path"
        )
    return path
