"""The tree is the architecture: its size, its layers, its seam, and what importing it costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import rivet_dagster

ROOT = Path(rivet_dagster.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
MAX_LINES = 300

# The only modules that create or swap objects at a destination, and those that take some away. `testing` tries out
# other people's destinations, and `probe` what a destination lets us do.
WRITERS = {"control.py", "parts.py", "probe.py", "testing.py"}
REMOVERS = {"control.py", "parts.py", "readback.py", "recovery.py"}

# What may know one store from another.
KNOWS_STORES = ("destinations/", "orchestration/io_managers.py")
STORES = {"local", "s3", "gcs", "azure", "stdout"}

# Loaded by the code that uses them, when it uses them.
HEAVY = {
    "adbc_driver_manager",
    "adbc_driver_postgresql",
    "adbc_driver_sqlite",
    "awscrt",
    "azure",
    "boto3",
    "botocore",
    "dagster_aws",
    "dagster_azure",
    "dagster_gcp",
    "duckdb",
    "google",
    "numpy",
    "pandas",
    "psycopg2",
    "pyarrow",
}


def name_of(module: Path) -> str:
    return module.relative_to(ROOT).as_posix()


def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"), filename=str(module))


def calls_on_a_destination(module: Path, methods: set[str]) -> Iterator[ast.Call]:
    """Calls that only a destination can answer: by the name of the receiver, or by `expect=`, which is theirs."""
    for call in ast.walk(parsed(module)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in methods:
            receiver = ast.unparse(call.func.value).lower()
            if "destination" in receiver or any(keyword.arg == "expect" for keyword in call.keywords):
                yield call


def users_of(methods: set[str]) -> set[str]:
    """The modules outside of `destinations` that call one of these methods of a destination."""
    names = {name_of(module) for module in MODULES if any(calls_on_a_destination(module, methods))}
    return {name for name in names if not name.startswith("destinations/")}


def private_imports(module: Path) -> Iterator[str]:
    for node in ast.walk(parsed(module)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.startswith("dagster") and "._" in name)


def public_names(module: Path) -> list[str]:
    for node in parsed(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def as_ruff_sorts(names: list[str]) -> list[str]:
    """Constants, classes, then functions; each name once."""
    return sorted(set(names), key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def stores_asked_for(module: Path) -> Iterator[str]:
    """The names of stores that a comparison or a `case` mentions."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Compare | ast.match_case):
            constants = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)]
            yield from (value for value in constants if isinstance(value, str) and value in STORES)


def test_there_are_modules_to_judge():
    assert {"commit.py", "contract.py", "destinations/local.py"} <= {name_of(module) for module in MODULES}


def test_every_module_is_short():
    lines = {name_of(module): len(module.read_text(encoding="utf-8").splitlines()) for module in MODULES}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_every_module_says_what_it_is():
    assert [name_of(module) for module in MODULES if not ast.get_docstring(parsed(module))] == []


def test_every_module_is_named_after_an_idea():
    empty = {"utils", "util", "helpers", "helper", "base", "common", "misc"}
    assert [name_of(module) for module in MODULES if empty & set(module.relative_to(ROOT).with_suffix("").parts)] == []


def test_only_public_names_of_dagster_are_used():
    assert {name_of(module): found for module in MODULES if (found := list(private_imports(module)))} == {}


def test_public_names_are_listed_in_order():
    assert [name_of(m) for m in MODULES if public_names(m) != as_ruff_sorts(public_names(m))] == []


def test_only_destinations_know_one_store_from_another():
    judged = [module for module in MODULES if not name_of(module).startswith(KNOWS_STORES)]
    assert {name_of(module): found for module in judged if (found := list(stores_asked_for(module)))} == {}


def test_every_public_name_can_be_imported():
    assert [name for name in rivet_dagster.__all__ if not hasattr(rivet_dagster, name)] == []
    assert set(rivet_dagster.__all__) <= set(dir(rivet_dagster))


def test_only_the_seam_writes_to_a_destination():
    assert users_of({"write"}) == WRITERS


def test_only_the_seam_takes_objects_away():
    assert users_of({"remove", "move"}) == REMOVERS


def test_importing_the_package_loads_no_sdk_and_no_driver():
    script = "import rivet_dagster, json, sys; print(json.dumps(sorted(sys.modules)))"
    fresh = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    loaded = {name.split(".")[0] for name in json.loads(fresh.stdout)}
    assert "rivet_dagster" in loaded
    assert loaded & HEAVY == set()
    # Every one of them is installed here, so that its absence above means something.
    assert {"adbc_driver_manager", "azure", "boto3", "duckdb", "google", "pandas", "pyarrow"} <= set(
        packages_distributions()
    )


def test_imports_point_one_way():
    """The contracts in pyproject.toml, by import-linter."""
    project = ROOT.parent
    script = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    linted = subprocess.run(
        [sys.executable, "-c", script, "--no-cache"],
        check=False,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert "0 broken" in linted.stdout
