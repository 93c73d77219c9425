"""What each gate expects of rows, as the types of their columns have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.distinct import is_hashable
from rivet_dagster.exports.quality import Quality
from rivet_dagster.exports.typed import typed_bound, typed_set, without_sign_of_zero
from rivet_dagster.exports.verdict import Example, Finding

__all__ = ["ColumnGate", "check_unique", "column_gates", "count_findings"]

# Characters of a list of values.
_LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnGate:
    """A gate that says of each row, by one column alone, whether it is as it should be.

    Attributes:
        gate: its name.
        column: that it judges.
        expected: of the values, for a person.
        otherwise: what is said of rows that are not so.
        bad: true where a value is not so, and there alone.
        ratio: of the rows that may be so all the same.
    """

    gate: str
    column: str
    expected: str
    otherwise: str
    bad: Callable[[pa.Array], pa.BooleanArray]
    ratio: Decimal = Decimal(0)

    def finding(self, bad: int, rows: int, examples: Sequence[Example]) -> Finding:
        """Judge what was counted."""
        # Exact: 0.29 of 100 rows are 29, which floating point does not know.
        passed = bad <= self.ratio * rows
        return Finding(
            gate=self.gate,
            column=self.column,
            expected=self.expected,
            found=f"{bad:,} of {rows:,} rows {self.otherwise}",
            passed=passed,
            rows=0 if passed else bad,
            examples=() if passed else tuple(examples),
        )


def column_gates(quality: Quality, schema: pa.Schema, *, subject: str) -> Iterator[ColumnGate]:
    """Understand gates as the columns' types have it.

    Raises:
        ConfigError: a column is not there, or a value is none of its type; names the field.
    """

    def fields(name: str) -> Iterator[tuple[str, Any, pa.DataType, str]]:
        for column, said in getattr(quality, name).items():
            what = f"{subject}: quality.{name}.{column}"
            yield column, said, _type_of(column, schema, what), what

    for column, ratio, _, _ in fields("null_ratio_max"):
        yield ColumnGate(
            gate="null_ratio_max",
            column=column,
            expected=f"at most {ratio:g} of the rows NULL",
            otherwise="NULL",
            bad=pc.is_null,
            ratio=Decimal(repr(ratio)),
        )
    for column, values, kind, what in fields("accepted_values"):
        listed = ", ".join(map(repr, values))
        yield ColumnGate(
            gate="accepted_values",
            column=column,
            expected=f"one of {listed if len(listed) <= _LONGEST else f'{listed[:_LONGEST]}…'}",
            otherwise="with another value",
            bad=_is_another(typed_set(values, kind, what=what)),
        )
    bounds: dict[str, dict[str, pa.Scalar]] = {"min": {}, "max": {}}
    for name, compare, least in (("min", pc.greater_equal, "least"), ("max", pc.less_equal, "most")):
        for column, value, kind, what in fields(name):
            bound = bounds[name][column] = typed_bound(value, kind, what=what)
            yield ColumnGate(
                gate=name,
                column=column,
                expected=f"at {least} {value}",
                otherwise="beyond",
                bad=_is_beyond(compare, bound),
            )
    for column in bounds["min"].keys() & bounds["max"].keys():
        if pc.greater(bounds["min"][column], bounds["max"][column]).as_py():
            low, high = quality.min[column], quality.max[column]
            msg = f"{subject}: quality.min.{column}: expected no more than quality.max.{column}, {high}, found {low}"
            raise ConfigError(f"{msg}; exchange them")


def check_unique(quality: Quality, schema: pa.Schema, *, subject: str) -> None:
    """Refuse keys that cannot be compared.

    Raises:
        ConfigError: a column is not there, or its values are no single ones.
    """
    for column in (c for names in quality.keys for c in names):
        what = f"{subject}: quality.unique: {column!r}"
        kind = _type_of(column, schema, what)
        if not is_hashable(kind):
            raise ConfigError(f"{what}: expected a column of single values, found {kind}; cast it, or leave it out")


def count_findings(quality: Quality, rows: int) -> Iterator[Finding]:
    """Judge how many rows there are."""
    least, most = quality.row_count_min, quality.row_count_max
    if least is not None:
        yield Finding(
            gate="row_count_min", expected=f"at least {_rows(least)}", found=f"{rows:,}", passed=rows >= least
        )
    if most is not None:
        yield Finding(gate="row_count_max", expected=f"at most {_rows(most)}", found=f"{rows:,}", passed=rows <= most)


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _type_of(column: str, schema: pa.Schema, what: str) -> pa.DataType:
    if column not in schema.names:
        raise ConfigError(
            f"{what}: expected a column of the export ({', '.join(schema.names)}), found none; correct it"
        )
    return schema.field(column).type


def _is_another(accepted: pa.Array) -> Callable[[pa.Array], pa.BooleanArray]:
    return lambda array: pc.and_(
        pc.invert(pc.is_in(without_sign_of_zero(array), value_set=accepted)), pc.is_valid(array)
    )


def _is_beyond(compare: Callable[[pa.Array, pa.Scalar], pa.BooleanArray], bound: pa.Scalar) -> Callable[..., Any]:
    # What cannot be compared is no better: of NaN it is not true. NULL stays NULL, which is not true either.
    return lambda array: pc.invert(compare(array, bound))
