"""Each object store behind a proxy that breaks requests: how to write to it, and how to look behind its back."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from rivet_dagster.contract import ABSENT, Expect, WriteOutcome
from rivet_dagster.destinations.object_store import ObjectStoreDestination
from tests.servers.faultproxy import Action, FaultProxy, Rule
from tests.servers.reverseproxy import Passage

MIB = 1 << 20
KIB = 1 << 10
KEY = "data/part-00001.bin"
TIMEOUT_S = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request of a write.

    Attributes:
        name: for people.
        way: "single" or "parts".
        method: its own.
        target: a regular expression that no other request of the write matches.
        nth: which of several.
        offset: of a byte of the part in its body; `None`: it carries none.
        finishes: whether the object is there when it has taken effect.
        looks: whether it only looks at what the write has done.
    """

    name: str
    way: str
    method: str
    target: str
    nth: int = 1
    offset: int | None = None
    finishes: bool = False
    looks: bool = False

    def __str__(self) -> str:
        return f"{self.way}-{self.name}"


class Backend:
    """One store, one bucket of it, a new prefix for each test.

    Attributes:
        verifies: whether it refuses a body whose digest is not the one sent with it.
        sizes: a body's size for each way of writing.
        steps: all requests that a write consists of.
    """

    verifies = True
    sizes: ClassVar[Mapping[str, int]]
    steps: ClassVar[tuple[Step, ...]]
    _numbers = itertools.count()

    def __init__(self, server: Any) -> None:
        self.server = server
        self.proxy = FaultProxy(server.url.removesuffix(f"/{getattr(server, 'account', '')}"))
        self.raw = server.client()
        self.bucket = f"transport-{next(self._numbers)}"
        self.prefix = ""
        self._shared: Any = None
        self.create_bucket()

    def begin(self) -> None:
        """Forget the last test."""
        self.proxy.clear()
        self.proxy.exchanges.clear()
        self.prefix = f"t{next(self._numbers)}"

    def content(self, way: str) -> bytes:
        """Give a body that is written this way."""
        return hashlib.shake_128(self.prefix.encode()).digest(self.sizes[way])

    def break_(self, step: Step, action: Action, **more: Any) -> Rule:
        """Break one request of a write."""
        return self.proxy.on(step.method, step.target, action, **{"nth": step.nth, **more})

    def destination(self, *, bucket: str | None = None, client: Any = None, **settings: Any) -> Any:
        """Give the destination as it is reached through the proxy."""
        if client is None:
            client = self._shared = self._shared or self.client()
        return self.build(client, bucket or self.bucket, {"prefix": self.prefix, **settings})

    def write(self, content: bytes, *, way: str = "single", expect: Expect = ABSENT, **more: Any) -> WriteOutcome:
        """Write as the seam writes parts."""
        destination: ObjectStoreDestination = more.pop("destination", None) or self.destination(**more)
        assert len(content) == self.sizes[way]
        staged = destination.stage(KEY)
        try:
            staged.write(content)
            staged.close()
            return destination.write(KEY, staged, md5=staged.digests["md5"], expect=expect)
        finally:
            staged.discard()

    def shown(self) -> dict[str, bytes]:
        """All that a reader sees below this test's prefix, by key."""
        return {name.removeprefix(f"{self.prefix}/"): body for name, body in self.objects(f"{self.prefix}/").items()}

    def create_bucket(self) -> None:
        raise NotImplementedError

    def client(self, *, timeout_s: float = TIMEOUT_S) -> Any:
        """Give a client that reaches the store through the proxy and never retries."""
        raise NotImplementedError

    def build(self, client: Any, bucket: str, settings: dict[str, Any]) -> Any:
        raise NotImplementedError

    def impatient(self) -> Any:
        """Give the destination with a client that soon gives up."""
        return self.destination(client=self.client(timeout_s=1))

    def objects(self, name_prefix: str) -> dict[str, bytes]:
        raise NotImplementedError

    def paginate(self) -> None:
        """Make an emulator list in pages that does not."""

    def open_uploads(self) -> list[str]:
        """Name what was begun and neither finished nor aborted, where the store can tell."""
        return []


