"""The fields of the YAML face. Those of an export and its modes are `Export`'s own, inherited."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias

import dagster as dg
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, InstanceOf, Tag, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.sizes import parse_duration
from rivet_dagster.exports.spec import Export
from rivet_dagster.orchestration.asset_options import AssetOptions
from rivet_dagster.orchestration.check_kinds import KINDS
from rivet_dagster.orchestration.component_blocks import Checked
from rivet_dagster.orchestration.component_mistakes import did_you_mean, one_of, told

__all__ = ["AssetFields", "Cron", "ExportEntry"]

_PARTITIONS: Mapping[str, type[Any]] = {
    "hourly": dg.HourlyPartitionsDefinition,
    "daily": dg.DailyPartitionsDefinition,
    "weekly": dg.WeeklyPartitionsDefinition,
    "monthly": dg.MonthlyPartitionsDefinition,
    "static": dg.StaticPartitionsDefinition,
    "dynamic": dg.DynamicPartitionsDefinition,
}


def _judged_by_dagster(build: Any, **settings: Any) -> Any:
    """What Dagster makes of settings; its refusal is one of ours."""
    try:
        return build(**settings)
    except Exception as e:  # noqa: BLE001 (Dagster has many kinds of them)
        said = " ".join(str(e).split()).replace(" for asset 'AssetKey(['any'])'", "")
        raise told(ConfigError(f"Dagster refuses it: {said}")) from None


def _freshness(build: Any, **settings: Any) -> dg.FreshnessPolicy:
    made: dg.FreshnessPolicy = _judged_by_dagster(build, **settings)
    return made


def _duration(value: Any) -> timedelta:
    try:
        return parse_duration(value, field="")
    except ConfigError as e:
        raise told(ConfigError(str(e).removeprefix(": "))) from None


def _cron(value: str) -> str:
    try:
        dg.ScheduleDefinition(name="any", job_name="any", cron_schedule=value)
    except dg.DagsterInvalidDefinitionError:
        raise told(ConfigError(f'expected a cron line such as "0 2 * * *", found {value!r}')) from None
    return value


def _texts(value: Any) -> Any:
    """Tags are texts, and YAML reads `true` and `1` as something else."""
    if not isinstance(value, Mapping):
        return value
    return {k: str(v).lower() if isinstance(v, bool) else str(v) if isinstance(v, int) else v for k, v in value.items()}


def _of_a_spec(name: str) -> AfterValidator:
    """Judged by Dagster as a setting of an asset."""

    def judge(value: Any) -> Any:
        _judged_by_dagster(dg.AssetSpec, key="any", **{name: value})
        return value

    return AfterValidator(judge)


Cron = Annotated[str, AfterValidator(_cron)]
Duration = Annotated[str, AfterValidator(lambda value: _duration(value) and value)]


class Retry(Checked):
    """How often a step is repeated after a failure that may pass."""

    max_retries: int = Field(default=1, ge=0, description="How often at most.")
    delay: Duration | None = Field(default=None, description='How long to wait before, e.g. "30s".')
    backoff: Literal["linear", "exponential"] | None = Field(
        default=None, description="How the wait grows from one repeat to the next."
    )
    jitter: Literal["full", "plus_minus"] | None = Field(default=None, description="How the wait is varied.")

    @property
    def made(self) -> dg.RetryPolicy:
        """As Dagster has it."""
        return dg.RetryPolicy(
            max_retries=self.max_retries,
            delay=None if self.delay is None else _duration(self.delay).total_seconds(),
            backoff=self.backoff and dg.Backoff[self.backoff.upper()],
            jitter=self.jitter and dg.Jitter[self.jitter.upper()],
        )


class Partitions(Checked):
    """Which partitions an asset has."""

    type: Literal["hourly", "daily", "weekly", "monthly", "static", "dynamic"] = Field(
        description="Of time, of a list of keys, or of keys that are added later."
    )
    start_date: str | None = Field(default=None, description='Of time: the first one, e.g. "2026-01-01".')
    end_date: str | None = Field(default=None, description="Of time: where they end.")
    timezone: str | None = Field(default=None, description='Of time: whose clock, e.g. "Europe/Berlin"; else UTC.')
    minute_offset: int | None = Field(default=None, description="Of time: at which minute they begin.")
    hour_offset: int | None = Field(default=None, description="Of days and longer: at which hour they begin.")
    day_offset: int | None = Field(default=None, description="Of weeks and months: on which day they begin.")
    end_offset: int | None = Field(default=None, description="Of time: how many after the one that is over.")
    partition_keys: list[str] | None = Field(default=None, description="Of a list: the keys.")
    name: str | None = Field(default=None, description="Of keys that are added later: the name of their list.")

    @property
    def made(self) -> dg.PartitionsDefinition[str]:
        """As Dagster has it."""
        kind = _PARTITIONS[self.type]
        given = self.model_dump(exclude={"type"}, exclude_none=True)
        build = kind.__init__ if self.type == "static" else kind.__new__
        known = inspect.signature(build).parameters
        for name in given:
            if name not in known:
                raise told(ConfigError(f"{name}: {self.type} partitions have no such setting; leave it out"))
        for name, parameter in known.items():
            needed = parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            if needed and name not in {"self", "cls", *given}:
                raise told(ConfigError(f"{self.type} partitions need {name}, found none"))
        if self.type == "dynamic" and self.name is None:
            raise told(ConfigError("dynamic partitions need name, found none"))
        made: dg.PartitionsDefinition[str] = _judged_by_dagster(kind, **given)
        return made


class Backfill(Checked):
    """How many partitions a run may have."""

    type: Literal["single_run", "multi_run"] = Field(description="All in one run, or several runs.")
    max_partitions_per_run: int | None = Field(default=None, ge=1, description="Of several runs: how many each has.")

    @property
    def made(self) -> dg.BackfillPolicy:
        """As Dagster has it."""
        if self.type == "single_run":
            return dg.BackfillPolicy.single_run()
        return dg.BackfillPolicy.multi_run(max_partitions_per_run=self.max_partitions_per_run or 1)


class Freshness(Checked):
    """How old the newest materialization may be: at any time, or at a deadline."""

    fail_window: Duration | None = Field(default=None, description='Fails when it is older, e.g. "25 hours".')
    warn_window: Duration | None = Field(default=None, description="Warns when it is older.")
    deadline_cron: Cron | None = Field(default=None, description="When it has to be there, as a cron line.")
    lower_bound_delta: Duration | None = Field(default=None, description="How long before the deadline it counts.")
    timezone: str | None = Field(default=None, description="Of the deadline; else UTC.")

    @property
    def made(self) -> dg.FreshnessPolicy:
        """As Dagster has it."""
        given = self.model_dump(exclude_none=True)
        length = {k: _duration(v) if k.endswith(("_window", "_delta")) else v for k, v in given.items()}
        by_age, by_time = {"fail_window"}, {"deadline_cron", "lower_bound_delta"}
        if by_age <= length.keys() <= by_age | {"warn_window"}:
            return _freshness(dg.FreshnessPolicy.time_window, **length)
        if by_time <= length.keys() <= by_time | {"timezone"}:
            return _freshness(dg.FreshnessPolicy.cron, **length)
        found = " and ".join(given) or "nothing"
        said = "expected fail_window (and warn_window), or deadline_cron and lower_bound_delta (and timezone)"
        raise told(ConfigError(f"{said}, found {found}"))


def _made(value: Any) -> Any:
    return getattr(value, "made", value)


def _which(value: Any) -> str:
    return "fields" if isinstance(value, Mapping | Checked | str | int | float | list) else "object"


# Fields, or an object that a template gives; either becomes the object.
_PartitionsDef: TypeAlias = Annotated[
    Annotated[Partitions, Tag("fields")]
    | Annotated[SkipJsonSchema[InstanceOf[dg.PartitionsDefinition[str]]], Tag("object")],
    Discriminator(_which),
    AfterValidator(_made),
]
_BackfillPolicy: TypeAlias = Annotated[
    Annotated[Backfill, Tag("fields")] | Annotated[SkipJsonSchema[InstanceOf[dg.BackfillPolicy]], Tag("object")],
    Discriminator(_which),
    AfterValidator(_made),
]
_RetryPolicy: TypeAlias = Annotated[
    Annotated[Retry, Tag("fields")] | Annotated[SkipJsonSchema[InstanceOf[dg.RetryPolicy]], Tag("object")],
    Discriminator(_which),
    AfterValidator(_made),
]
_FreshnessPolicy: TypeAlias = Annotated[
    Annotated[Freshness, Tag("fields")] | Annotated[SkipJsonSchema[InstanceOf[dg.FreshnessPolicy]], Tag("object")],
    Discriminator(_which),
    AfterValidator(_made),
]


def _condition(value: Any) -> Any:
    return getattr(dg.AutomationCondition, value)() if isinstance(value, str) else value


def _check(name: str) -> str:
    if name not in KINDS:
        said = f"expected {one_of([*KINDS])}, found {name!r}{did_you_mean(name, [*KINDS])}"
        raise told(ConfigError(said))
    return name


_Check = Annotated[str, AfterValidator(_check), WithJsonSchema({"type": "string", "enum": [*KINDS]})]


class AssetFields(Checked):
    """What an export's asset has; on the component, for each export that does not say otherwise."""

    key_prefix: str | list[str] | None = Field(
        default=None, description="Of the asset's key, which ends in the export's name."
    )
    partitions_def: _PartitionsDef | None = Field(
        default=None, description="Each partition is a dataset of its own, with the rows that partition_by says."
    )
    backfill_policy: _BackfillPolicy | None = Field(
        default=None, description="How many partitions a run may have; one unless given."
    )
    retry_policy: _RetryPolicy | None = Field(
        default=None, description="How often Dagster repeats the step after a failure that may pass."
    )
    pool: str | None = Field(
        default=None, description="Where an instance may limit how many exports of one database run at once."
    )
    deps: list[str] | None = Field(
        default=None, description='Keys of assets that have to be there before, e.g. "raw/orders".'
    )
    group_name: Annotated[str, _of_a_spec("group_name")] | None = Field(default=None, description="Of the asset.")
    owners: Annotated[list[str], _of_a_spec("owners")] | None = Field(
        default=None, description='Of the asset: e-mail addresses, or teams, e.g. "team:data".'
    )
    tags: Annotated[dict[str, str], BeforeValidator(_texts), _of_a_spec("tags")] | None = Field(
        default=None, description="Of the asset; those of the component and of the export together."
    )
    kinds: Annotated[list[str], _of_a_spec("kinds")] | None = Field(
        default=None, description="Shown besides those of destination and format."
    )
    automation_condition: (
        Annotated[
            Literal["eager", "on_missing"] | SkipJsonSchema[InstanceOf[dg.AutomationCondition[Any]]],
            AfterValidator(_condition),
        ]
        | None
    ) = Field(
        default=None,
        description="When Dagster materializes the asset by itself: eager, on_missing, or a template such as "
        "{{ dg.AutomationCondition.on_cron('0 2 * * *') }}.",
    )
    freshness_policy: _FreshnessPolicy | None = Field(
        default=None, description="How old the newest materialization may be."
    )

    checks: list[_Check] | None = Field(
        default=None, description="Which checks look at what was delivered; manifest unless given."
    )

    def options(self, defaults: AssetFields) -> AssetOptions:
        """These, and where they do not say, others."""
        said = {name: getattr(self, name) for name in AssetFields.model_fields}
        other = {name: getattr(defaults, name) for name in AssetFields.model_fields}
        merged = {name: value if value is not None else other[name] for name, value in said.items()}
        merged["tags"] = {**(other["tags"] or {}), **(said["tags"] or {})}
        merged["deps"] = [dg.AssetKey.from_user_string(key) for key in merged["deps"] or ()]
        if merged["checks"] is None:
            del merged["checks"]
        return AssetOptions(**merged)


class ExportEntry(AssetFields, Export):
    """One export with its asset."""

    @property
    def export(self) -> Export:
        """What is exported, without what is the asset's."""
        return Export.model_construct(
            self.model_fields_set & Export.model_fields.keys(),
            **{name: getattr(self, name) for name in Export.model_fields},
        )
