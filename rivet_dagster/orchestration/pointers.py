"""Where the user's definitions are, as Dagster's own commands are told, or find out for themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli
import yaml

__all__ = ["CannotLoad", "Pointer", "pointers"]


class CannotLoad(Exception):
    """There are no definitions where they were looked for; says where, and what to give instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """Where definitions are: in a module or a file, of which `attribute` is one of several."""

    module_name: str | None = None
    python_file: str | None = None
    attribute: str | None = None
    working_directory: str | None = None

    @property
    def shown(self) -> str:
        """For messages."""
        return self.module_name or self.python_file or ""


def pointers(
    *,
    module_name: str | None,
    python_file: str | None,
    workspace: str | None,
    attribute: str | None,
    working_directory: str | None,
) -> tuple[Pointer, ...]:
    """Where definitions are; without any argument as Dagster's own commands look for them in the working directory.

    That is `workspace.yaml`, or in `pyproject.toml` what `[tool.dagster]` or `[tool.dg.project]` names.

    Raises:
        CannotLoad: nothing says where, or the workspace names what cannot be loaded here.
    """
    if module_name or python_file:
        return (
            Pointer(
                module_name=module_name,
                python_file=python_file,
                attribute=attribute,
                working_directory=working_directory,
            ),
        )
    here = Path(working_directory or ".")
    path = Path(workspace) if workspace else here / "workspace.yaml"
    if workspace or path.is_file():
        return tuple(_of_workspace(path))
    found = _of_project(here / "pyproject.toml")
    if found is None:
        raise CannotLoad(
            f"{here.resolve()}: found no workspace.yaml, and no pyproject.toml that names definitions; give "
            "-m/--module-name, -f/--python-file or -w/--workspace"
        )
    return (found,)


def _of_workspace(path: Path) -> Iterator[Pointer]:
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries = [next(iter(entry.items())) for entry in said["load_from"]]
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, StopIteration) as e:
        raise CannotLoad(f"{path}: expected a workspace with load_from, found {type(e).__name__}: {e}") from e
    base = path.resolve().parent
    makers: dict[str, Callable[[Mapping[str, Any]], Pointer]] = {
        "python_module": lambda s: Pointer(
            module_name=s["module_name"], attribute=s.get("attribute"), working_directory=_below(base, s)
        ),
        "python_file": lambda s: Pointer(
            python_file=str(base / s["relative_path"]), attribute=s.get("attribute"), working_directory=_below(base, s)
        ),
    }
    shorts = {"python_module": "module_name", "python_file": "relative_path"}
    for kind, given in entries:
        if kind not in makers:
            raise CannotLoad(
                f"{path}: {kind} runs elsewhere and cannot be loaded here; give -m/--module-name or -f/--python-file"
            )
        yield makers[kind]({shorts[kind]: given} if isinstance(given, str) else given)


def _below(base: Path, said: Mapping[str, Any]) -> str:
    return str(base / said.get("working_directory", "."))


def _of_project(path: Path) -> Pointer | None:
    if not path.is_file():
        return None
    try:
        tool = tomli.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except tomli.TOMLDecodeError as e:
        raise CannotLoad(f"{path}: {e}") from e
    directory = str(path.parent)
    if name := tool.get("dagster", {}).get("module_name"):
        return Pointer(module_name=name, working_directory=directory)
    project = tool.get("dg", {}).get("project", {})
    if root := project.get("root_module"):
        # As `create-dagster` lays a project out: what is imported lies in src.
        source = path.parent / "src"
        module = project.get("code_location_target_module", f"{root}.definitions")
        return Pointer(module_name=module, working_directory=str(source) if source.is_dir() else directory)
    return None
