"""What may be added to a dataset: rows of the same export, under the same columns. Pure."""

from __future__ import annotations

from dataclasses import asdict
from itertools import zip_longest

from rivet_dagster.errors import ContractError
from rivet_dagster.manifest import Column, Content, Identity, Manifest

__all__ = ["check_columns", "check_identity"]

_REFRESH = "export with full_refresh: true in the run's config to begin the dataset anew"


def check_identity(identity: Identity, head: Manifest) -> None:
    """Refuse to continue another export's dataset, or another tool's.

    Raises:
        ContractError: names the fields that differ, both values of each, and the remedy.
    """
    where = head.destination_uri
    if head.content is None:
        raise ContractError(
            f"{where}: expected a dataset of this export to add to, found one that another tool wrote, as "
            f"{head.export_name!r}; {_REFRESH}, or choose another place"
        )
    ours, theirs = asdict(identity), asdict(head.content.identity)
    differ = [f"{name} is {ours[name]!r}, there it is {theirs[name]!r}" for name in ours if ours[name] != theirs[name]]
    if not differ and head.content.cursor is None:
        differ = ["this export has a cursor, there is none"]
    if differ:
        raise ContractError(
            f"{where}: expected a dataset that this export can add to, found another one: {'; '.join(differ)}; "
            f"set it back, or {_REFRESH}"
        )


def check_columns(content: Content, head: Manifest) -> None:
    """Refuse rows under other columns than those that are there.

    Raises:
        ContractError: names the column and the remedy.
    """
    there = head.content.columns if head.content else ()
    found = [_difference(ours, theirs) for ours, theirs in zip_longest(content.columns, there)]
    differ = next((text for text in found if text), None)
    if differ is None and head.format != content.format:
        differ = f"the parts are {head.format}, this export writes {content.format}"
    if differ is not None:
        raise ContractError(
            f"{head.destination_uri}: expected the columns of the dataset, to add rows under them, found others: "
            f"{differ}; {_REFRESH}"
        )


def _difference(ours: Column | None, theirs: Column | None) -> str | None:
    if theirs is None:
        return f"column {ours.name!r} ({ours.type}) is new" if ours else None
    if ours is None:
        return f"column {theirs.name!r} ({theirs.type}) is gone"
    if ours.name != theirs.name:
        return f"where {theirs.name!r} was, {ours.name!r} is"
    return f"column {ours.name!r} was {theirs.type} and is {ours.type}" if ours.type != theirs.type else None
