"""Which PostgreSQL transactions may still commit rows behind a cursor, and waiting for them.

A transaction takes its start time and its ids before it commits, so that rows may appear below values that were read
already. Whoever had a transaction open when the end of a window was noted must have ended before the rows are read:
`pg_locks` shows each one's virtual transaction id to every role. Sessions of this package write nothing; they are known
by an advisory lock, and not by a name that others may have.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from rivet_dagster.errors import ConfigError, SourceError
from rivet_dagster.rows import Query
from rivet_dagster.sources.description import table_text, what_is_read
from rivet_dagster.sources.postgres_keys import Rows, text_literal
from rivet_dagster.sources.postgres_session import OURS
from rivet_dagster.windows import Cursor, Settling

__all__ = ["check_promise", "check_server", "last_drawn", "relation_literal", "server_of", "settled", "unseen"]

# A backend reads its clock a moment before its transaction can be seen.
_GRACE_S = 0.05
_POLL_S = 0.1
_NAMED = 5

# Identity and serial columns; of partitions and children, too, which may have their own.
_SEQUENCES = """
WITH here AS (
    SELECT d.classid, d.objid, d.classid = 'pg_attrdef'::regclass OR d.deptype = 'i' AS drawn
    FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE d.refclassid = 'pg_class'::regclass AND a.attname = {column} AND d.refobjid IN ({tables})
)
SELECT s.seqcache::int8 AS cache, s.seqincrement > 0 AND NOT s.seqcycle AS rises, s.seqrelid::regclass::text AS name,
       bool_or(f.drawn) AS drawn,
       CASE WHEN has_sequence_privilege(s.seqrelid, 'SELECT, USAGE') THEN pg_sequence_last_value(s.seqrelid) END AS last
FROM pg_sequence s JOIN (
    SELECT objid, drawn FROM here WHERE classid = 'pg_class'::regclass
    UNION ALL SELECT e.refobjid, drawn FROM here JOIN pg_depend e USING (classid, objid)
    WHERE classid = 'pg_attrdef'::regclass AND e.refclassid = 'pg_class'::regclass
) f ON f.objid = s.seqrelid
GROUP BY s.seqrelid, 1, 2, 3 ORDER BY 3
"""
# Native subscriptions say which tables they write to; those of extensions are known by their origins alone.
_SUBSCRIBED = """
SELECT (SELECT count(*) FROM pg_subscription_rel{only})
       + (SELECT count(*) FROM pg_replication_origin WHERE roname !~ '^pg_[0-9]+') AS n
"""
_ELSEWHERE = "SELECT count(*)::int8 AS n FROM pg_class WHERE relkind IN ('f', 'm') AND oid IN ({tables})"
_BELOW = """
WITH RECURSIVE below(oid) AS (
    SELECT to_regclass({{0}})::oid UNION SELECT e.lower FROM below JOIN ({}) e ON e.upper = below.oid
) SELECT oid FROM below
"""
_INHERITS = "SELECT inhparent AS upper, inhrelid AS lower FROM pg_inherits"
_VIEWED = """
SELECT r.ev_class, d.refobjid FROM pg_rewrite r JOIN pg_depend d ON d.objid = r.oid
WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND r.ev_type = '1'
"""
# A table with all of its partitions and children; and what is read through views, too.
_FAMILY = _BELOW.format(_INHERITS)
_TABLES = _BELOW.format(f"{_INHERITS} UNION ALL {_VIEWED}")
# Several transactions of one message share its start, `now()`, and between two of them nothing is open: by a clock, a
# client that is at work counts from there. Background workers may say that they always are; parallel ones only read.
# A WAL sender may write as any client, but not while it streams; it does not note when its transactions began.
_AT_WORK = "a.backend_type IN ('client backend', 'walsender') AND a.state <> 'idle'"
_OPEN = f"""
SELECT coalesce(l.virtualtransaction, 'process ' || a.pid) AS id, coalesce(l.pid, a.pid)::int8 AS pid,
       CASE WHEN a.backend_type = 'walsender' THEN a.backend_start
            ELSE least(a.xact_start, CASE WHEN {_AT_WORK} THEN a.query_start END) END AS since,
       a.usename::text AS role, a.application_name AS application
FROM (SELECT * FROM pg_locks WHERE locktype = 'virtualxid' AND granted AND mode = 'ExclusiveLock') l
     FULL JOIN pg_stat_activity a ON a.pid = l.pid
