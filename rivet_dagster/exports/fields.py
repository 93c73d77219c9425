"""What the settings that people write have in common: nobody changes them afterwards, and none is misspelt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict
from typing_extensions import Self

from rivet_dagster.errors import ConfigError

__all__ = ["Fields", "in_one_order", "refuse_unknown"]


class Fields(BaseModel):
    """Settings by name.

    Raises:
        ConfigError: there is no setting of this name; says which one may be meant.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Not in __init__, which would judge what a model reads of data, too: there, a mistake has a place to be named.
    def __new__(cls, *_args: Any, **given: Any) -> Self:
        """Look at the names before pydantic does, which does not say what may be meant."""
        refuse_unknown(cls, given)
        return super().__new__(cls)


def in_one_order(value: Any) -> Any:
    """Sets as lists: they have another order in each process, and what is made of settings must not."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, Mapping):
        return {name: in_one_order(one) for name, one in value.items()}
    return value


def refuse_unknown(cls: type[BaseModel], given: Iterable[str]) -> None:
    """Refuse what is no setting of a class that takes no others.

    Raises:
        ConfigError: there is no setting of this name; says which one may be meant.
    """
    if cls.model_config.get("extra") != "forbid":
        return
    aliases = (f.alias for f in cls.model_fields.values() if f.alias is not None)
    known = [*cls.model_fields, *aliases]
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            instead = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise ConfigError(f"{cls.__name__}({name}=…): there is no such setting; {instead}")
