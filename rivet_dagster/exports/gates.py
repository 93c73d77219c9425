"""What each gate expects of rows, and what it found in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.distinct import is_hashable
from rivet_dagster.exports.quality import Quality
from rivet_dagster.exports.typed import typed_bound, typed_set, without_sign_of_zero

__all__ = ["ColumnGate", "Example", "Finding", "Verdict", "check_unique", "column_gates", "count_findings"]

Example = Mapping[str, Any]
# Examples in an error's message, and characters of a list of values.
_TOLD, _LONGEST = 3, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one gate found.

    Attributes:
        gate: its name.
        column: that it judges, or several; "" where it judges how many rows there are.
        expected: what the rows have to be like.
        found: what they are like.
        passed: whether that will do.
        rows: how many rows are not as they should be, where that can be said of single ones.
        examples: some of them: their keys where the catalog knows one, and the values in question.
    """

    gate: str
    column: str = ""
    expected: str
    found: str
    passed: bool
    rows: int = 0
    examples: tuple[Example, ...] = ()

    def __str__(self) -> str:
        """As a message has it."""
        name = f"{self.gate} of {self.column}" if self.column else self.gate
        told = "; ".join(", ".join(f"{k}={v!r}" for k, v in one.items()) for one in self.examples[:_TOLD])
        return f"{name}: expected {self.expected}, found {self.found}" + (f" ({told})" if told else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What all gates found in the rows of one run.

    Attributes:
        rows: how many there were.
        findings: one for each gate; of rows that were not read to their end, only the one that had to refuse them.
    """

    rows: int
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """What keeps the rows from being published."""
        return tuple(f for f in self.findings if not f.passed)


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
    for column in (c for names in quality.unique for c in names):
        what = f"{subject}: quality.unique: {column!r}"
        kind = _type_of(column, schema, what)
        if not is_hashable(kind):
            raise ConfigError(f"{what}: expected a column of single values, found {kind}; cast it, or leave it out")


def count_findings(quality: Quality, rows: int) -> Iterator[Finding]:
    """Judge how many rows there are."""
    least, most = quality.row_count_min, quality.row_count_max
    if least is not None:
        yield Finding(
            gate="row_count_min", expected=f"at least {least:,} rows", found=f"{rows:,}", passed=rows >= least
        )
    if most is not None:
        yield Finding(gate="row_count_max", expected=f"at most {most:,} rows", found=f"{rows:,}", passed=rows <= most)


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
