"""Which keys have come before: 128 bits of each, in sorted arrays, and taken back where a reading begins anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
import xxhash

from rivet_dagster.exports.buffers import offsets_of, valid_of, values_of

__all__ = ["KEY_BYTES", "Keys", "hashes_of", "is_hashable"]

KEY_BYTES = 32
"""What a key takes: 16 bytes, and as many while it is merged with others."""

_Words = npt.NDArray[np.uint64]
Hashes = tuple[_Words, _Words]
_Run = list[_Words]
"""Two halves of sorted keys; once they are merged with others they are let go, though somebody may hold the list."""

# Longer texts are digested one by one, instead of word by word for all rows at once.
_LONG = 256
_WORD = 8
_SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
# The finalizers of MurmurHash3 and SplitMix64: each maps 64 bits to 64 bits without losing any.
_ROUNDS = (
    (33, 0xFF51AFD7ED558CCD, 33, 0xC4CEB9FE1A85EC53, 33),
    (30, 0xBF58476D1CE4E5B9, 27, 0x94D049BB133111EB, 31),
)


class Keys:
    """The keys of one gate. Not for several threads at a time."""

    def __init__(self) -> None:
        self._open: defaultdict[object, list[_Run]] = defaultdict(list)
        self._settled: list[_Run] = []

    def add(self, reading: object, keys: Hashes, *, look: bool) -> npt.NDArray[np.bool_]:
        """Keep the keys of a batch.

        Args:
            reading: that they are of.
            keys: of each row.
            look: whether to find out which have come before.

        Returns:
            Which have come before, in this batch or an earlier one; none unless `look`.
        """
        order = np.argsort(keys[0], kind="stable")
        ordered = [keys[0][order], keys[1][order]]
        before = np.zeros(len(order), np.bool_)
        if look:
            before[order] = self._seen(ordered)
        _put(self._open[reading], ordered)
        return before

    def forget(self, reading: object) -> int:
        """Take the keys of a reading back, and say how many there were."""
        return sum(len(run[0]) for run in self._open.pop(reading, []))

    def settle(self, reading: object) -> None:
        """Keep the keys of a reading for good."""
        for run in self._open.pop(reading, []):
            _put(self._settled, run)

    def repeated(self) -> int:
        """How many settled keys have come before."""
        self._merge()
        return sum(_repeats(run) for run in self._settled)

    def is_repeated(self, key: tuple[int, int]) -> bool:
        """Whether a settled key is there twice."""
        return sum(_count(run, key) for run in self._settled) > 1

    def _merge(self) -> None:
        while len(self._settled) > 1:
            one, other = self._settled.pop(), self._settled.pop()
            self._settled.append(_merged(one, other))

    def _seen(self, keys: _Run) -> npt.NDArray[np.bool_]:
        first, second = keys
        seen = np.zeros(len(first), np.bool_)
        seen[1:] = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
        for run in (*self._settled, *(r for runs in self._open.values() for r in runs)):
            at = np.searchsorted(run[0], first)
            within = np.minimum(at, len(run[0]) - 1)
            # Two keys with one first half are found with the help of the second where they are next to each other.
            seen |= (run[0][within] == first) & (run[1][within] == second)
        return seen


def hashes_of(columns: Sequence[pa.Array]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Digest the keys of rows, and say which rows have one: those without NULL."""
    valid = np.ones(len(columns[0]), np.bool_)
    halves = [np.full(len(columns[0]), seed, np.uint64) for seed in _SEEDS]
    for column in columns:
        array = column.storage if isinstance(column, pa.ExtensionArray) else column
        valid &= valid_of(array)
        if _is_bytes(array.type):
            _mix_bytes(halves, array)
        else:
            for words in _words_of(array):
                _mix(halves, words)
    rows = np.flatnonzero(valid)
    first, second = halves if len(rows) == len(valid) else [half[rows] for half in halves]
    return (first, second), rows


