"""How much memory the rows of one export may take on their way: one budget, divided here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from rivet_dagster.exports.formats import Csv, Parquet

__all__ = ["CSV_GROUP_BYTES", "Share", "divide", "least_memory"]

# CSV has no row groups; rows are turned into text in pieces of this size.
CSV_GROUP_BYTES = 1_000_000
# What a source may have sent before the encoder needs it.
_AHEAD_BYTES = 16_000_000
# A source's batch and its driver's copy of it; an upload, which reads its part in pieces; sessions, threads, and what
# an allocator keeps.
_BATCHES_BYTES, _UPLOAD_BYTES, _REST_BYTES = 16_000_000, 16_000_000, 28_000_000
_FIXED_BYTES = _BATCHES_BYTES + _UPLOAD_BYTES + _REST_BYTES
# A row group is there as it came, joined, and encoded.
_COPIES = 3
_LEAST_GROUP_BYTES = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What each of those who read and encode at a time may hold.

    Attributes:
        ahead_bytes: rows read that nobody has encoded yet; less, the more encode at a time, since one waits while
            another works.
        group_bytes: a row group. It does not depend on how many encode at a time, so that parts do not either.
        workers: how many may read and encode at a time.
    """

    ahead_bytes: int
    group_bytes: int
    workers: int


def divide(max_memory: int | None, settings: Parquet | Csv, *, parallel: int = 1) -> Share:
    """Divide a budget; one that is too little for anyone is treated as `least_memory`.

    Args:
        max_memory: for all that the rows take between the database and the destination; `None` for no limit.
        settings: the format, whose own limit of a row group counts where it is lower.
        parallel: how many would read and encode at a time.
    """
    group = _group_bytes(settings)
    if max_memory is None:
        return Share(ahead_bytes=max(1, _AHEAD_BYTES // parallel), group_bytes=group, workers=parallel)
    max_memory = max(max_memory, least_memory(settings))
    ahead = min(_AHEAD_BYTES, max_memory // 8)
    rest = max_memory - ahead - _FIXED_BYTES
    group = min(group, rest // _COPIES)
    each = ahead + _FIXED_BYTES + _COPIES * group
    workers = max(1, min(parallel, max_memory // each))
    return Share(ahead_bytes=ahead // workers, group_bytes=group, workers=workers)


def least_memory(settings: Parquet | Csv) -> int:
    """With how much an export can be held to a budget; row groups of a size that was asked for are never divided."""
    asked = isinstance(settings, Parquet) and "row_group_bytes" in settings.model_fields_set
    group = _group_bytes(settings) if asked else min(_group_bytes(settings), _LEAST_GROUP_BYTES)
    return -(-(_FIXED_BYTES + _COPIES * group) * 8 // 7)


def _group_bytes(settings: Parquet | Csv) -> int:
    return settings.row_group_bytes if isinstance(settings, Parquet) else CSV_GROUP_BYTES
