"""Characters that have no form in UTF-8: the server sends a question mark for each, and says nothing."""

from __future__ import annotations

from rivet_dagster.sources.guards import refused
from rivet_dagster.sources.mysql_session import MySQLSession
from rivet_dagster.sources.mysql_types import WireColumn

__all__ = ["doubtful", "refuse_lost_ascii", "refuse_lost_characters"]

# Every code of these has a form in UTF-8, or is no valid text; of the latter, ascii alone keeps what it is given.
_WHOLE = "'ascii', 'binary', 'latin1', 'ucs2', 'utf8', 'utf8mb3', 'utf8mb4', 'utf16', 'utf16le', 'utf32'"
# The usual collations of them, so that most queries need not ask.
_USUAL = frozenset({8, 33, 45, 46, 47, 63, 83, 192, 224, 255})
# ascii_general_ci, ascii_bin, and both without padding.
_ASCII = frozenset({11, 65, 1035, 1089})
_REPLACEMENT = "0xEFBFBD"


def refuse_lost_characters(session: MySQLSession, text: str, columns: tuple[WireColumn, ...]) -> None:
    """Look at all values of columns in an older character set, in one run of the query; other queries cost nothing.

    Args:
        session: in the snapshot that will be read.
        text: the query.
        columns: as the server describes it; names are unique.

    Raises:
        SourceError: permanent, naming the column and the remedy; or the server refused.
    """
    asked = {column.charset for column in columns} - _USUAL
    if not asked:
        return
    numbers = ", ".join(map(str, sorted(asked)))
    partial = session.rows(
        "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS "
        f"WHERE ID IN ({numbers}) AND CHARACTER_SET_NAME NOT IN ({_WHOLE})"
    )
    sets = {int(number): str(name) for number, name in partial}
    _refuse(session, text, {column.name: sets[column.charset] for column in columns if column.charset in sets})


def doubtful(columns: tuple[WireColumn, ...]) -> tuple[int, ...]:
    """Positions of columns that may hold bytes of no character, each of which comes as a question mark.

    They are too many and too rarely wrong to be looked at before they are read.
    """
    return tuple(position for position, column in enumerate(columns) if column.charset in _ASCII)


def refuse_lost_ascii(session: MySQLSession, text: str, names: list[str]) -> None:
    """Look at all values of doubtful columns in which a question mark came.

    Raises:
        SourceError: as `refuse_lost_characters`.
    """
    _refuse(session, text, dict.fromkeys(names, "ascii"))


def _refuse(session: MySQLSession, text: str, wanted: dict[str, str]) -> None:
    if not wanted:
        return
    found = session.rows(f"SELECT {', '.join(map(_lost, wanted))} FROM (\n{text}\n) AS q")
    for (name, letters), lost in zip(wanted.items(), found[0], strict=True):
        if lost:
            raise refused(
                name,
                f"it holds characters of the character set {letters} that have no form in UTF-8",
                remedy="select CAST(… AS BINARY) to read its bytes, or correct the text",
            )


def _lost(name: str) -> str:
    """Whether any value has more question marks, or replacement characters, once it is UTF-8."""
    column = "`" + name.replace("`", "``") + "`"
    utf8 = f"CONVERT({column} USING utf8mb4)"
    # Without an empty text, which is NULL in some modes of MariaDB.
    return (
        f"MAX(CHAR_LENGTH({utf8}) <> CHAR_LENGTH({column}) "
        f"OR CHAR_LENGTH(REPLACE({utf8}, '?', '??')) <> CHAR_LENGTH(REPLACE({column}, '?', '??')) "
        f"OR LOCATE(CONVERT({_REPLACEMENT} USING utf8mb4), {utf8}) > 0)"
    )
