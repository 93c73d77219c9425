"""Ranges that a dead run has exported already: which of them this one need not read. Pure: goes by records alone."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import date, datetime, time
from decimal import Decimal
from itertools import pairwise
from typing import Any

from rivet_dagster.attempt import Reusable
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.exports.spec import Export
from rivet_dagster.manifest import Content, Manifest, Part, fingerprint
from rivet_dagster.rows import Key, KeyRange, Snapshot, SplittableSource

__all__ = ["Resume", "obstacle", "recorded", "resume_terms"]

# The types of key values that come back from JSON as they were, and how.
_EXACT: Mapping[str, tuple[type, Callable[[Any], Any]]] = {
    "int": (int, lambda plain: plain),
    "str": (str, lambda plain: plain),
    "decimal": (Decimal, Decimal),
    "datetime": (datetime, datetime.fromisoformat),
    "date": (date, date.fromisoformat),
}


def recorded(within: KeyRange) -> dict[str, Any]:
    """A range as the manifest holds it: whole numbers and floats as such, anything else as ISO or plain text.

    `types` says what the values were, where they can be had back exactly.
    """
    low, high = (None if bound is None else [_plain(v) for v in bound] for bound in (within.low, within.high))
    said = {"columns": list(within.key.columns), "low": low, "high": high}
    types = [_types(bound) for bound in (within.low, within.high) if bound is not None]
    if types and None not in types[0] and types[0] == types[-1]:
        said["types"] = types[0]
    return said


def obstacle(export: Export, snapshot: Snapshot) -> str | None:
    """Why no later run can re-use parts of this one, nor this one those of another; `None` where it can."""
    if snapshot.consistency == "snapshot":
        return "the snapshot that it read has ended (consistency='snapshot')"
    if export.source_query.coerce:
        return "it did not record how many of its values became NULL (errors='coerce')"
    if export.quality is not None:
        return "its gates judge all rows of one run"
    return None


def resume_terms(export: Export, key: Key, *, source: SplittableSource, output: OutputSettings) -> dict[str, Any]:
    """What must be equal for a later run to re-use parts, besides all else that `Content` says."""
    settings = [output.format.model_dump_json(), export.model_dump_json(include={"columns"})]
    return {"key": list(key.columns), "settings": fingerprint("\n".join(settings).encode()), "origin": source.origin}


class Resume:
    """What one extraction in ranges leaves out."""

    def __init__(self, content: Content, key: Key, *, because: str | None = None) -> None:
        """Leave nothing out yet.

        Args:
            content: of this run's delivery, with its terms.
            key: that its rows are divided by.
            because: why nothing can be left out at all.
        """
        self.content, self._key, self._because = content, key, because
        self.left_out: tuple[KeyRange, ...] = ()

    def reusable(self, dead: Manifest) -> Reusable:
        """The whole ranges of a dead run, where its rows are those that this one would read, however old."""
        if self._because is not None:
            return Reusable(because=self._because)
        theirs, names = dead.content, [f.name for f in fields(Content)]
        if theirs != self.content:
            differ = [name for name in names if getattr(theirs, name, None) != getattr(self.content, name)]
            return Reusable(because=f"it exported something else, or in another way: {', '.join(differ)}")
        try:
            return Reusable(ranges=self._whole_ranges(dead.parts))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
            return Reusable(because=f"its record does not say exactly which rows its parts hold: {e}")

    def leave_out(self, ranges: Sequence[Sequence[Part]]) -> tuple[Part, ...]:
        """Read all but these; their parts have the odd places, between those of the ranges that are read."""
        self.left_out = tuple(self._range(parts) for parts in ranges)
        return tuple(
            replace(part, resume={**(part.resume or {}), "order": [2 * place + 1, 0, number]})
            for place, parts in enumerate(ranges)
            for number, part in enumerate(parts)
        )

    def _whole_ranges(self, parts: Iterable[Part]) -> tuple[tuple[Part, ...], ...]:
        by_place: dict[tuple[int, ...], dict[int, Part]] = {}
        for part in parts:
            if part.resume is None:
                raise ValueError(f"{part.path} has no place")
            *place, number = part.resume["order"]
            if by_place.setdefault(tuple(place), {}).setdefault(number, part) is not part:
                raise ValueError(f"two parts are at {place}, {number}")
        in_order = [[some[number] for number in sorted(some)] for _, some in sorted(by_place.items())]
        self._check([(place, self._range(some)) for place, some in zip(sorted(by_place), in_order, strict=True)])
        return tuple(tuple(some) for some in in_order if _is_whole(some))

    def _range(self, parts: Sequence[Part]) -> KeyRange:
        said = parts[0].key_range or {}
        if any(part.key_range != said for part in parts) or tuple(said["columns"]) != self._key.columns:
            raise ValueError(f"{parts[0].path} is of another key, or its range is not that of the next part")
        low, high = (self._bound(said, end) for end in ("low", "high"))
        return KeyRange(key=self._key, low=low, high=high)

    def _bound(self, said: Mapping[str, Any], end: str) -> tuple[Any, ...] | None:
        if said[end] is None:
            return None
        columns = self._key.columns
        pairs = zip(columns, said["types"], said[end], strict=True)
        values = tuple(_EXACT[kind][1](plain) for _, kind, plain in pairs)
        if _types(values) != said["types"]:
            raise ValueError(f"{end} of a range is {said[end]}, expected {said['types']}")
        return values

    def _check(self, ranges: Sequence[tuple[tuple[int, ...], KeyRange]]) -> None:
        """Refuse ranges that overlap, or are not in order, as far as that can be told without the database."""
        for _, one in ranges:
            if _descends(one.low, one.high):
                raise ValueError(f"a range from {one.low} to {one.high}")
        for (place, one), (next_place, other) in pairwise(ranges):
            follows = place[:-1] == next_place[:-1] and place[-1] + 1 == next_place[-1]
            if one.high is None or other.low is None or (follows and one.high != other.low):
                raise ValueError(f"a range to {one.high} before one from {other.low}")
            if one.high != other.low and _descends(one.high, other.low):
                raise ValueError(f"a range to {one.high} before one from {other.low}")


def _is_whole(parts: Sequence[Part]) -> bool:
    said = [part.resume or {} for part in parts]
    return [s["order"][-1] for s in said] == list(range(len(said))) and said[-1]["last"] is True


def _descends(low: tuple[Any, ...] | None, high: tuple[Any, ...] | None) -> bool:
    """Whether a key is certainly not before another. The order of texts is the database's: of them it is not known."""
    if low is None or high is None:
        return False
    for one, other in zip(low, high, strict=True):
        if one != other:
            return not isinstance(one, str) and bool(one > other)
    return True


def _types(values: Iterable[Any]) -> list[str | None]:
    return [_type(value) for value in values]


def _type(value: Any) -> str | None:
    for name, (kind, back) in _EXACT.items():
        if isinstance(value, kind) and not isinstance(value, bool):
            # An infinite number comes back too, but bounds no range.
            exact = back(_plain(value)) == value and not (isinstance(value, Decimal) and value.is_infinite())
            return name if exact else None
    return None


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, date | time):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else str(value)
