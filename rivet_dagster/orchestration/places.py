"""A place as a person names it, by a path or a URI: the destination that reaches it, and the prefix there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from rivet_dagster.contract import ObjectDestination
from rivet_dagster.errors import ConfigError
from rivet_dagster.layout import MANIFEST, Prefix, as_written
from rivet_dagster.orchestration.failures import masked
from rivet_dagster.orchestration.io_managers import ExportIOManager, LocalIOManager
from rivet_dagster.orchestration.loading import CodeLocation

__all__ = ["opened_at"]


@contextmanager
def opened_at(where: str, location: CodeLocation | None) -> Iterator[tuple[ObjectDestination, Prefix]]:
    """The destination and prefix of a path or URI, for as long as they are used.

    Where an IO manager of the definitions writes above it, that one's client is used; else the SDK's own credentials.

    Raises:
        ConfigError: it is no place that datasets can be at, or carries credentials.
    """
    parts = _parts(where)
    with ExitStack() as stack:
        if location is not None:
            opened = stack.enter_context(location.opened(location.resource_keys))
            for found in opened.found.values():
                if isinstance(found, ExportIOManager) and (prefix := _below(found, where)) is not None:
                    yield _at_rest(found, where), prefix
                    return
        io_manager, directory = _by_itself(where, parts)
        stack.callback(io_manager.teardown_after_execution, None)  # type: ignore[arg-type] # it looks at no context
        yield _at_rest(io_manager, where), Prefix(directory)


def _parts(where: str) -> SplitResult | None:
    """What a URI is made of, which carries no credentials; `None` of a path."""
    if not where.strip():
        raise ConfigError("expected a path or URI, found an empty one; give . for the working directory")
    if "\0" in where or (where.startswith("file:") and "\0" in unquote(where)):
        raise ConfigError(f"{where!r}: expected a path, found one with a NUL, which is in no name; correct it")
    if "://" not in where:
        return None
    shown = masked(where.partition("?")[0])
    try:
        parts = urlsplit(where)
        # What follows a colon is a port, or the beginning of a secret that is cut by a slash.
        parts.port  # noqa: B018
    except ValueError:
        raise ConfigError(f"{shown}: expected a URI, found none that can be read; correct it") from None
    user, at, _ = parts.netloc.rpartition("@")
    # A container of Azure stands where a user would.
    if at and (parts.scheme != "abfss" or ":" in user):
        msg = f"{shown}: expected a place without credentials, found some before the @; what a command is told"
        raise ConfigError(f"{msg} can be read by others: give them in the environment, or by definitions (-m, -f)")
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        msg = f"{shown}: expected a file of this machine, file:///…, found one of the host {parts.netloc}"
        raise ConfigError(f"{msg}; run the command there")
    return parts


def _below(io_manager: ExportIOManager, where: str) -> Prefix | None:
    if not io_manager.capabilities.commit_protocol.leaves_objects_at_rest:
        return None
    base = io_manager.uri(Prefix(""))
    sought = LocalIOManager(path=where).uri(Prefix("")) if "://" not in where else where
    if base is None or sought is None:
        return None
    base, sought = f"{base.rstrip('/')}/", f"{sought.removesuffix(MANIFEST).rstrip('/')}/"
    if not sought.startswith(base):
        return None
    rest = sought[len(base) :]
    return Prefix(unquote(rest) if sought.startswith("file:") else rest)


def _at_rest(io_manager: ExportIOManager, where: str) -> ObjectDestination:
    found = io_manager.destination
    if isinstance(found, ObjectDestination):
        return found
    msg = f"{where}: expected a destination that keeps objects, found a stream"
    raise ConfigError(msg)


def _by_itself(where: str, parts: SplitResult | None) -> tuple[ExportIOManager, str]:
    if parts is None:
        return _directory(where.removesuffix(MANIFEST) or "."), ""
    make = _MADE.get(parts.scheme)
    if make is None:
        known = ", ".join(f"{scheme}://" for scheme in _MADE)
        msg = f"{masked(where)}: expected a path, or a URI that begins with {known}; found {parts.scheme}://"
        raise ConfigError(msg)
    if "?" in where:
        msg = f"{masked(where.partition('?')[0])}: expected a URI without a query, found one behind the ?"
        raise ConfigError(f"{msg}; give credentials in the environment, or by definitions (-m, -f)")
    directory = parts.path.lstrip("/").removesuffix(MANIFEST)
    directory = f"{directory.rstrip('/')}/" if directory.strip("/") else ""
    return make(parts.netloc, directory)


def _local(_netloc: str, directory: str) -> tuple[ExportIOManager, str]:
    return _directory(f"/{unquote(directory)}"), ""


def _directory(told: str) -> LocalIOManager:
    paths = [told, *as_written(told)]
    # Where the system refuses to tell, whoever looks at it next says so.
    with suppress(OSError):
        told = next((path for path in paths if Path(path).is_dir()), told)
    return LocalIOManager(path=told)


def _s3(bucket: str, directory: str) -> tuple[ExportIOManager, str]:
    from dagster_aws.s3 import S3Resource  # noqa: PLC0415 - SDKs load only where they are used

    from rivet_dagster.orchestration.s3 import S3IOManager  # noqa: PLC0415

    return S3IOManager(s3=S3Resource(), bucket=bucket), directory


def _gcs(bucket: str, directory: str) -> tuple[ExportIOManager, str]:
    from dagster_gcp.gcs import GCSResource  # noqa: PLC0415 - as above

    from rivet_dagster.orchestration.gcs import GCSIOManager  # noqa: PLC0415

    return GCSIOManager(gcs=GCSResource(), bucket=bucket), directory


def _azure(host: str, directory: str) -> tuple[ExportIOManager, str]:
    from dagster_azure.blob import AzureBlobStorageDefaultCredential, AzureBlobStorageResource  # noqa: PLC0415

    from rivet_dagster.orchestration.azure import AzureIOManager  # noqa: PLC0415 - as above

    container, _, account = host.partition("@")
    if account:
        account = account.replace(".dfs.", ".blob.")
    else:
        account = host
        container, _, directory = directory.partition("/")
    blobs = AzureBlobStorageResource(account_url=f"https://{account}", credential=AzureBlobStorageDefaultCredential())
    return AzureIOManager(blob_storage=blobs, container=container), directory


_MADE: Mapping[str, Callable[[str, str], tuple[ExportIOManager, str]]] = {
    "file": _local,
    "s3": _s3,
    "gs": _gcs,
    "abfss": _azure,
    "https": _azure,
}
