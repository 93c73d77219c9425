"""Keys: where an export's objects are. Pure, injective, and nothing leads out of its prefix.

::

    <asset path>[/<partition segment>]/
      data/part-<token>-<n>.parquet
      manifest.json   manifest-<token>.json   _SUCCESS
      _quarantine/<token>/…   _symlink_format_manifest/manifest
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash

from rivet_dagster.errors import ConfigError

__all__ = ["MANIFEST", "MARKER", "Prefix", "as_written", "asset_prefix", "make_token", "segment", "token_of"]

MANIFEST = "manifest.json"
MARKER = "_SUCCESS"

# Lower case only, so that two names that differ in case alone stay apart where a file system folds case.
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
# File systems end a name at 255 bytes; the rest is room for "partition=", a version or a temporary's decoration.
_LONGEST = 180
_SIDE = re.compile(r"^manifest-(?P<token>[A-Za-z0-9._-]+)\.json$")
_PART = re.compile(r"^part-(?P<token>[A-Za-z0-9._-]+)-(?P<number>\d{5,})(?P<suffix>\.[a-z0-9.]+)$")


def segment(name: str) -> str:
    """Encode one asset segment or partition key; different names never give the same segment, in any case.

    Everything but lower-case ASCII letters, digits, `-`, `_` and `.` is percent-encoded, and so is a leading `_` or
    `.` and the first letter of a name that the layout itself uses. One that is too long ends in a hash instead.
    """
    if not name:
        msg = "an asset segment or partition key is empty: expected at least one character; rename it"
        raise ConfigError(msg)
    raw = name.encode("utf-8", "surrogatepass")
    reserved = name in ("data", MANIFEST) or _SIDE.match(name) is not None
    out = "".join(
        chr(b) if b in _PLAIN and not (i == 0 and (b in b"_." or reserved)) else f"%{b:02x}" for i, b in enumerate(raw)
    )
    if len(out) > _LONGEST:
        # `%%` cannot come out of the encoding, so a shortened name meets no other.
        out = f"{out[: _LONGEST - 34]}%%{xxhash.xxh3_128_hexdigest(raw)}"
    return out


def as_written(path: str) -> Iterator[str]:
    """A path that people told by its names, with the last, the last two, … of them as they are written.

    Of `lake/Sales/partition=DE` that is `lake/Sales/partition=%44%45/`, `lake/%53ales/partition=%44%45/` and so on.
    """
    names = path.rstrip("/").split("/")
    for first in reversed(range(len(names))):
        if names[first] in ("", ".", ".."):
            return
        yield "".join(f"{name}/" for name in (*names[:first], *map(_written, names[first:])))


def _written(name: str) -> str:
    column, _, key = name.partition("=")
    return f"{segment(column)}={segment(key)}" if column and key else segment(name)


def make_token(run_id: str, partition_key: str | None, random_hex: str) -> str:
    """Name one attempt of one run at one partition; `random_hex` (8 digits) makes it unique and is never reused."""
    partition = "00000000" if partition_key is None else xxhash.xxh3_64_hexdigest(partition_key.encode())[:8]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', run_id)}-{partition}-{random_hex}"


def token_of(name: str) -> str | None:
    """The attempt that a part's or side record's name speaks of, whatever directory it is in; `None` if none."""
    base = name.rsplit("/", 1)[-1]
    found = _SIDE.match(base) or _PART.match(base)
    return found["token"] if found else None


@dataclass(frozen=True, slots=True)
class Prefix:
    """The directory of one dataset; `root` is empty or ends in `/`."""

    root: str

    @property
    def manifest(self) -> str:
        """The head."""
        return f"{self.root}{MANIFEST}"

    @property
    def marker(self) -> str:
        """The commit point."""
        return f"{self.root}{MARKER}"

    @property
    def data(self) -> str:
        """The directory of the parts."""
        return f"{self.root}data/"

    @property
    def symlink_manifest(self) -> str:
        """For engines that follow a list of URIs and no manifest."""
        return f"{self.root}_symlink_format_manifest/manifest"

    def side(self, token: str) -> str:
        """The side record of one attempt."""
        return f"{self.root}manifest-{token}.json"

    def part(self, token: str, number: int, suffix: str) -> str:
        """A part; `suffix` begins with a dot."""
        return f"{self.data}part-{token}-{number:05d}{suffix}"

    def parts_of(self, token: str) -> str:
        """What the key of every part of one attempt begins with, and no other key."""
        return f"{self.data}part-{token}-"

    @property
    def quarantined(self) -> str:
        """The directory of what was set aside, with one directory for each attempt."""
        return f"{self.root}_quarantine/"

    def quarantine(self, token: str, path: str) -> str:
        """Where a damaged object of a taken-over attempt is moved to."""
        return f"{self.quarantined}{token}/{path}"

    def at(self, path: str) -> str:
        """The key of a path as a manifest lists it.

        Raises:
            ConfigError: the path leads out of the prefix.
        """
        if path.startswith("/") or "\\" in path or any(s in ("", ".", "..") for s in path.split("/")):
            msg = f"{self.root}: a manifest lists {path!r}; expected a relative path below the prefix"
            raise ConfigError(msg)
        return f"{self.root}{path}"


def asset_prefix(path: Sequence[str], partition_key: str | None = None, *, column: str = "partition") -> Prefix:
    """The prefix of an asset, or of one partition of it (`<column>=<key>`, which no asset path can meet)."""
    segments = [segment(s) for s in path]
    if partition_key is not None:
        segments.append(f"{segment(column)}={segment(partition_key)}")
    return Prefix("".join(f"{s}/" for s in segments))
