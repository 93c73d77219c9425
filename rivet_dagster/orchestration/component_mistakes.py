"""What is wrong in a component's YAML, as one text: where, what was expected, what was found, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from rivet_dagster.errors import ConfigError

__all__ = [
    "Mistake",
    "Origin",
    "Path",
    "as_mistake",
    "did_you_mean",
    "mistakes_of",
    "nested",
    "one_of",
    "shown_path",
    "told",
]

Path = tuple[str | int, ...]
"""Of a field, from the component's attributes."""

_KINDS = {
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping of its fields",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "{} or more"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "{} or less"),
    "less_than": ("lt", "less than {}"),
}
# What cannot be a name alone, with the least that it takes.
_IN_FULL = {"incremental": "cursor_column: updated_at", "time_window": "time_column: created_at, days: 7"}
# Whatever field it was put into by mistake.
_PASSWORD = re.compile(r"://[^\s/@:]*:[^\s/@]*@")
# A message of our own may begin with where it is from, which the path says as well.
_PREFIX = re.compile(r"(?:export '[^']*': )?(?:(?:\w+\()?(?P<field>\w[\w.]*)(?:=…\))?: )?(?=\S)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing that is wrong: where, and what was expected, found and is to be done."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a component was written.

    Attributes:
        written: its attributes as they stand in the file, templates and all.
        positions: Dagster's tree of where in the file each of them is; `None` for a component made in Python.
        rendered: what templates became, and how they were written: what came from the environment is never shown.
    """

    written: Any = field(default_factory=dict)
    positions: Any = None
    rendered: Mapping[str, str] = field(default_factory=dict)

    def tell(self, mistakes: Sequence[Mistake]) -> ConfigError:
        """All mistakes as one error, in the order of the file."""
        lines = [self._shown(m) for m in sorted(mistakes, key=lambda m: self._position(m)[1])]
        return ConfigError("\n".join(dict.fromkeys(lines)))

    def _position(self, mistake: Mistake) -> tuple[str, int]:
        if self.positions is None:
            return "", 0
        found, _ = self.positions.lookup_closest_and_path(["attributes", *mistake.path], None)
        return str(found.filename), int(found.start.line)

    def _shown(self, mistake: Mistake) -> str:
        text = mistake.text
        for became, written in self.rendered.items():
            text = text.replace(became, written)
        text = _PASSWORD.sub("://***@", text)
        file, line = self._position(mistake)
        return ": ".join(filter(None, [f"{file}:{line}" if file else "", shown_path(mistake.path), text]))


def shown_path(path: Path) -> str:
    """A path as people write it: `exports[2].mode.cursor_column`."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")


def told(error: ConfigError) -> PydanticCustomError:
    """An error of ours as one of pydantic's, which knows where it happened."""
    return PydanticCustomError("rivet", "{said}", {"said": str(error)})


