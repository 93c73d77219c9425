"""Which keys exist: the same everywhere, so that what is good for one destination is good for all. Pure."""

from __future__ import annotations

from rivet_dagster.errors import DestinationError

__all__ = ["directory_segments", "is_key", "key_segments"]

# The shortest limit among the object stores, in bytes of UTF-8.
_LONGEST = 1024


def key_segments(key: str) -> tuple[str, ...]:
    """Split a key at `/`.

    Raises:
        DestinationError: it is no key: empty, absolute, with an empty segment, one that begins with a dot (`..`, and
            what temporaries are named), a backslash, a control character, or too long for a store. Nothing was
            touched.
    """
    segments = tuple(key.split("/"))
    wrong = _wrong(key, segments)
    if wrong is None:
        return segments
    shown = repr(key if len(key) <= 200 else f"{key[:200]}…")  # noqa: PLR2004 - a message is to be read
    msg = f"{shown} is no key: {wrong}; expected segments joined by '/', below the destination's own prefix"
    raise DestinationError(msg)


def directory_segments(directory: str) -> tuple[str, ...]:
    """Split a directory: `""`, or segments each followed by `/`.

    Raises:
        DestinationError: as for a key, or it does not end in `/`. Nothing was touched.
    """
    if not directory:
        return ()
    if not directory.endswith("/"):
        msg = f"{directory!r} is no directory: expected '' or a name that ends in '/'"
        raise DestinationError(msg)
    return key_segments(directory[:-1])


def is_key(key: str) -> bool:
    """Whether `key_segments` accepts it."""
    return _wrong(key, tuple(key.split("/"))) is None


def _wrong(key: str, segments: tuple[str, ...]) -> str | None:
    if not key or key.startswith("/"):
        return "it is empty or absolute"
    if "" in segments:
        return "it has an empty segment"
    if any(s.startswith(".") for s in segments):
        return "a segment begins with a dot, which '..' and temporaries do"
    if "\\" in key or not key.isprintable():
        return "it has a backslash or a character that cannot be shown"
    if len(key.encode()) > _LONGEST:
        return f"it has {len(key.encode())} bytes, at most {_LONGEST} fit everywhere"
    return None
