"""How parts come out: the IO manager's settings, overridden by the export's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rivet_dagster.exports.formats import Csv, Format, Parquet, as_format
from rivet_dagster.exports.sizes import parse_size
from rivet_dagster.exports.spec import Export

__all__ = ["OutputSettings", "resolve_output"]

Verify = Literal["store", "readback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """What counts for one export, everything decided.

    Attributes:
        format: with its settings.
        max_file_size: bytes from which a part ends; `None` for one part.
        skip_empty: a run without rows leaves the dataset as it was.
        retain: superseded deliveries kept besides the head.
        verify: how parts are verified.
        symlink_manifest: also write the list of parts.
    """

    format: Parquet | Csv
    max_file_size: int | None = None
    skip_empty: bool = False
    retain: int = 0
    verify: Verify = "store"
    symlink_manifest: bool = False

    @property
    def suffix(self) -> str:
        """Of the parts, e.g. ".csv.gz"."""
        return self.format.suffix


def resolve_output(
    *,
    format: Format | str = "parquet",  # noqa: A002 (the setting's public name)
    max_file_size: str | int | None = None,
    retain: int = 0,
    verify: Verify = "store",
    symlink_manifest: bool = False,
    skip_empty: bool = False,
    export: Export | None = None,
) -> OutputSettings:
    """Decide what counts: what `export` sets wins over the other arguments, which are the IO manager's.

    Raises:
        ConfigError: a size or format that is none; names the field.
    """
    if export is not None:
        format = export.format if export.format is not None else format  # noqa: A001
        max_file_size = export.max_file_size if export.max_file_size is not None else max_file_size
        retain = export.retain if export.retain is not None else retain
        verify = export.verify if export.verify is not None else verify
        if export.symlink_manifest is not None:
            symlink_manifest = export.symlink_manifest
        skip_empty = skip_empty or export.skip_empty
    return OutputSettings(
        format=as_format(format),
        max_file_size=None if max_file_size is None else parse_size(max_file_size, field="max_file_size"),
        skip_empty=skip_empty,
        retain=retain,
        verify=verify,
        symlink_manifest=symlink_manifest,
    )