WHERE coalesce(l.pid, a.pid) <> pg_backend_pid() AND (l.pid IS NOT NULL OR {{at_work}})
  AND (a.pid IS NULL OR a.usesysid IS NOT NULL AND a.datname = current_database())
  AND a.backend_type IS DISTINCT FROM 'parallel worker'
  AND coalesce(l.pid, a.pid) NOT IN (
      SELECT w.pid FROM pg_stat_replication w WHERE w.state IN ('catchup', 'streaming', 'backup'))
  AND (l.pid IS NULL OR l.virtualtransaction NOT IN (
      SELECT o.virtualtransaction FROM pg_locks o
      WHERE o.locktype = 'advisory' AND o.granted AND o.classid = {OURS[0]} AND o.objid = {OURS[1]} AND o.objsubid = 2))
"""
# Of others, only these roles see when they began, and only where anybody notes it.
_SEES_WORK = """
SELECT current_user::text AS role, pg_has_role('pg_read_all_stats', 'USAGE') AS granted,
       current_setting('track_activities')::bool AS tracked
"""
_PREPARED = """
SELECT 'prepared ' || transaction::text AS id, gid AS name, owner::text AS role FROM pg_prepared_xacts
WHERE database = current_database()
"""


def relation_literal(query: Query) -> str:
    """The name of a query's table as a text literal."""
    return text_literal(table_text(query, most=2, fold=True))


def server_of(rows: Rows) -> str:
    """Which server answers; another text after it was started again."""
    started, replica = rows("SELECT pg_postmaster_start_time()::text AS at, pg_is_in_recovery() AS r")[0].values()
    return f"{'replica' if replica else 'primary'} since {started}"


def check_server(query: Query, rows: Rows) -> None:
    """Refuse to read a window elsewhere than where it was fixed: other rows are committed there.

    Raises:
        SourceError: transient, another server answers.
    """
    expected = query.window.server if query.window is not None else ""
    if expected and (found := server_of(rows)) != expected:
        raise SourceError(
            f"{what_is_read(query)}: expected to read where the writers were waited for, the {expected}, found the "
            f"{found}; of several hosts, let target_session_attrs=read-write choose; nothing was exported, run again",
            transient=True,
        )


def last_drawn(query: Query, cursor: Cursor, rows: Rows) -> int | None:
    """The last id of the one sequence that a table's column draws from; `None` where the role may not know."""
    if query.table is None or cursor.term.column is None:
        return None
    tables, column = _FAMILY.format(relation_literal(query)), text_literal(cursor.term.column)
    drawn = [row for row in rows(_SEQUENCES.format(tables=tables, column=column)) if row["drawn"]]
    found: int | None = drawn[0]["last"] if len(drawn) == 1 else None
    return found


def check_promise(query: Query, cursor: Cursor, rows: Rows, *, replica: bool, by_clock: bool) -> None:
    """Refuse to promise what cannot be kept.

    Raises:
        ConfigError: says why, and what to choose instead.
    """
    instead = 'choose lag="5 minutes" (later commits may be missed)' if by_clock else 'choose settle="none"'
    what = what_is_read(query)
    if replica:
        raise ConfigError(
            f'{what}: settle="writers" needs the primary: a replica does not know who is writing there; read from the '
            f"primary (of several hosts, target_session_attrs=read-write finds it), or {instead}"
        )
    tables = _TABLES.format(relation_literal(query)) if query.table is not None else None
    only = f" WHERE srrelid IN ({tables})" if tables is not None else ""
    if rows(_SUBSCRIBED.format(only=only))[0]["n"]:
        raise ConfigError(
            f'{what}: settle="writers" needs one primary, and rows come here by logical replication, with values that '
            f"another server gave them; read from there, or {instead}"
        )
    if tables is not None and rows(_ELSEWHERE.format(tables=tables))[0]["n"]:
        raise ConfigError(
            f'{what}: settle="writers" needs rows of this server that are there when they are committed, and it is or '
            "reads a foreign table, where who is writing is not known, or a materialized view, whose rows come when it "
            f"is refreshed; read from their own tables, or {instead}"
        )
    if by_clock or tables is None or cursor.term.column is None:
        return
    column = text_literal(cursor.term.column)
    for found in rows(_SEQUENCES.format(tables=tables, column=column)):
        if found["cache"] > 1 or not found["rises"]:
            why = f"hands out {found['cache']} values at a time" if found["cache"] > 1 else "does not only rise"
            raise ConfigError(
                f'{what}: settle="writers" needs ids that are drawn in order, and the sequence {found["name"]} {why}; '
                f"ALTER SEQUENCE … CACHE 1 NO CYCLE, take a timestamp as cursor, or {instead}"
            )
    family = _FAMILY.format(relation_literal(query))
    drawn = [found["name"] for found in rows(_SEQUENCES.format(tables=family, column=column)) if found["drawn"]]
    if len(drawn) > 1:
        raise ConfigError(
            f'{what}: settle="writers" needs ids that are drawn in order, and its children draw them from several '
            f"sequences: {', '.join(drawn)}; let all draw from one, take a timestamp as cursor, or {instead}"
        )


