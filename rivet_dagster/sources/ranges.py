"""What all sources share about keys and ranges: which columns a catalog vouches for, and the predicate of a range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rivet_dagster.errors import ConfigError
from rivet_dagster.rows import Key, KeyRange, Query, ResultStream
from rivet_dagster.sources.description import what_is_read

__all__ = [
    "KeyColumn",
    "Relation",
    "UniqueIndex",
    "check_rows",
    "checked_key",
    "compared_as_rows",
    "compared_column_by_column",
    "divided",
    "no_catalog",
    "sampled_row_bytes",
    "usable_keys",
    "values_of",
    "wrong_value",
]

_SAMPLE_ROWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumn:
    """A column as the catalog describes it.

    Attributes:
        type_name: the database's name of the type that decides how values are compared and written.
        nullable: whether the catalog allows NULL.
        obstacle: why values of it cannot bound a range exactly; `None` where they can.
    """

    name: str
    type_name: str
    nullable: bool
    obstacle: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueIndex:
    """A unique index or constraint.

    Attributes:
        name: as messages give it.
        columns: in its order; of an expression, `None`.
        obstacle: why it does not make every row's values unique, or cannot be walked in order; `None` where it does.
    """

    name: str
    columns: tuple[str | None, ...]
    obstacle: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """What a catalog says about the table of a query.

    Attributes:
        columns: by name.
        indexes: the unique ones, the primary key first.
        obstacle: why nothing of it can be a key, e.g. that it is a view.
    """

    columns: Mapping[str, KeyColumn]
    indexes: tuple[UniqueIndex, ...]
    obstacle: str | None = None

    def is_unique(self, column: str) -> bool:
        """Whether a unique index over a column alone makes each of its values the only one; NULL aside."""
        return self.obstacle is None and any(i.columns == (column,) and i.obstacle is None for i in self.indexes)


def no_catalog(query: Query) -> ConfigError:
    """The refusal of a query that is no table."""
    return ConfigError(
        f"{what_is_read(query)}: it cannot be read in ranges: only a table's catalog can vouch for a key; give `table` "
        "instead of `query`"
    )


def usable_keys(relation: Relation) -> tuple[Key, ...]:
    """The keys that the catalog vouches for, the primary key first, each once."""
    if relation.obstacle is not None:
        return ()
    found = [index.columns for index in relation.indexes if index.obstacle is None]
    named = [tuple(name for name in columns if name is not None) for columns in found]
    return tuple(
        Key(columns=columns)
        for columns in dict.fromkeys(named)
        if all(_obstacle(relation, name) is None for name in columns)
    )


def checked_key(relation: Relation, columns: Sequence[str], query: Query) -> Key:
    """The key of these columns.

    Raises:
        ConfigError: it cannot be used; says why, and which keys there are.
    """
    wanted = tuple(columns)
    keys = usable_keys(relation)
    if wanted in {key.columns for key in keys}:
        return Key(columns=wanted)
    known = f"its keys are {_listed(key.columns for key in keys)}" if keys else "it has no key that can be used"
    raise ConfigError(f"{what_is_read(query)}: {_parts(wanted)} is no key of it: {_reason(relation, wanted)}; {known}")


def _reason(relation: Relation, wanted: tuple[str, ...]) -> str:
    if relation.obstacle is not None:
        return relation.obstacle
    if not wanted or len(set(wanted)) != len(wanted):
        return "a key is one or more columns, each once"
    unknown = [name for name in wanted if name not in relation.columns]
    if unknown:
        return f"there is no column {', '.join(map(repr, unknown))}; the columns are {_parts(tuple(relation.columns))}"
    obstacles = [_obstacle(relation, name) for name in wanted]
    obstacles += [f"{it.name} {it.obstacle}" for it in relation.indexes if it.columns == wanted and it.obstacle]
    obstacles += [
        f"{it.name} has these columns in another order"
        for it in relation.indexes
        if it.obstacle is None and set(it.columns) == set(wanted)
    ]
    obstacles.append("nothing makes these columns, no fewer and no more, unique: create a unique index over them")
    return next(filter(None, obstacles))


def _obstacle(relation: Relation, name: str) -> str | None:
    column = relation.columns[name]
    if column.nullable:
        return f"column {name!r} may be NULL, and such a row would be in no range: declare it NOT NULL"
    if column.obstacle is not None:
        return f"column {name!r} is {column.type_name}: {column.obstacle}"
    return None


def _parts(columns: Sequence[str]) -> str:
    return f"({', '.join(columns)})"


def _listed(keys: Iterable[Sequence[str]]) -> str:
    return ", ".join(map(_parts, keys))


def check_rows(rows: int) -> None:
    """Refuse a range of no rows.

    Raises:
        ConfigError: it is less than one.
    """
    if rows < 1:
        raise ConfigError(f"a range has at least one row, found rows={rows}")


def divided(query: Query, key: Key) -> KeyRange:
    """What the boundaries of a query divide: the range that it is within, or all.

    Raises:
        ConfigError: that range is of another key.
    """
    if query.within is None:
        return KeyRange(key=key, low=None, high=None)
    if query.within.key != key:
        found = _parts(query.within.key.columns)
        raise ConfigError(f"{what_is_read(query)}: boundaries of {_parts(key.columns)} inside of a range of {found}")
    return query.within


def values_of(within: KeyRange, bound: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of one end of a range, as many as its key has columns.

    Raises:
        ConfigError: there are more or fewer.
    """
    if len(bound) != len(within.key.columns):
        raise ConfigError(f"key {_parts(within.key.columns)}: one value per column was expected, found {len(bound)}")
    return bound


def wrong_value(column: KeyColumn, value: object, expected: str) -> ConfigError:
    """The refusal of a value that is not of its column's kind. The value itself is not repeated."""
    found = type(value).__name__
    return ConfigError(f"key column {column.name!r} ({column.type_name}): expected {expected}, found {found}")


def compared_as_rows(columns: Sequence[str], operator: str, values: Sequence[str]) -> str:
    """SQL that compares a key with one value per column, for databases that compare rows."""
    if len(columns) == 1:
        return f"{columns[0]} {operator} {values[0]}"
    return f"({', '.join(columns)}) {operator} ({', '.join(values)})"


def compared_column_by_column(columns: Sequence[str], operator: str, values: Sequence[str]) -> str:
    """The same as `compared_as_rows` for `>=` and `<`, without comparing rows."""
    strictly = operator[0]
    column, value = columns[0], values[0]
    if len(columns) == 1:
        return f"{column} {operator} {value}"
    rest = compared_column_by_column(columns[1:], operator, values[1:])
    # The first half says nothing new: it lets storage be skipped by its least and greatest value.
    return f"({column} {strictly}= {value} AND ({column} {strictly} {value} OR ({column} = {value} AND {rest})))"


def sampled_row_bytes(stream: ResultStream) -> int | None:
    """About how many bytes a row has, from the first rows of a stream, which is closed; `None` where it has none."""
    rows = size = 0
    try:
        for batch in stream:
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= _SAMPLE_ROWS:
                break
    finally:
        stream.close()
    return max(1, size // rows) if rows else None
