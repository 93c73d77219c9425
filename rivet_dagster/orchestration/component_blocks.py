"""Fields of the YAML face that are those of a Dagster resource: derived from it, so that the two cannot differ.

A secret has no field of its own name: `<name>_env` takes the name of an environment variable, of which Dagster shows
the name alone. What says where something is may be given in either way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from functools import cache
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin

import dagster as dg
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rivet_dagster.errors import ConfigError
from rivet_dagster.orchestration.component_mistakes import did_you_mean, nested, one_of, told
from rivet_dagster.orchestration.io_managers import IO_MANAGERS, ExportIOManager
from rivet_dagster.orchestration.resources import DatabaseResource
from rivet_dagster.sources.connect import is_ours
from rivet_dagster.sources.url import parse_url

__all__ = [
    "Block",
    "Checked",
    "block_of",
    "database_blocks",
    "database_of",
    "destination_block",
    "destination_blocks",
    "destination_of",
    "leaves_objects_at_rest",
]

_T = TypeVar("_T")
_SECRET = re.compile(r"(?i)(^|_)(key|token|secret|password)(_|$)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_IN_QUERY = re.compile(r"(?i)[?&;][^=&;]*(?:passw|pwd|secret|token|odbc_connect)[^=&;]*=")
_SIGNED_QUERY = re.compile(r"(?i)[?&;][^=&;]*(?:sig|key)[^=&;]*=")
_USER_AND_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]*@")


def _told(value: Any, handler: Any) -> Any:
    try:
        return handler(value)
    except ConfigError as e:
        raise told(e) from None


class Checked(BaseModel):
    """A model of which every error of ours says where it is."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, arbitrary_types_allowed=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _field_told(cls, value: Any, handler: Any) -> Any:
        return _told(value, handler)

    @model_validator(mode="wrap")
    @classmethod
    def _model_told(cls, value: Any, handler: Any) -> Any:
        return _told(value, handler)


class Block(BaseModel):
    """The settings of one resource.

    Attributes:
        resource: its class.
        from_env: field that names a variable → field of the resource.
        required: fields of the resource, of which it has to be told in one way or the other.
    """

    model_config = Checked.model_config

    resource: ClassVar[type[Any]]
    from_env: ClassVar[Mapping[str, str]]
    required: ClassVar[tuple[str, ...]]

    @model_validator(mode="after")
    def _each_once(self) -> Block:
        for env, name in self.from_env.items():
            given = [n for n in (name, env) if getattr(self, n, None) is not None]
            if len(given) > 1:
                raise ConfigError(f"expected one of {name} and {env}, found both; leave one out")
            if not given and name in self.required:
                ways = env if name not in type(self).model_fields else f"{name} or {env}"
                raise ConfigError(f"expected {ways}, found nothing; it is required")
        return self

    def build(self) -> Any:
        """The resource."""
        said: dict[str, Any] = {}
        for name in self.model_fields_set - {"type"}:
            value = getattr(self, name)
            if value is not None:
                variable = name in self.from_env
                said[self.from_env.get(name, name)] = dg.EnvVar(value) if variable else _built(value)
        return self.resource(**said)


@cache
def block_of(resource: Any) -> type[Block]:
    """The fields that YAML has for a resource."""
    fields: dict[str, Any] = {}
    from_env: dict[str, str] = {}
    if issubclass(resource, ExportIOManager):
        fields["type"] = (Literal[resource.kind], Field(description="Which kind of destination it is."))
    required = [name for name, field in resource.model_fields.items() if field.is_required()]
    for name, given in resource.model_fields.items():
        field = copy(given)
        field.description = field.description or f"As `{resource.__name__}` has it."
        text = str in {field.annotation, *get_args(field.annotation)}
        if text and (_SECRET.search(name) or name in required or name.endswith("_url")):
            from_env[f"{name}_env"] = name
            shown = f"Name of the environment variable that holds it: {field.description}"
            fields[f"{name}_env"] = (_Variable | None, Field(default=None, description=shown))
            if _SECRET.search(name):
                continue
            field.default = None if field.is_required() else field.default
            in_clear = AfterValidator(_database_url if resource is DatabaseResource else _url)
            fields[name] = (Annotated[str, in_clear] | None if name.endswith("url") else str | None, field)
        else:
            fields[name] = (_with_blocks(field.annotation), field)
    # Not of names that tell the arms of a union apart: pydantic reads them without validators.
    judged = [name for name, (annotation, _) in fields.items() if get_origin(annotation) is not Literal]
    block = create_model(
        f"{resource.__name__}Fields",
        __base__=Block,
        __doc__=resource.__doc__,
        __validators__={"_field_told": field_validator(*judged, mode="wrap")(_told)} if judged else {},
        **fields,
    )
    block.resource, block.from_env, block.required = resource, from_env, tuple(required)
    return block


