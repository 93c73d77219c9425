"""What may be added to a dataset: rows of the same export, under columns that those before can have too. Pure."""

from __future__ import annotations

from dataclasses import asdict

from rivet_dagster.errors import ContractError
from rivet_dagster.exports.drift import Drift
from rivet_dagster.manifest import Content, Identity, Manifest

__all__ = ["check_growth", "check_identity"]

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


def check_growth(content: Content, head: Manifest, drift: Drift, *, allowed: bool) -> None:
    """Refuse rows under other columns than those that are there, but for new ones in which those rows can be NULL.

    Args:
        content: of the rows.
        head: what they are added to.
        drift: of their columns.
        allowed: whether new columns may come.

    Raises:
        ContractError: names the columns and the remedy.
    """
    known = {c.name for c in head.content.columns} if head.content else set()
    before = [c.name for c in head.content.columns] if head.content else []
    now = [c.name for c in content.columns if c.name in known]
    never_null = [c.name for c in drift.added if not c.nullable]
    differ = str(drift)
    if drift.removed or drift.retyped:
        grows = False
    elif now != before:
        grows, differ = False, f"their order was {', '.join(before)} and is {', '.join(now)}"
    elif head.format != content.format:
        grows, differ = False, f"the parts are {head.format}, this export writes {content.format}"
    elif never_null:
        grows, differ = False, f"{differ}, and {', '.join(map(repr, never_null))} can be NULL in none, as it is there"
    else:
        grows = True
    if grows and (allowed or not drift):
        return
    remedy = 'set on_schema_drift="allow" to add them, NULL in the rows that are there, or ' if grows else ""
    raise ContractError(
        f"{head.destination_uri}: expected the columns of the dataset, to add rows under them, found others: "
        f"{differ}; {remedy}{_REFRESH}"
    )
