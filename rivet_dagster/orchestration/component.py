"""The YAML face: exports of one database to one destination, as a Dagster component."""

# No `from __future__ import annotations` here: Dagster reads annotations of what a subclass may override.

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import dagster as dg
import xxhash
from pydantic import BaseModel, Field, PlainValidator, PrivateAttr, ValidationError
from typing_extensions import Self

from rivet_dagster.errors import ConfigError, PlanRejected
from rivet_dagster.exports.plan import Diagnostic, Level
from rivet_dagster.orchestration.component_blocks import (
    database_blocks,
    database_of,
    destination_blocks,
    destination_of,
)
from rivet_dagster.orchestration.component_fields import AssetFields, Cron, ExportEntry
from rivet_dagster.orchestration.component_mistakes import Mistake, Origin, as_mistake, mistakes_of
from rivet_dagster.orchestration.component_scaffold import ExportsScaffolder
from rivet_dagster.orchestration.component_schema import FieldsOf, attributes_model
from rivet_dagster.orchestration.component_templates import rendered
from rivet_dagster.orchestration.definitions import export_definitions
from rivet_dagster.orchestration.handle import ExportHandle
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.partitions import check_partitions
from rivet_dagster.orchestration.planned import Planned, spec_of
from rivet_dagster.orchestration.resources import DatabaseResource

__all__ = ["ExportsComponent"]