def database_of(data: Any) -> DatabaseResource:
    """The database that YAML says; for use in a validator.

    Raises:
        PydanticCustomError: with all that is wrong.
    """
    database: DatabaseResource = data if isinstance(data, DatabaseResource) else _resource_of(DatabaseResource, data)
    try:
        database.check()
        if not isinstance(database.url, dg.EnvVar) and not is_ours(database.url):
            # Whether there is a dialect for it.
            database.source()
    except ConfigError as e:
        raise told(e) from None
    return database


def destination_of(data: Any) -> ExportIOManager:
    """The destination that YAML says; for use in a validator. The SDK of no other kind is loaded.

    Raises:
        PydanticCustomError: with all that is wrong.
    """
    if isinstance(data, ExportIOManager):
        return data
    kind = data.get("type") if isinstance(data, Mapping) else None
    try:
        destination_block(kind)
    except ConfigError as e:
        raise told(e) from None
    return _resource_of(_io_manager(str(kind)), data)


def database_blocks() -> tuple[type[Block], ...]:
    """The fields of a database."""
    return (block_of(DatabaseResource),)


def destination_block(kind: Any) -> type[Block]:
    """The fields of one kind of destination.

    Raises:
        ConfigError: there is no such kind; names those that there are.
    """
    if not isinstance(kind, str) or kind not in IO_MANAGERS:
        known, found = [*IO_MANAGERS], "nothing" if kind is None else repr(kind)
        raise ConfigError(f"type: expected {one_of(known)}, found {found}{did_you_mean(kind, known)}")
    return block_of(_io_manager(kind))


def leaves_objects_at_rest(kind: str) -> bool:
    """Whether a kind of destination keeps what is written to it."""
    return _io_manager(kind).capabilities.commit_protocol.leaves_objects_at_rest


def destination_blocks() -> tuple[type[Block], ...]:
    """The fields of every kind of destination; loads the SDKs of all of them."""
    return tuple(block_of(_io_manager(kind)) for kind in IO_MANAGERS)


def _io_manager(kind: str) -> type[ExportIOManager]:
    module, _, name = IO_MANAGERS[kind].rpartition(".")
    found: type[ExportIOManager] = getattr(import_module(module), name)
    return found


def _resource_of(resource: type[_T], data: Any) -> _T:
    block: type[Block] = block_of(cast("Any", resource))
    try:
        made: _T = block.model_validate(data).build()
        return made
    except ValidationError as e:
        raise nested(e, block) from None
    except ConfigError as e:
        raise told(e) from None


def _built(value: Any) -> Any:
    return value.build() if isinstance(value, Block) else value


def _with_blocks(annotation: Any) -> Any:
    """An annotation in which the fields of a resource stand in its place."""
    if get_origin(annotation) in {Union, UnionType}:
        return Union[tuple(_with_blocks(arm) for arm in get_args(annotation))]  # noqa: UP007 (arms known at run time)
    return block_of(annotation) if isinstance(annotation, type) and issubclass(annotation, dg.Config) else annotation


def _is_variable(value: Any) -> Any:
    # Never shown: where a name was expected there may have been the secret itself.
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise PydanticCustomError(
            "rivet", "{said}", {"said": "expected the name of an environment variable, such as ITS_NAME"}
        )
    return value


def _database_url(url: str, info: ValidationInfo) -> str:
    return _open_to_all(url, parse_url(url).secrets or _SECRET_IN_QUERY.search(url), info)


def _url(url: str, info: ValidationInfo) -> str:
    patterns = (_USER_AND_PASSWORD, _SECRET_IN_QUERY, _SIGNED_QUERY)
    return _open_to_all(url, any(pattern.search(url) for pattern in patterns), info)


def _open_to_all(url: str, secret: object, info: ValidationInfo) -> str:
    if secret:
        raise ConfigError(
            "expected a URL without secrets, found one with a password, token or signature in it, which Dagster would "
            f"show in its UI; put the URL into an environment variable and give {info.field_name}_env: ITS_NAME"
        )
    return url


_Variable = Annotated[str, BeforeValidator(_is_variable)]
