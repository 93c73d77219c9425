"""What the settings that people write have in common: nobody changes them afterwards, and none is misspelt."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict
from typing_extensions import Self

from rivet_dagster.errors import ConfigError

__all__ = ["Fields"]


class Fields(BaseModel):
    """Settings by name.

    Raises:
        ConfigError: there is no setting of this name; says which one may be meant.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Not in __init__, which would judge what a model reads of data, too: there, a mistake has a place to be named.
    def __new__(cls, *_args: Any, **given: Any) -> Self:
        """Look at the names before pydantic does, which does not say what may be meant."""
        known = [*cls.model_fields]
        for name in given:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                instead = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
                raise ConfigError(f"{cls.__name__}({name}=…): there is no such setting; {instead}")
        return super().__new__(cls)