def unseen(rows: Rows) -> str | None:
    """What waiting by a clock does not cover, since this role does not see when others began, and the remedy."""
    found = rows(_SEES_WORK)[0]
    if found["granted"] and found["tracked"]:
        return None
    why = "track_activities is off: set it on"
    if not found["granted"]:
        why = f"{found['role']} does not see when others began: GRANT pg_read_all_stats TO {found['role']}"
    return f"of several transactions in one message, all but the first may be missed, since {why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writers:
    """Who may be writing: who has a transaction open, other than to read, and by a clock who is at work."""

    rows: Rows
    by_clock: bool

    def running(self) -> dict[str, dict[str, Any]]:
        found = self.rows(_OPEN.format(at_work=_AT_WORK if self.by_clock else "false"))
        return {row["id"]: row for row in found}

    def prepared(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in self.rows(_PREPARED)}


def settled(rows: Rows, asked: Settling, what: str) -> tuple[list[datetime], dict[str, Any]]:
    """Wait for who has a transaction open now.

    Args:
        rows: runs a statement in a transaction of its own.
        asked: for how long, and whether an earlier clock will do instead.
        what: is read, for messages.

    Returns:
        Since when those are open whose end is not waited for, and metadata.

    Raises:
        SourceError: transient, someone is still writing when the time is up; names them.
    """
    began = time.monotonic()
    writers = _Writers(rows=rows, by_clock=not asked.top)
    time.sleep(_GRACE_S)
    # In this order: a transaction that is prepared between the two is seen by one of them.
    running, prepared = writers.running(), writers.prepared()
    lowered = [] if asked.top else [w["since"] for w in running.values() if w["since"] is not None]
    waited_for = {
        **{i: w for i, w in running.items() if asked.top or w["since"] is None},
        **prepared,
    }
    said: dict[str, Any] = {"open": len(running) + len(prepared)}
    if lowered:
        said["held_back_to"] = min(lowered).astimezone(timezone.utc).isoformat()
    # Prepared transactions that are waited for already, or have no need to be; and those of the last look.
    known = seen = set(prepared)
    while waited_for:
        now, waiting = writers.running(), writers.prepared()
        if all(i in now for i in waited_for if i not in known):
            # What was prepared while all of these were running is none of them.
            known |= seen
        else:
            # Who is no longer running may have become any of the others.
            waited_for |= {i: w for i, w in waiting.items() if i not in known}
            known |= set(waiting)
        seen = set(waiting)
        waited_for = {i: w for i, w in waited_for.items() if i in now or i in waiting}
        if waited_for:
            if time.monotonic() - began >= asked.timeout.total_seconds():
                raise _still_open(waited_for, asked, what)
            time.sleep(_POLL_S)
    said["waited_seconds"] = round(time.monotonic() - began, 3)
    return lowered, said


def _still_open(writers: dict[str, dict[str, Any]], asked: Settling, what: str) -> SourceError:
    shown = ", ".join(map(_named, list(writers.values())[:_NAMED]))
    more = f" and {len(writers) - _NAMED} more" if len(writers) > _NAMED else ""
    return SourceError(
        f"{what}: expected every transaction that was open to end within {asked.timeout}, found still open: "
        f"{shown}{more}; end it, raise settle_timeout, or choose another settle; nothing was exported, run again",
        transient=True,
    )


def _named(writer: dict[str, Any]) -> str:
    if "pid" not in writer:
        return f"the prepared transaction {writer['name']!r} of {writer['role']}"
    since = f" since {writer['since']:%Y-%m-%d %H:%M:%S%z}" if writer["since"] else ""
    application = f" ({writer['application']})" if writer["application"] else ""
    return f"process {writer['pid']} of {writer['role']}{application}{since}"
