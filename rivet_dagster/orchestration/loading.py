"""The user's own definitions, found as Dagster finds them, and their exports with what they read and write."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import dagster as dg

from rivet_dagster.errors import ConfigError, RivetError
from rivet_dagster.orchestration.datasets import Dataset, datasets_of
from rivet_dagster.orchestration.failures import masked
from rivet_dagster.orchestration.io_managers import ExportIOManager
from rivet_dagster.orchestration.pointers import CannotLoad, Pointer
from rivet_dagster.orchestration.resources import DatabaseResource

__all__ = ["CodeLocation", "Opened", "load"]

_UNSET = "environment variable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Resources that have their values: what comes from the environment was read.

    Attributes:
        found: by key.
        failed: why there is none, by key.
    """

    found: Mapping[str, Any] = field(default_factory=dict)
    failed: Mapping[str, ConfigError] = field(default_factory=dict)

    def database(self, key: str) -> DatabaseResource:
        """Where an export reads from.

        Raises:
            ConfigError: it could not be made, is something else, or there is none.
        """
        return cast("DatabaseResource", self._get(key, DatabaseResource))

    def io_manager(self, key: str) -> ExportIOManager:
        """Where it goes to.

        Raises:
            ConfigError: it could not be made, is something else, or there is none.
        """
        return cast("ExportIOManager", self._get(key, ExportIOManager))

    def _get(self, key: str, kind: type[Any]) -> Any:
        if key in self.failed:
            raise self.failed[key]
        found = self.found.get(key)
        if not isinstance(found, kind):
            what = "none" if found is None else type(found).__name__
            raise ConfigError(f"resource {key!r}: expected a {kind.__name__}, found {what}; give this key one")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLocation:
    """One set of definitions."""

    definitions: Sequence[dg.RepositoryDefinition]

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """Of all assets; those of other IO managers too."""
        assets = (a for r in self.definitions for a in r.assets_defs_by_key.values())
        return tuple(datasets_of(assets))

    @property
    def exports(self) -> tuple[Dataset, ...]:
        """Of the assets that export a table or query."""
        return tuple(d for d in self.datasets if d.defined is not None)

    def retries(self, key: dg.AssetKey) -> int:
        """How often Dagster repeats the step of an asset."""
        for repository in self.definitions:
            asset = repository.assets_defs_by_key.get(key)
            step = asset.node_def if asset is not None else None
            if isinstance(step, dg.OpDefinition) and step.retry_policy is not None:
                return step.retry_policy.max_retries
        return 0

    @contextmanager
    def opened(self, keys: Iterable[str]) -> Iterator[Opened]:
        """Resources for as long as they are used; one that cannot be made does not stop the others."""
        there: dict[str, Any] = {}
        for repository in self.definitions:
            there |= repository.get_top_level_resources()
        for dataset in self.datasets:
            there |= dataset.resource_defs
        wanted = {k: there[k] for k in dict.fromkeys(keys) if k in there}
        found, failed, contexts = {}, {}, []
        try:
            for key, resource in wanted.items():
                context = dg.build_resources({key: resource})
                try:
                    found[key] = getattr(context.__enter__(), key)
                    contexts.append(context)
                except Exception as e:  # noqa: BLE001 (of any kind: it is the user's own)
                    failed[key] = ConfigError(f"resource {key!r}: {_why(e)}")
            yield Opened(found=found, failed=failed)
        finally:
            for context in reversed(contexts):
                context.__exit__(None, None, None)

    @property
    def resource_keys(self) -> tuple[str, ...]:
        """Of all resources that the definitions name."""
        return tuple(dict.fromkeys(k for r in self.definitions for k in r.get_top_level_resources()))


def load(where: Sequence[Pointer]) -> CodeLocation:
    """Import the user's code and take its definitions.

    Raises:
        CannotLoad: it cannot be imported, or holds no definitions.
        RivetError: an export is refused.
    """
    return CodeLocation(definitions=tuple(_load_one(pointer) for pointer in where))


def _load_one(pointer: Pointer) -> dg.RepositoryDefinition:
    directory = str(Path(pointer.working_directory or ".").resolve())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = _module(pointer)
        found = _definitions_in(module, pointer)
        return found if isinstance(found, dg.RepositoryDefinition) else found.get_repository_def()
    except (CannotLoad, RivetError):
        raise
    except Exception as e:
        raise CannotLoad(f"{pointer.shown}: {_why(e)}") from e


def _module(pointer: Pointer) -> ModuleType:
    if pointer.module_name is not None:
        return importlib.import_module(pointer.module_name)
    path = Path(str(pointer.python_file))
    if not path.is_file():
        raise CannotLoad(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CannotLoad(f"{path}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _definitions_in(module: ModuleType, pointer: Pointer) -> dg.Definitions | dg.RepositoryDefinition:
    if pointer.attribute is not None:
        if not hasattr(module, pointer.attribute):
            raise CannotLoad(f"{pointer.shown}: has no {pointer.attribute!r}")
        candidates = {pointer.attribute: getattr(module, pointer.attribute)}
    else:
        candidates = dict(vars(module))
    found = {id(d): d for name, value in candidates.items() if (d := _as_definitions(value, name, pointer))}
    if len(found) != 1:
        what = f"{len(found)} of them; give -a/--attribute" if found else "none"
        raise CannotLoad(f"{pointer.shown}: expected one dagster.Definitions in it, found {what}")
    (only,) = found.values()
    return only


def _as_definitions(value: Any, name: str, pointer: Pointer) -> dg.Definitions | dg.RepositoryDefinition | None:
    if isinstance(value, dg.Definitions | dg.RepositoryDefinition):
        return value
    # What `@dg.definitions` makes of a function; its class has no public name.
    is_lazy = callable(value) and hasattr(value, "load_fn")
    if is_lazy or (pointer.attribute == name and callable(value)):
        made = value()
        return made if isinstance(made, dg.Definitions | dg.RepositoryDefinition) else None
    return None


def _why(error: BaseException) -> str:
    """The text of the user's or Dagster's own error, in a line, without secrets."""
    chain = [error]
    while below := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(below)
    for text in map(str, chain):
        if _UNSET in text and "not set" in text:
            name = text.partition(f'{_UNSET} "')[2].partition('"')[0]
            return f"the environment variable {name} is not set; set it" if name else masked(text)
    # Dagster says where it was called, and what was raised there says why.
    why = next((e for e in chain if not type(e).__module__.startswith("dagster")), error)
    return f"{type(why).__name__}: {masked(' '.join(str(why).split()))}"
