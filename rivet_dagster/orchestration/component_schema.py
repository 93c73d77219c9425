"""The JSON schema of the YAML face: what an editor completes and explains, and `dg check yaml` judges.

It is pydantic's own, with three changes: a template may stand for any value; of a union, the name that tells its arms
apart decides which one is judged, so that a mistake is named where it is; and nothing refers to anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler, RootModel
from pydantic_core import CoreSchema

__all__ = ["FieldsOf", "attributes_model"]

_TEMPLATE = {"type": "string", "pattern": r"\{[{%]"}
_SHOWN = ("description", "default", "examples")


class FieldsOf:
    """In an annotation: in the schema, these models stand there; which one, its `type` says."""

    def __init__(self, models: Any) -> None:
        """Take a function that gives the models; it is called when the schema is wanted."""
        self._models = models

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """What pydantic asks an annotation for."""
        arms = [handler(model.__pydantic_core_schema__) for model in self._models()]
        if len(arms) == 1:
            return arms[0]
        return {"oneOf": arms, "discriminator": {"propertyName": "type"}}


def attributes_model(component: type[BaseModel]) -> type[RootModel[dict[str, Any]]]:
    """What a component's attributes are for Dagster's tools: any mapping, with the schema of the component.

    The mapping itself is judged when the component is loaded, where it can be said what is wrong, and where.
    """

    class Attributes(RootModel[dict[str, Any]]):
        @classmethod
        def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
            return schema_of(component)

    Attributes.__name__ = f"{component.__name__}Attributes"
    Attributes.__doc__ = component.__doc__
    return Attributes


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a model's YAML."""
    schema = model.model_json_schema()
    found = _templated(schema, schema.get("$defs", {}))
    return {k: v for k, v in found.items() if k != "$defs"}


def _templated(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A schema in which any value may be a template, but for the whole of it."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        schema = {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
    made: dict[str, Any] = {}
    for key, value in schema.items():
        match key:
            case "properties":
                made[key] = {name: _or_template(inner, definitions) for name, inner in value.items()}
            case "items" | "additionalProperties" if isinstance(value, Mapping):
                made[key] = _or_template(value, definitions)
            case "anyOf" | "oneOf" | "allOf" | "prefixItems":
                made[key] = [_templated(inner, definitions) for inner in value]
            case "$defs" | "discriminator" | "title":
                continue
            case "default" if value is None:
                continue
            case "description":
                made[key] = value.partition("\n\n")[0]
            case _:
                made[key] = value
    if name := schema.get("discriminator", {}).get("propertyName"):
        made = _decided(made, name)
    return _flat(made)


def _or_template(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    inner = _templated(schema, definitions)
    if inner.get("type") == "string" and not {"enum", "const", "pattern"} & inner.keys():
        return inner
    shown = {k: inner.pop(k) for k in _SHOWN if k in inner}
    return {**shown, "if": _TEMPLATE, "then": {}, "else": inner} if inner else shown


def _decided(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """A union as: if the name is this, then that arm."""
    arms = schema.pop("oneOf")
    names = [_names_of(arm["properties"][name]) for arm in arms]
    said = {k: v for k, v in arms[0]["properties"][name].items() if k in _SHOWN}
    return {
        **schema,
        "type": "object",
        "properties": {name: {**said, "enum": [n for of_one in names for n in of_one]}},
        "required": [name],
        "allOf": [
            {"if": {"properties": {name: {"enum": of_one}}, "required": [name]}, "then": arm}
            for arm, of_one in zip(arms, names, strict=True)
        ],
    }


def _names_of(judged: Mapping[str, Any]) -> list[str]:
    judged = judged.get("else", judged)
    return list(judged.get("enum", [judged.get("const")]))


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """Arms of which one is judged: without the one for "nothing", which is left out, and by whether it is a text."""
    given = schema.pop("anyOf", []) + schema.pop("oneOf", [])
    arms = [arm for arm in given if arm != {"type": "null"}]
    texts = [arm for arm in arms if arm.get("type") == "string"]
    others = [arm for arm in arms if arm not in texts]
    if texts and others:
        return {**schema, "if": {"type": "string"}, "then": _either(texts), "else": _either(others)}
    return {**(_either(arms) if arms else {}), **schema}


def _either(arms: list[dict[str, Any]]) -> dict[str, Any]:
    return arms[0] if len(arms) == 1 else {"anyOf": arms}