@dg.scaffold_with(ExportsScaffolder)
class ExportsComponent(AssetFields, dg.Component):
    """Exports tables and queries of one database to Parquet or CSV at one destination.

    Each export is an asset, with a check of what was delivered. There are the job and the resources of
    `build_export_definitions`, all named after the folder of the component.

    Example:
        .. code-block:: yaml

            type: rivet_dagster.ExportsComponent
            attributes:
              source: {url_env: DATABASE_URL}
              destination: {type: local, path: data/exports}
              exports:
                - {name: orders, table: public.orders}
    """

    source: Annotated[DatabaseResource, PlainValidator(database_of), FieldsOf(database_blocks)] = Field(
        description="The database to read from."
    )
    destination: Annotated[ExportIOManager, PlainValidator(destination_of), FieldsOf(destination_blocks)] = Field(
        description="Where the exports go to."
    )
    exports: list[ExportEntry] = Field(min_length=1, description="What is exported.")
    name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_]+$",
        description="Of the job, and the beginning of the other names; made of the folder's path unless given.",
    )
    schedule: Cron | None = Field(default=None, description='When the job runs, as a cron line, e.g. "0 2 * * *".')
    bundle: bool = Field(default=False, description="All exports are one step, for many small tables.")
    parallel: int | None = Field(
        default=None, ge=1, description="How many exports of a bundle run at a time; 4 unless given."
    )

    _origin: Origin = PrivateAttr(default_factory=Origin)

    def get_asset_spec(self, export: ExportEntry) -> dg.AssetSpec:
        """Describe the asset of an export; override it to change key, group, tags and the like.

        Args:
            export: one of `exports`.

        Example:
            .. code-block:: python

                class Exports(rd.ExportsComponent):
                    def get_asset_spec(self, export):
                        return super().get_asset_spec(export).replace_attributes(group_name=export.name[:3])
        """
        return spec_of(export.export, export.options(self), self.destination)

    def execute(self, context: dg.AssetExecutionContext, export: ExportHandle) -> Any:
        """Say what a step commits; override it to change what is exported, or to do something before.

        It runs in the step, before the first row is read; after it the IO manager reads, writes and commits.

        Args:
            context: of the step.
            export: what the definition says, with `export`, `database`, `full_refresh` and `partitions`.

        Returns:
            The same, or one that was changed with `dataclasses.replace`, or rows of another origin in `rd.Batches`.
        """
        del context
        return export

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Make the definitions; see `build_export_definitions` for what they are.

        Raises:
            ConfigError: an export cannot work at this destination; names each field.
        """
        planned = [Planned(export=e.export, options=e.options(self), spec=self.get_asset_spec(e)) for e in self.exports]
        if mistakes := [*self._contradictions(planned)]:
            raise self._origin.tell(mistakes)
        name = self.name or _name_of(context, {"__".join(p.spec.key.path) for p in planned})
        try:
            return export_definitions(
                planned,
                source=self.source,
                destination=self.destination,
                name=name,
                schedule=self.schedule,
                bundle=self.bundle,
                parallel=self.parallel,
                body=self.execute,
            )
        except PlanRejected as e:
            raise self._origin.tell([m for d in e.diagnostics for m in _rejected(d, planned)]) from None
        except ConfigError as e:
            text = str(e).removeprefix(f"{name}: ")
            raise self._origin.tell([as_mistake((), text, self._origin.written)]) from None

    def _contradictions(self, planned: Sequence[Planned]) -> Iterator[Mistake]:
        """What no field says alone."""
        first: dict[dg.AssetKey, int] = {}
        for i, (entry, p) in enumerate(zip(self.exports, planned, strict=True)):
            path, key, partitions_def = ("exports", i), p.spec.key, p.spec.partitions_def
            if (other := first.setdefault(key, i)) != i:
                same = f"{key.to_user_string()!r} is the key of exports[{other}] as well"
                yield Mistake(path=(*path, "name"), text=f"{same}; give another name or key_prefix")
            if partitions_def != planned[0].spec.partitions_def:
                text = "expected the same for all exports of a component, found another than that of exports[0]"
                yield Mistake(path=(*path, "partitions_def"), text=f"{text}; make a component of their own")
            try:
                check_partitions(p.export, partitions_def, p.options.backfill_policy)
            except ConfigError as e:
                yield as_mistake(path, str(e), self._origin.written)
            for name in ("retry_policy", "pool") if self.bundle else ():
                if getattr(entry, name) is not None:
                    text = "it is of a step, and a bundle is one step; give it for all exports"
                    yield Mistake(path=(*path, name), text=text)

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """What Dagster's tools know of the attributes."""
        return attributes_model(cls)

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Make a component of its YAML.

        Raises:
            ConfigError: says all that is wrong: file, line, field, what was expected and found, and the remedy.
        """
        written = getattr(attributes, "root", None) or {}
        data, origin = rendered(written, context)
        try:
            component = cls.model_validate(data)
        except ValidationError as e:
            raise origin.tell(mistakes_of(e, cls, data)) from None
        component._origin = origin  # noqa: SLF001 (a frozen model sets its own private attribute)
        return component


def _name_of(context: dg.ComponentLoadContext, taken: Iterable[str]) -> str:
    """A name for what a component makes, of its path below the folder of all definitions; another for every path."""
    path = context.path.relative_to(context.defs_module_path)
    instance = getattr(context.component_loc, "instance_key", None)
    first = instance in {None, 0}
    segments = [part.removesuffix(".py") for part in path.parts] + ([] if first else [str(instance)])
    name = "__".join(re.sub(r"\W", "_", segment, flags=re.ASCII) for segment in segments) or "exports"
    plain = first and all(re.fullmatch(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*", part) for part in path.parts)
    # Dagster wants a job and a step to be named differently.
    if plain and name not in taken:
        return name
    return f"{name}_{xxhash.xxh3_64_hexdigest(f'{path.as_posix()}[{instance}]'.encode())[:8]}"


def _rejected(diagnostic: object, planned: Sequence[Planned]) -> list[Mistake]:
    if not isinstance(diagnostic, Diagnostic) or diagnostic.level is not Level.REJECTED:
        return []
    subjects = diagnostic.subject.split(", ")
    text = f"{diagnostic.rule}: {diagnostic.message}; {diagnostic.remedy}"
    return [
        Mistake(path=("exports", i), text=text) for i, p in enumerate(planned) if "/".join(p.spec.key.path) in subjects
    ]
