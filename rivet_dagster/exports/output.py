"""How parts come out: the IO manager's settings, overridden by the export's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.formats import Csv, Format, Parquet, as_format
from rivet_dagster.exports.sizes import parse_size
from rivet_dagster.exports.spec import Export

__all__ = ["OutputSettings", "resolve_output"]

Verify = Literal["store", "readback"]
_SETTINGS = ("format", "max_file_size", "max_memory", "retain", "verify", "symlink_manifest")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """What counts for one export, everything decided.

    Attributes:
        format: with its settings.
        max_file_size: bytes from which a part ends; `None` for one part.
        max_memory: bytes that the rows may take on their way, see `memory.divide`; `None` for no limit.
        skip_empty: a run without rows leaves the dataset as it was.
        retain: superseded deliveries kept besides the head.
        verify: how parts are verified.
        symlink_manifest: also write the list of parts.
    """

    format: Parquet | Csv
    max_file_size: int | None = None
    max_memory: int | None = None
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
    max_memory: str | int | None = None,
    retain: int = 0,
    verify: Verify = "store",
    symlink_manifest: bool = False,
    skip_empty: bool = False,
    export: Export | None = None,
) -> OutputSettings:
    """Decide what counts: what `export` sets wins over the other arguments, which are the IO manager's.

    Raises:
        ConfigError: a setting that cannot be; names the field.
    """
    said = {} if export is None else {f: v for f in _SETTINGS if (v := getattr(export, f)) is not None}
    wanted: Any = {
        "format": format,
        "max_file_size": max_file_size,
        "max_memory": max_memory,
        "retain": retain,
        "verify": verify,
        "symlink_manifest": symlink_manifest,
        **said,
    }
    sizes = {f: None if wanted[f] is None else parse_size(wanted[f], field=f) for f in ("max_file_size", "max_memory")}
    settings = OutputSettings(
        **{
            **wanted,
            "format": as_format(wanted["format"]),
            **sizes,
            "skip_empty": skip_empty or (export is not None and export.skip_empty),
        }
    )
    for field, is_fine, expected in (
        ("format", isinstance(settings.format, Parquet | Csv), '"parquet", "csv", Parquet(…) or Csv(…)'),
        ("retain", settings.retain >= 0, "a number of deliveries, 0 or more"),
        ("verify", settings.verify in get_args(Verify), '"store" or "readback"'),
    ):
        if not is_fine:
            msg = f"{field}: expected {expected}; found {getattr(settings, field)!r}"
            raise ConfigError(msg)
    return settings