class S3(Backend):
    """S3 by LocalStack: verifies all it is sent."""

    sizes: ClassVar = {"single": 300 * KIB, "parts": 5 * MIB + 100 * KIB}
    steps = (
        Step(name="put", way="single", method="PUT", target=r"bin$", offset=1000, finishes=True),
        Step(name="look", way="single", method="HEAD", target=r"bin$", looks=True),
        Step(name="create", way="parts", method="POST", target=r"\?uploads"),
        Step(name="first", way="parts", method="PUT", target=r"partNumber=1", offset=2 * MIB),
        Step(name="last", way="parts", method="PUT", target=r"partNumber=2", offset=-1),
        Step(name="complete", way="parts", method="POST", target=r"\?uploadId=", finishes=True),
        Step(name="look", way="parts", method="HEAD", target=r"bin$", looks=True),
    )

    def create_bucket(self) -> None:
        self.raw.create_bucket(Bucket=self.bucket)

    def client(self, *, timeout_s: float = TIMEOUT_S) -> Any:
        return self.server.at(self.proxy.url).client(read_timeout=timeout_s)

    def build(self, client: Any, bucket: str, settings: dict[str, Any]) -> Any:
        from rivet_dagster.destinations.s3 import S3Destination

        sizes: ClassVar = {"single_put_bytes": MIB, "part_bytes": 5 * MIB, "page_size": 2}
        return S3Destination(client, bucket=bucket, **{**sizes, **settings})

    def objects(self, name_prefix: str) -> dict[str, bytes]:
        found = self.raw.list_objects_v2(Bucket=self.bucket, Prefix=name_prefix).get("Contents", ())
        return {o["Key"]: self.raw.get_object(Bucket=self.bucket, Key=o["Key"])["Body"].read() for o in found}

    def open_uploads(self) -> list[str]:
        found = self.raw.list_multipart_uploads(Bucket=self.bucket, Prefix=f"{self.prefix}/")
        return [upload["Key"] for upload in found.get("Uploads", ())]


class Moto(S3):
    """S3 by moto: stores whatever arrives."""

    verifies = False


class GCS(Backend):
    """GCS by the emulator with generations."""

    sizes: ClassVar = {"single": 300 * KIB, "parts": 8 * MIB + 300 * KIB}
    steps = (
        Step(name="put", way="single", method="POST", target=r"uploadType=multipart", offset=-1000, finishes=True),
        Step(name="begin", way="parts", method="POST", target=r"uploadType=resumable"),
        Step(name="first", way="parts", method="PUT", target=r"upload_id=", offset=2 * MIB),
        Step(name="last", way="parts", method="PUT", target=r"upload_id=", nth=3, offset=-1, finishes=True),
    )

    def create_bucket(self) -> None:
        self.raw.create_bucket(self.bucket)

    def client(self, *, timeout_s: float = TIMEOUT_S) -> Any:
        return self.server.at(self.proxy.url).client()

    def impatient(self) -> Any:
        return self.destination(timeout_s=1)

    def build(self, client: Any, bucket: str, settings: dict[str, Any]) -> Any:
        from rivet_dagster.destinations.gcs import GCSDestination

        sizes: ClassVar = {"part_bytes": 4 * MIB, "page_size": 2, "retries": False, "timeout_s": TIMEOUT_S}
        return GCSDestination(client, bucket=bucket, **{**sizes, **settings})

    def paginate(self) -> None:
        self.proxy.on("GET", r"/o\?.*prefix=", _in_pages, times=None)

    def objects(self, name_prefix: str) -> dict[str, bytes]:
        blobs = self.raw.list_blobs(self.bucket, prefix=name_prefix)
        return {blob.name: blob.download_as_bytes(retry=None, checksum=None) for blob in blobs}


class Azure(Backend):
    """Azure by azurite."""

    sizes: ClassVar = {"single": 300 * KIB, "parts": MIB + 300 * KIB}
    steps = (
        Step(name="put", way="single", method="PUT", target=r"bin$", offset=1000, finishes=True),
        Step(name="look", way="single", method="HEAD", target=r"bin$", looks=True),
        Step(name="first", way="parts", method="PUT", target=r"comp=block&", offset=1000),
        Step(name="last", way="parts", method="PUT", target=r"comp=block&", nth=3, offset=-1),
        Step(name="commit", way="parts", method="PUT", target=r"comp=blocklist", finishes=True),
        Step(name="look", way="parts", method="HEAD", target=r"bin$", looks=True),
    )

    def create_bucket(self) -> None:
        self.raw.create_container(self.bucket)

    def client(self, *, timeout_s: float = TIMEOUT_S) -> Any:
        return self.server.at(self.proxy.url).client(read_timeout=timeout_s)

    def build(self, client: Any, bucket: str, settings: dict[str, Any]) -> Any:
        from rivet_dagster.destinations.azure import AzureDestination

        sizes: ClassVar = {"single_put_bytes": 512 * KIB, "part_bytes": 512 * KIB, "page_size": 2}
        return AzureDestination(client, container=bucket, **{**sizes, **settings})

    def objects(self, name_prefix: str) -> dict[str, bytes]:
        container = self.raw.get_container_client(self.bucket)
        names = [*container.list_blob_names(name_starts_with=name_prefix)]
        return {name: container.download_blob(name).readall() for name in names}


def _in_pages(passage: Passage, _rule: Rule) -> None:
    query = dict(parse_qsl(urlsplit(passage.request.target).query))
    response = passage.forward()
    said = json.loads(response.body)
    items, start, size = said["items"], int(query.get("pageToken", 0)), int(query["maxResults"])
    said["items"] = items[start : start + size]
    if start + size < len(items):
        said["nextPageToken"] = str(start + size)
    passage.reply(replace(response, body=json.dumps(said).encode()))
