"""Dagster projects in which components are loaded as Dagster loads them, but in this process."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import rivet_dagster as rd


class Project:
    """A folder as `create-dagster` makes it, with the component's YAML in folders of its own.

    Attributes:
        root: the folder.
        defs: where the definitions are.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = f"project_{abs(hash(root)):x}"
        self.defs = root / "src" / self.name / "defs"
        self.defs.mkdir(parents=True)
        for package in (self.defs, self.defs.parent):
            (package / "__init__.py").write_text("")
        (root / "pyproject.toml").write_text(
            f'[project]\nname = "{self.name}"\nversion = "0"\n\n[tool.dg]\ndirectory_type = "project"\n\n'
            f'[tool.dg.project]\nroot_module = "{self.name}"\n'
        )

    def write(self, attributes: str, *, at: str = "lake", kind: str = "rivet_dagster.ExportsComponent") -> Path:
        """Write a component's YAML; another one at the same place follows as another document."""
        path = self.defs / at / "defs.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = f"type: {kind}\nattributes:\n{textwrap.indent(textwrap.dedent(attributes).strip(), '  ')}\n"
        path.write_text(f"{path.read_text()}---\n{document}" if path.exists() else document)
        return path

    def load(self) -> dg.Definitions:
        """All definitions.

        Raises:
            ConfigError: what Dagster's own errors were caused by.
        """
        with self._importable():
            try:
                return dg.load_from_defs_folder(path_within_project=self.defs)
            except Exception as e:
                cause: BaseException = e
                while cause.__cause__ is not None:
                    cause = cause.__cause__
                if isinstance(cause, rd.ConfigError):
                    raise cause from None
                raise

    @contextmanager
    def _importable(self) -> Iterator[None]:
        sys.path.insert(0, str(self.root / "src"))
        try:
            yield
        finally:
            sys.path.remove(str(self.root / "src"))
            for module in [m for m in sys.modules if m.partition(".")[0] == self.name]:
                del sys.modules[module]


def names(defs: dg.Definitions) -> dict[str, set[str]]:
    """What there is, by kind."""
    repository = defs.get_repository_def()
    graph = repository.asset_graph
    return {
        "assets": {k.to_user_string() for k in graph.materializable_asset_keys},
        "checks": {f"{k.asset_key.to_user_string()}:{k.name}" for k in graph.asset_check_keys},
        "jobs": {j.name for j in repository.get_all_jobs()} - {"__ASSET_JOB"},
        "schedules": {s.name for s in repository.schedule_defs},
        "resources": set(repository.get_top_level_resources()) - {"io_manager"},
    }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for variable in ("LAKE", "NOPE", "DATABASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    return Project(tmp_path / "project")


def mistakes(project: Project, path: Path) -> list[str]:
    """What is wrong with a component's YAML, line by line; the file is named `defs.yaml`."""
    with pytest.raises(rd.ConfigError) as caught:
        project.load()
    return str(caught.value).replace(str(path), "defs.yaml").splitlines()


__all__: list[Any] = ["Project", "mistakes", "names", "project"]
