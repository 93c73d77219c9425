"""The five destinations as the contract suite sees them: each with a way to look and to act behind its back."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from rivet_dagster.contract import Destination
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.destinations.stdout import StdoutDestination
from tests.servers import S3Server, azurite, localstack, moto, require
from tests.servers.generations import gcs
from tests.servers.reverseproxy import Passage, ReverseProxy

MIB = 1 << 20


class Servers:
    """The servers that were asked for so far, and a client of each; they end with the session."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[Callable[[], Any], Any] = {}
        self._clients: dict[Callable[[], Any], Any] = {}

    def __call__(self, starter: Callable[[], Any]) -> Any:
        """Give a running server, or skip (fail, where services are required)."""
        if starter not in self._running:
            self._running[starter] = self._stack.enter_context(require(starter))
        return self._running[starter]

    def client(self, starter: Callable[[], Any]) -> Any:
        """Give an SDK client that is made once: loading its model takes longer than most tests."""
        if starter not in self._clients:
            client = self(starter).client()
            self._stack.callback(client.close)
            self._clients[starter] = client
        return self._clients[starter]


class _InTurn(ReverseProxy):
    """moto compares a precondition and then writes, with room in between: here requests wait for each other."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._lock = threading.Lock()

    def handle(self, passage: Passage) -> None:
        self.exchanges.clear()
        with self._lock:
            answer = passage.forward()
        passage.reply(answer)


@contextmanager
def s3() -> Iterator[S3Server]:
    """S3 by moto, whose preconditions hold among several writers too."""
    with moto() as server, _InTurn(server.url) as proxy:
        yield server.at(proxy.url)


class Harness:
    """`rivet_dagster.testing.Harness`, and what our own tests do behind a destination's back besides looking.

    Attributes:
        borders: sizes at which the destination changes how it sends a body.
        compares_uploads_in_parts: whether the store (the emulator, that is) minds a version when such an upload ends.
    """

    compares_uploads_in_parts = True
    borders: tuple[int, ...] = (0, 1, MIB - 1, MIB, MIB + 1)

    def fresh(self) -> Destination:
        """Give a new destination on an empty namespace."""
        raise NotImplementedError

    def recipe(self) -> Callable[[], Destination]:
        """Give a function, good for another process, that makes a destination on the namespace of the last `fresh`."""
        raise NotImplementedError

    def again(self) -> Destination:
        """Give another destination on the namespace of the last `fresh`."""
        return self.recipe()()

    def raw(self) -> Mapping[str, bytes]:
        """All that is in the namespace of the last `fresh`; what was put outside of it has a name with `../`."""
        raise NotImplementedError

    def raw_name(self, key: str) -> str:
        """Give the name under which `raw` shows a key."""
        return key

    def shown(self, key: str) -> bytes | None:
        """What a reader of the store sees at a key; `None` for nothing."""
        return self.raw().get(self.raw_name(key))

    def put(self, name: str, body: bytes) -> None:
        """Put an object there as another program would."""
        raise NotImplementedError

    def open_uploads(self) -> list[str]:
        """Name uploads that were begun and neither finished nor aborted, where the store can tell."""
        return []

    def close(self) -> None:
        """Free what the store holds for this harness."""


class LocalHarness(Harness):
    """Directories below a temporary one, looked at with pathlib."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()

    @property
    def root(self) -> Path:
        """The base directory of the last `fresh`."""
        return self._namespace / "lake"

    def fresh(self) -> Destination:
        self._namespace = self._directory / str(next(self._numbers))
        self._namespace.mkdir()
        return self.again()

    def recipe(self) -> Callable[[], Destination]:
        return partial(LocalDestination, self.root)

    def raw(self) -> dict[str, bytes]:
        found = {p: p.read_bytes() for p in self._namespace.rglob("*") if p.is_file() and p.name != ".rivet.lock"}
        inside = {p: p.is_relative_to(self.root) for p in found}
        return {
            p.relative_to(self.root).as_posix() if inside[p] else f"../{p.relative_to(self._namespace)}": body
            for p, body in found.items()
        }

    def put(self, name: str, body: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


class StdoutHarness(Harness):
    """A stream in memory, or a pipe from another process; what came out of it is one entry."""

    def fresh(self) -> Destination:
        self._stream = io.BytesIO()
        return self.again()

    def again(self) -> Destination:
        return StdoutDestination(self._stream)

    def recipe(self) -> Callable[[], Destination]:
        reader, self._writer = multiprocessing.Pipe(duplex=False)
        self._drain = threading.Thread(target=self._take, args=(reader,))
        self._drain.start()
        return partial(_stdout_at, self._writer)

    def raw(self) -> dict[str, bytes]:
        if self._drain is not None:
            # The end of the pipe comes when nobody can write to it any more.
            self._writer.close()
            self._drain.join()
            self._drain = None
        return {"stdout": self._stream.getvalue()}

    def _take(self, reader: Connection) -> None:
        with reader:
            while came := os.read(reader.fileno(), MIB):
                self._stream.write(came)

    def raw_name(self, key: str) -> str:
        return "stdout"

    def shown(self, key: str) -> bytes | None:
        return self.raw()["stdout"] or None

    def close(self) -> None:
        self.raw()

    _drain: threading.Thread | None = None


def _stdout_at(writer: Connection) -> Destination:
    return StdoutDestination(io.FileIO(os.dup(writer.fileno()), "wb"))


class _StoreHarness(Harness):
    """A bucket of its own for each namespace, and a prefix in it."""

    borders = (0, 1, MIB - 1, MIB, MIB + 1, 5 * MIB - 1, 5 * MIB, 5 * MIB + 1, 10 * MIB, 10 * MIB + 1)
    directory = "lake/exports/"
    _names = itertools.count()

    def __init__(self, servers: Servers, starter: Callable[[], Any], *, slash: bool) -> None:
        self.starter = starter
        self.server = servers(starter)
        self._client = servers.client(starter)
        self._prefix = self.directory if slash else self.directory.rstrip("/")
        self._buckets: list[str] = []

    @property
    def bucket(self) -> str:
        """That of the last `fresh`."""
        return self._buckets[-1]

    def fresh(self) -> Destination:
        self._buckets.append(f"rivet-{next(self._names)}")
        self._create()
        return self.again()

    def raw(self) -> dict[str, bytes]:
        start = len(self.directory)
        return {
            name[start:] if name.startswith(self.directory) else f"../{name}": body
            for name, body in self._objects().items()
        }

    def put(self, name: str, body: bytes) -> None:
        self._put(f"{self.directory}{name}", body)

    def close(self) -> None:
        for bucket in self._buckets:
            self._drop(bucket)
        self._buckets.clear()

    def _create(self) -> None:
        raise NotImplementedError

    def _objects(self) -> dict[str, bytes]:
        raise NotImplementedError

    def _put(self, name: str, body: bytes) -> None:
        raise NotImplementedError

    def _drop(self, bucket: str) -> None:
        raise NotImplementedError


def _elsewhere(at: Callable[..., Destination], server: Any, *place: Any) -> Destination:
    return at(server.client(), *place)


class S3Harness(_StoreHarness):
    """Looked at with boto3."""

    @property
    def compares_uploads_in_parts(self) -> bool:
        return self.starter is not s3

    def again(self) -> Destination:
        return _s3_at(self._client, self.bucket, self._prefix, self._page_size)

    def recipe(self) -> Callable[[], Destination]:
        return partial(_elsewhere, _s3_at, self.server, self.bucket, self._prefix, self._page_size)

    @property
    def _page_size(self) -> int | None:
        # LocalStack loses odd names between two pages.
        return None if self.starter is localstack else 3

    def open_uploads(self) -> list[str]:
        found = self._client.list_multipart_uploads(Bucket=self.bucket)
        return [upload["Key"] for upload in found.get("Uploads", ())]

    def _create(self) -> None:
        self._client.create_bucket(Bucket=self.bucket)

    def _objects(self) -> dict[str, bytes]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        names = [found["Key"] for page in pages for found in page.get("Contents", ())]
        return {n: self._client.get_object(Bucket=self.bucket, Key=n)["Body"].read() for n in names}

    def _put(self, name: str, body: bytes) -> None:
        self._client.put_object(Bucket=self.bucket, Key=name, Body=body)

    def _drop(self, bucket: str) -> None:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        for name in [found["Key"] for page in pages for found in page.get("Contents", ())]:
            self._client.delete_object(Bucket=bucket, Key=name)
        self._client.delete_bucket(Bucket=bucket)


def _s3_at(client: Any, bucket: str, prefix: str, page_size: int | None) -> Destination:
    from rivet_dagster.destinations.s3 import S3Destination

    sizes = {"single_put_bytes": MIB, "part_bytes": 5 * MIB, "page_size": page_size}
    return S3Destination(client, bucket=bucket, prefix=prefix, **sizes)


class GCSHarness(_StoreHarness):
    """Looked at with google-cloud-storage."""

    borders = (0, 1, MIB, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 9 * MIB, 9 * MIB + 1)

    def again(self) -> Destination:
        return _gcs_at(self._client, self.bucket, self._prefix)

    def recipe(self) -> Callable[[], Destination]:
        return partial(_elsewhere, _gcs_at, self.server, self.bucket, self._prefix)

    def _create(self) -> None:
        self._client.create_bucket(self.bucket)

    def _objects(self) -> dict[str, bytes]:
        blobs = self._client.bucket(self.bucket).list_blobs()
        return {blob.name: blob.download_as_bytes(retry=None) for blob in blobs}

    def _put(self, name: str, body: bytes) -> None:
        self._client.bucket(self.bucket).blob(name).upload_from_string(body, retry=None)

    def _drop(self, bucket: str) -> None:
        # The emulator refuses to delete a bucket that has been used.
        for blob in self._client.bucket(bucket).list_blobs():
            blob.delete()


def _gcs_at(client: Any, bucket: str, prefix: str) -> Destination:
    from rivet_dagster.destinations.gcs import GCSDestination

    return GCSDestination(client, bucket=bucket, prefix=prefix, part_bytes=MIB, page_size=3, retries=False)


class AzureHarness(_StoreHarness):
    """Looked at with azure-storage-blob."""

    def again(self) -> Destination:
        return _azure_at(self._client, self.bucket, self._prefix)

    def recipe(self) -> Callable[[], Destination]:
        return partial(_elsewhere, _azure_at, self.server, self.bucket, self._prefix)

    def _create(self) -> None:
        self._client.create_container(self.bucket)

    def _objects(self) -> dict[str, bytes]:
        container = self._client.get_container_client(self.bucket)
        return {name: container.download_blob(name).readall() for name in container.list_blob_names()}

    def _put(self, name: str, body: bytes) -> None:
        self._client.get_blob_client(self.bucket, name).upload_blob(body, overwrite=True)

    def _drop(self, bucket: str) -> None:
        self._client.delete_container(bucket)


def _azure_at(client: Any, container: str, prefix: str) -> Destination:
    from rivet_dagster.destinations.azure import AzureDestination

    sizes = {"single_put_bytes": MIB, "part_bytes": MIB, "page_size": 3}
    return AzureDestination(client, container=container, prefix=prefix, **sizes)


Build = Callable[[Servers, Path], Harness]

HARNESSES: dict[str, tuple[Build, ...]] = {
    "local": (lambda _servers, directory: LocalHarness(directory),),
    "s3": (
        lambda servers, _: S3Harness(servers, s3, slash=False),
        lambda servers, _: S3Harness(servers, s3, slash=True),
        lambda servers, _: S3Harness(servers, localstack, slash=True),
    ),
    "gcs": (
        lambda servers, _: GCSHarness(servers, gcs, slash=False),
        lambda servers, _: GCSHarness(servers, gcs, slash=True),
    ),
    "azure": (
        lambda servers, _: AzureHarness(servers, azurite, slash=False),
        lambda servers, _: AzureHarness(servers, azurite, slash=True),
    ),
    "stdout": (lambda _servers, _directory: StdoutHarness(),),
}
"""Every destination, each in the ways in which it is tried: object stores with and without a slash after the prefix."""

HARNESS_PARAMS = [
    pytest.param(build, id=kind if len(builds) == 1 else f"{kind}-{number}")
    for kind, builds in HARNESSES.items()
    for number, build in enumerate(builds, 1)
]
