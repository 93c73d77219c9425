"""Templates in a component's YAML: rendered by Dagster, but a variable that is not set never becomes "None"."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace
from typing import Any

import dagster as dg

from rivet_dagster.orchestration.component_mistakes import Mistake, Origin, Path

__all__ = ["rendered"]

_TEMPLATE = re.compile(r"\{[{%#]")
# Shorter ones may stand in a message for another reason.
_LEAST_HIDDEN = 4


class _Environment:
    """What `env` is in a template: as Dagster's own, but it notes what is not set."""

    def __init__(self) -> None:
        self.unset: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("jinja", "_")):
            raise AttributeError(name)
        return self(name, None)

    def __call__(self, name: str, *default: Any) -> Any:
        if name not in os.environ and not any(d is not None for d in default):
            self.unset.append(name)
        return os.environ.get(name, *default)


def rendered(written: Any, context: dg.ComponentLoadContext) -> tuple[Any, Origin]:
    """Render all templates in a component's attributes.

    Args:
        written: the attributes as they stand in the file.
        context: that the component is loaded in.

    Returns:
        The attributes, and where they are from.

    Raises:
        ConfigError: a template cannot be rendered, or a variable of the environment is not set; names each.
    """
    resolution = context.resolution_context.with_scope(
        context=SimpleNamespace(
            project_root=str(context.project_root.resolve()),
            load_component=context.load_component,
            build_defs=context.build_defs,
        )
    )
    became: dict[str, str] = {}
    mistakes: list[Mistake] = []

    def render(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: render(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [render(inner, (*path, i)) for i, inner in enumerate(value)]
        if not isinstance(value, str) or not _TEMPLATE.search(value):
            return value
        environment = _Environment()
        result: Any = None
        try:
            result = resolution.with_scope(env=environment).resolve_value(value)
        except Exception as e:  # noqa: BLE001 (a template may raise anything)
            mistakes.append(Mistake(path=path, text=f"the template {value} cannot be rendered: {_last_line(e)}"))
            return value
        if environment.unset and (result is None or "None" in str(result)):
            names = ", ".join(dict.fromkeys(environment.unset))
            text = f"{value}: expected the environment variable {names} to be set, found that it is not"
            mistakes.append(Mistake(path=path, text=f"{text}; set it, or write {{{{ env('{names}', 'a default') }}}}"))
        if isinstance(result, str) and len(result) >= _LEAST_HIDDEN:
            became[result] = value
        return result

    result = render(written, ())
    origin = Origin(written=written, positions=context.resolution_context.source_position_tree, rendered=became)
    if mistakes:
        raise origin.tell(mistakes)
    return result, origin


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
