"""Database URLs: which family they name, and how their secrets stay out of every message."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote

import xxhash

from rivet_dagster.errors import ConfigError

__all__ = ["DatabaseUrl", "parse_url"]

_SECRET_PARAMETERS = frozenset({"password", "sslpassword"})
_MASK = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseUrl:
    """A database URL taken apart just far enough. Its `repr` shows the scheme alone.

    Attributes:
        scheme: in lower case and without a driver: "postgresql" for "postgresql+psycopg".
        rest: all that follows "://".
        secrets: every spelling of every secret in it, the longest first.
    """

    scheme: str
    rest: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())

    @property
    def parameters(self) -> dict[str, str]:
        """What stands behind "?", percent-decoded, as libpq reads it: of equal names the last counts, "+" is a plus."""
        return {unquote(name): unquote(value) for name, value in _parameters(self.rest).items()}

    @property
    def origin(self) -> str:
        """Which database it is, and for whom, as a fingerprint: the same only for the same URL but for its secrets.

        A file is named by its absolute path.
        """
        if self.scheme in {"sqlite", "duckdb"}:
            said = [self.scheme, str(Path(self.rest[1:]).absolute())]
        else:
            authority, _, path = self.rest.partition("?")[0].partition("/")
            userinfo, _, hosts = authority.rpartition("@")
            open_to_all = {k: v for k, v in self.parameters.items() if k.lower() not in _SECRET_PARAMETERS}
            said = [self.scheme, userinfo.partition(":")[0], hosts, path, *map(str, sorted(open_to_all.items()))]
        return f"xxh3:{xxhash.xxh3_64_hexdigest(repr(said).encode())}"

    def redact(self, text: str) -> str:
        """`text` with every spelling of every secret, and any credentials in a URL, masked."""
        if self.secrets:  # in one pass: a mask must not be masked again
            text = re.sub("|".join(map(re.escape, self.secrets)), _MASK, text)
        text = re.sub(r"(?<=://)[^\s/@]*@", f"{_MASK}@", text)
        return re.sub(r"(?i)\b(password\s*=\s*)('[^']*'|[^\s&'\"]+)", rf"\1{_MASK}", text)


def parse_url(url: str) -> DatabaseUrl:
    """Take a URL apart.

    Raises:
        ConfigError: it is no URL, or one of which a driver would take a piece of the password for a host, port or
            database, and print it. The message repeats nothing of it but the scheme.
    """
    scheme, separator, rest = url.strip().partition("://")
    scheme = scheme.partition("+")[0].lower()
    if not separator or not re.fullmatch(r"[a-z][a-z0-9.-]*", scheme):
        raise ConfigError("a database URL was expected, like postgresql://user@host/database; found something else")
    if scheme in {"sqlite", "duckdb"}:
        return DatabaseUrl(scheme=scheme, rest=rest)
    authority, _, path = rest.partition("?")[0].partition("/")
    if authority.count("@") > 1 or "@" in path or re.search(r"%(?![0-9A-Fa-f]{2})", rest):
        raise ConfigError(
            f"{scheme} URL: user, password and database must be percent-encoded where they hold one of @ / ? % "
            "(%40 %2F %3F %25)"
        )
    hosts = authority.rpartition("@")[2].split(",")
    if not all(re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", host) for host in hosts):
        raise ConfigError(f"{scheme} URL: host or host:port was expected after user:password@, the port a number")
    return DatabaseUrl(scheme=scheme, rest=rest, secrets=_secrets(rest))


def _parameters(rest: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in rest.partition("?")[2].split("&") if pair)
    return {name: value for name, _, value in pairs}


def _secrets(rest: str) -> tuple[str, ...]:
    userinfo, at, _ = re.split(r"/", rest, maxsplit=1)[0].partition("@")
    found = {userinfo.partition(":")[2]} if at else set()
    found.update(value for name, value in _parameters(rest).items() if name.lower() in _SECRET_PARAMETERS)
    spellings: set[str] = set()
    for secret in found:
        plain = unquote(secret)
        spellings |= {secret, plain, quote(plain, safe=""), quote(plain), quote_plus(plain)}
    return tuple(sorted(spellings - {""}, key=len, reverse=True))
