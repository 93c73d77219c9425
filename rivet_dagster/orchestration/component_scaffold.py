"""What `dg scaffold defs rivet_dagster.ExportsComponent` writes: the YAML of a component, of what a database has."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field

from rivet_dagster.errors import ConfigError
from rivet_dagster.orchestration.component_blocks import Block, destination_block, leaves_objects_at_rest
from rivet_dagster.orchestration.io_managers import IO_MANAGERS

if TYPE_CHECKING:
    from rivet_dagster.orchestration.component_proposals import Proposal

__all__ = ["ExportsScaffolder", "ScaffoldParams"]

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_RESERVED = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_EXAMPLE = """\
  # One for each table or query; `dg scaffold defs {type} … --source-env DATABASE_URL` writes them for all tables.
  exports:
    - name: orders
      table: public.orders
"""


class ScaffoldParams(BaseModel):
    """What the command takes."""

    model_config = ConfigDict(populate_by_name=True)

    source_env: str | None = Field(
        default=None,
        description="Name of the environment variable that holds the database's URL. Its tables are looked at, and "
        "each becomes an export.",
    )
    schema_name: str | None = Field(
        default=None, alias="schema", description="Whose tables; in MySQL and MariaDB, a database."
    )
    destination: str = Field(default="local", description=f"Kind of destination: {', '.join(IO_MANAGERS)}.")


class ExportsScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes a component's YAML."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        """What the command takes."""
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write it; the database is read, but no row of it leaves.

        Raises:
            ConfigError: the variable is not set, or the database has no such tables.
            SourceError: the database refused or could not be reached.
        """
        if request.scaffold_format != "yaml":
            dg.scaffold_component(request, {})
            return
        path = Path(request.target_path)
        try:
            text = "".join(_document(request.type_name, request.params))
        except BaseException:
            # Dagster has made it already, and would refuse to write into it the next time.
            with suppress(OSError):
                path.rmdir()
            raise
        if request.append:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"---\n{text}")
        else:
            (path / "defs.yaml").write_text(text, encoding="utf-8")


def _document(type_name: str, params: ScaffoldParams) -> Iterator[str]:
    # Drivers load only where a database is looked at.
    from rivet_dagster.orchestration.component_proposals import proposals  # noqa: PLC0415

    env = params.source_env or "DATABASE_URL"
    destination, keeps = _destination(params.destination), leaves_objects_at_rest(params.destination)
    found = proposals(_url_of(env), params.schema_name, only_whole=not keeps) if params.source_env else None
    yield f"type: {type_name}\nattributes:\n"
    yield f"  source: {{url_env: {env}}}\n"
    yield f"  destination: {_flow(destination)}\n"
    yield '  # schedule: "0 2 * * *"\n'
    if found is None:
        yield _EXAMPLE.format(type=type_name)
        return
    yield "  exports:\n"
    for proposal in found:
        yield from _export(proposal)


def _url_of(env: str) -> str:
    url = os.environ.get(env)
    if not url:
        msg = f"--source-env {env}: expected an environment variable with the database's URL, found none of this name"
        raise ConfigError(f"{msg}; export {env}=postgresql://user@host/database first")
    return url


def _export(proposal: Proposal) -> Iterator[str]:
    yield from _comments(proposal.why, "    ")
    if proposal.obstacle is not None:
        yield from _comments([f"cannot be exported as it is: {proposal.obstacle}"], "    ")
        yield f"    # - name: {_scalar(proposal.name)}\n    #   table: {_scalar(proposal.table)}\n"
        return
    yield f"    - name: {_scalar(proposal.name)}\n"
    yield f"      table: {_scalar(proposal.table)}\n"
    if proposal.mode:
        yield f"      mode: {_flow(proposal.mode)}\n"
    if proposal.casts:
        yield "      columns:\n"
        for column, (cast, why) in proposal.casts.items():
            yield from _comments([why], "        ")
            yield f"        {_scalar(column)}: {_scalar(cast)}\n"


def _comments(lines: Iterable[str], indent: str) -> Iterator[str]:
    yield from (f"{indent}# {' '.join(line.split())}\n" for line in lines)


def _destination(kind: str) -> dict[str, Any]:
    return {"type": kind, **_required(destination_block(kind))}


def _required(block: type[Block]) -> dict[str, Any]:
    """What a resource has to be told: by names of variables, but for a directory; of a union, the simplest arm."""
    said: dict[str, Any] = {}
    for name in block.required:
        if name == "path":
            said[name] = "data/exports"
        elif f"{name}_env" in block.model_fields:
            said[f"{name}_env"] = f"LAKE_{name.upper()}"
        else:
            annotation = block.model_fields[name].annotation
            arms = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, Block)]
            arm = min(arms, key=lambda a: len(a.required) + len(a.from_env))
            tags = {n: f.default for n, f in arm.model_fields.items() if get_origin(f.annotation) is Literal}
            said[name] = {**tags, **_required(arm)}
    return said


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return _scalar(value)


def _scalar(value: Any) -> str:
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
    return str(value) if plain else json.dumps(value, ensure_ascii=False)