def is_hashable(kind: pa.DataType) -> bool:
    """Whether keys can have values of a type."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return _is_bytes(kind) or pt.is_boolean(kind) or pt.is_decimal(kind) or _integer_of(kind) or pt.is_floating(kind)


def _put(runs: list[_Run], run: _Run) -> None:
    """Runs get shorter from one to the next, by half at least: each key is merged a few times only."""
    while runs and len(runs[-1][0]) < 2 * len(run[0]):
        run = _merged(runs.pop(), run)
    if len(run[0]):
        runs.append(run)


def _merged(one: _Run, other: _Run) -> _Run:
    more, less = (one, other) if len(one[0]) >= len(other[0]) else (other, one)
    at = np.searchsorted(more[0], less[0], side="right")
    at += np.arange(len(at))
    rest = np.ones(len(more[0]) + len(at), np.bool_)
    rest[at] = False
    merged = []
    for half in range(2):
        merged.append(np.empty(len(rest), np.uint64))
        merged[half][at], merged[half][rest] = less[half], more[half]
        less[half] = more[half] = merged[half][:0].copy()
    return merged


def _repeats(run: _Run) -> int:
    tied = np.zeros(len(run[0]), np.bool_)
    same = run[0][1:] == run[0][:-1]
    tied[1:] |= same
    tied[:-1] |= same
    first, second = run[0][tied], run[1][tied]
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    return int(np.count_nonzero((first[1:] == first[:-1]) & (second[1:] == second[:-1])))


def _count(run: _Run, key: tuple[int, int]) -> int:
    low, high = (int(np.searchsorted(run[0], np.uint64(key[0]), side)) for side in ("left", "right"))
    return int(np.count_nonzero(run[1][low:high] == np.uint64(key[1])))


def _mix(halves: list[_Words], words: _Words, rows: Any = slice(None)) -> None:
    for half, (r1, m1, r2, m2, r3) in zip(halves, _ROUNDS, strict=True):
        mixed = half[rows] ^ words
        mixed ^= mixed >> np.uint64(r1)
        mixed *= np.uint64(m1)
        mixed ^= mixed >> np.uint64(r2)
        mixed *= np.uint64(m2)
        mixed ^= mixed >> np.uint64(r3)
        half[rows] = mixed


def _mix_bytes(halves: list[_Words], array: pa.Array) -> None:
    """Word by word, the rows that have as many at once; then the length, so that no zero at the end is lost."""
    data, offsets = _bytes_of(array)
    starts, lengths = offsets[:-1], np.diff(offsets)
    lengths = np.where(valid_of(array), lengths, 0)
    # Every place of the data is the begin of a word.
    words = np.ndarray((max(len(data) - _WORD + 1, 0),), np.dtype("<u8"), data, strides=(1,))
    rows = np.flatnonzero((lengths > 0) & (lengths <= _LONG))
    for done in range(0, _LONG, _WORD):
        rows = rows[lengths[rows] > done]
        if not len(rows):
            break
        left = np.minimum(lengths[rows] - done, _WORD)
        shift = ((_WORD - left) * 8).astype(np.uint64)
        found = words[starts[rows] + done].astype(np.uint64)
        _mix(halves, (found << shift) >> shift, rows)
    for row in np.flatnonzero(lengths > _LONG):
        digest = xxhash.xxh3_128_intdigest(data[starts[row] : starts[row] + lengths[row]].tobytes())
        for word in (digest & 2**64 - 1, digest >> 64):
            _mix(halves, np.array([word], np.uint64), np.array([row]))
    _mix(halves, lengths.astype(np.uint64))


def _bytes_of(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The values one after the other, with room for a word behind them, and where each begins."""
    if pt.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        offsets = (np.arange(len(array) + 1) + array.offset) * width
        body = array.buffers()[1]
    else:
        offsets, body = offsets_of(array), array.buffers()[2]
    low, high = int(offsets[0]), int(offsets[-1])
    held = np.frombuffer(body or b"", np.uint8)[low:high]
    return np.concatenate([held, np.zeros(_WORD, np.uint8)]), offsets - low


def _words_of(array: pa.Array) -> list[_Words]:
    kind = array.type
    if pt.is_boolean(kind):
        return _words_of(array.cast(pa.uint8()))
    if pt.is_decimal(kind):
        width = kind.bit_width // 64
        held = np.frombuffer(array.buffers()[1] or b"", np.uint64).reshape(-1, width)
        return [held[array.offset : array.offset + len(array), i] for i in range(width)]
    if pt.is_floating(kind):
        numbers = values_of(array, f"f{kind.bit_width // 8}").astype(np.float64) + 0.0
        return [np.where(np.isnan(numbers), np.float64("nan"), numbers).view(np.uint64)]
    return [values_of(array, f"i{kind.bit_width // 8}").astype(np.int64).view(np.uint64)]


def _is_bytes(kind: pa.DataType) -> bool:
    of_text = pt.is_string(kind) or pt.is_large_string(kind)
    return bool(of_text or pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def _integer_of(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_temporal(kind)) and not pt.is_interval(kind)
