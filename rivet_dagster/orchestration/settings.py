"""Which settings count: the IO manager's, over them the asset's `rivet/<name>` metadata, over all the export's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from rivet_dagster.attempt import CommitSettings
from rivet_dagster.contract import DestinationCapabilities
from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.output import OutputSettings, resolve_output
from rivet_dagster.exports.sizes import parse_duration, parse_size
from rivet_dagster.exports.spec import Export
from rivet_dagster.manifest import MAX_ANCESTORS

__all__ = ["Directory", "Duration", "Settings", "Size"]


def _size(value: Any, info: ValidationInfo) -> Any:
    if value is not None and not isinstance(value, dg.EnvVar):
        parse_size(value, field=str(info.field_name))
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _duration(value: Any) -> Any:
    if not isinstance(value, dg.EnvVar):
        parse_duration(value, field="takeover_after")
    return value


def _directory(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, dg.EnvVar) and not value.strip():
        raise ConfigError(f"path: expected a directory, found {value!r}; give . for the working directory")
    return value


# What definitions of exports show under the same beginning: it may be copied, and sets nothing.
_SHOWN = frozenset({*(f.name for f in fields(DestinationCapabilities)), "diagnostics", "export", "source"})

# Judged where it is written; what comes from an environment variable is judged when the step has its value.
Size = Annotated[str, BeforeValidator(_size)]
Duration = Annotated[str, BeforeValidator(_duration)]
Directory = Annotated[str, BeforeValidator(_directory)]


class Settings(BaseModel):
    """What an IO manager, or a plain asset by definition metadata, may set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["parquet", "csv"] = "parquet"
    max_file_size: Size | None = None
    max_memory: Size | None = None
    retain: int = Field(default=0, ge=0, lt=MAX_ANCESTORS)
    verify: Literal["store", "readback"] = "store"
    symlink_manifest: bool = False
    takeover_after: Duration = "1h"
    unsafe_unfenced_commits: bool = False

    def over(self, definition_metadata: Mapping[str, Any]) -> Settings:
        """These, where an asset's metadata does not say otherwise.

        Raises:
            ConfigError: a value that cannot be, or a `rivet/` key that is neither a setting nor what definitions show;
                names the key.
        """
        keys = [key.removeprefix("rivet/") for key in definition_metadata if key.startswith("rivet/")]
        unknown = [key for key in keys if key not in type(self).model_fields and key not in _SHOWN]
        if unknown:
            msg = (
                f"the asset's metadata: expected settings of {', '.join(type(self).model_fields)}, found "
                f"{', '.join(f'rivet/{key}' for key in unknown)}; correct the name, or begin it with something else"
            )
            raise ConfigError(msg)
        said = {
            name: getattr(value, "value", value)
            for name in type(self).model_fields
            if (value := definition_metadata.get(f"rivet/{name}")) is not None
        }
        try:
            return Settings.model_validate({**self.model_dump(), **said})
        except ValidationError as e:
            found = "; ".join(
                f"rivet/{'.'.join(map(str, x['loc']))}: {x['msg']}, found {x['input']!r}" for x in e.errors()
            )
            msg = f"the asset's metadata holds a setting that cannot be: {found}"
            raise ConfigError(msg) from None

    def output(self, export: Export | None) -> OutputSettings:
        """How parts come out.

        Raises:
            ConfigError: a size that is none.
        """
        return resolve_output(
            format=self.format,
            max_file_size=self.max_file_size,
            max_memory=self.max_memory,
            retain=self.retain,
            verify=self.verify,
            symlink_manifest=self.symlink_manifest,
            export=export,
        )

    def commit(self, output: OutputSettings) -> CommitSettings:
        """How the seam works.

        Raises:
            ConfigError: a length of time that is none.
        """
        return CommitSettings(
            retain=output.retain,
            verify=output.verify,
            symlink_manifest=output.symlink_manifest,
            takeover_after=parse_duration(self.takeover_after, field="takeover_after"),
            unsafe_unfenced_commits=self.unsafe_unfenced_commits,
        )