def nested(error: ValidationError, model: type[BaseModel]) -> PydanticCustomError:
    """All that a model found wrong, where it was validated by the validator of another one's field."""
    return PydanticCustomError("nested", "{count} mistakes", {"count": error.error_count(), "of": (error, model)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    path: Path
    error: ErrorDetails
    fields: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.error["type"]


def mistakes_of(error: ValidationError, model: type[BaseModel], data: Any) -> list[Mistake]:
    """What a model found wrong in data."""
    found = list(_found(error, model, data, ()))
    # The arms of a union that were not meant find fault as well: the one that was looked into deeper was meant.
    paths = {f.path for f in found}
    meant = [f for f in found if not (f.kind.endswith("_type") and any(_below(p, f.path) for p in paths))]
    grouped: dict[Path, list[_Found]] = {}
    for f in meant:
        grouped.setdefault(f.path, []).append(f)
    return [as_mistake(path, _text(same, data), data) for path, same in grouped.items()]


def as_mistake(path: Path, text: str, data: Any) -> Mistake:
    """A mistake at a path, or at the field below it that the text begins with."""
    matched = _PREFIX.match(text)
    if matched is None:
        return Mistake(path=path, text=text)
    rest = text[matched.end() :]
    if matched["field"] is None:
        first = re.match(r"\w+", rest)
        here = _value(data, path)
        below = first is not None and isinstance(here, Mapping) and first[0] in here
        return Mistake(path=(*path, first[0]) if first is not None and below else path, text=rest)
    named = matched["field"].split(".")
    steps = named[1:] if path and named[0] == path[-1] else named
    inside = steps != named
    for step in steps:
        here = _value(data, path)
        if not isinstance(here, Mapping) or step not in here:
            break
        path, inside = (*path, step), True
    return Mistake(path=path, text=rest if inside else text)


def _found(error: ValidationError, model: type[BaseModel], data: Any, prefix: Path) -> Iterator[_Found]:
    for e in error.errors(include_url=False):
        path = _path(e, _value(data, prefix))
        if e["type"] == "nested":
            inner, of = e["ctx"]["of"]
            yield from _found(inner, of, data, (*prefix, *path))
            continue
        fields = _fields(model, path[:-1], _value(data, prefix))
        yield _Found(path=(*prefix, *path), error=e, fields=fields)


def _path(error: ErrorDetails, data: Any) -> Path:
    """Where an error is in the data: without the names of a union's arms, which pydantic adds."""
    path: list[str | int] = []
    for i, part in enumerate(error["loc"]):
        listed = isinstance(data, list | tuple) and isinstance(part, int)
        if listed or (isinstance(data, Mapping) and part in data):
            data = data[part]
        elif not (error["type"] == "missing" and i == len(error["loc"]) - 1):
            continue
        path.append(part)
    return tuple(path)


def _fields(model: type[BaseModel], path: Path, data: Any) -> tuple[str, ...]:
    """The fields that a mapping at a path may have."""
    models = [model]
    for part in path:
        data = _value(data, (part,))
        below = [m.model_fields[part].annotation for m in models if isinstance(part, str) and part in m.model_fields]
        if below:
            arms = [arm for annotation in below for arm in _models(annotation)]
            models = [arm for arm in arms if _is_meant(arm, data)] or arms
    return tuple(dict.fromkeys(name for m in models for name in m.model_fields))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _is_meant(model: type[BaseModel], data: Any) -> bool:
    """Whether the name that tells a union's arms apart is this one's."""
    names = ((name, f.annotation) for name, f in model.model_fields.items() if get_origin(f.annotation) is Literal)
    given = data if isinstance(data, Mapping) else {}
    return all(given.get(name) in get_args(annotation) for name, annotation in names if name in given)


def _text(same: Sequence[_Found], data: Any) -> str:
    first = same[0]
    value, context = _value(data, first.path), first.error.get("ctx", {})
    found = f"found {_shown_value(value)}"
    match first.kind:
        case "rivet" | "value_error":
            text = f"{context.get('said', first.error['msg'])}{_in_full(first.path, value)}"
        case "missing":
            text = "expected a value, found none; it is required"
        case "extra_forbidden":
            text = _no_field(str(first.path[-1]), first.fields)
        case "literal_error":
            known = re.findall(r"'([^']*)'", context["expected"])
            text = f"expected {one_of(known)}, {found}{did_you_mean(value, known)}"
        case "union_tag_invalid":
            known, tag = re.findall(r"'([^']*)'", context["expected_tags"]), str(context["tag"])
            name = context["discriminator"].strip("'")
            text = f"{name}: expected {one_of(known)}, found {tag!r}{did_you_mean(tag, known)}"
        case "union_tag_not_found":
            text = f"expected the field {context['discriminator']} to say which one it is, found none"
        case "too_short":
            text = "expected at least one, found none"
        case "is_instance_of":
            text = f"expected a mapping of its fields, or a template that gives a {context['class']}, {found}"
        case kind if kind in _BOUNDS:
            bound, words = _BOUNDS[kind]
            text = f"expected {words.format(context[bound])}, {found}"
        case _:
            text = f"expected {_kinds(same)}, {found}"
    return text


def _in_full(path: Path, value: Any) -> str:
    short = path[-1:] == ("mode",) and isinstance(value, str) and value in _IN_FULL
    return f"; write mode: {{kind: {value}, {_IN_FULL[value]}}}" if short else ""


def _kinds(same: Sequence[_Found]) -> str:
    kinds = dict.fromkeys(_KINDS.get(re.sub(r"_(type|parsing|from_float).*", "", f.kind), "") for f in same)
    return " or ".join(filter(None, kinds)) or "something else"


def _no_field(name: str, known: Sequence[str]) -> str:
    if f"{name}_env" in known:
        return f"a secret is not written here; put it into an environment variable and give {name}_env: ITS_NAME"
    close = get_close_matches(name, known, n=1)
    instead = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
    return f"there is no such field; {instead}"


def one_of(known: Sequence[str]) -> str:
    """Names to choose from."""
    return " or ".join(filter(None, [", ".join(known[:-1]), known[-1]]))


def did_you_mean(value: Any, known: Sequence[str]) -> str:
    """The end of a message about a name that is not known."""
    close = get_close_matches(str(value), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _below(path: Path, above: Path) -> bool:
    return len(path) > len(above) and path[: len(above)] == above


def _value(data: Any, path: Path) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _shown_value(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str | int | float):
        return repr(value)
    return "a mapping" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else type(value).__name__
