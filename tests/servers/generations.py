"""GCS with generations: a proxy before gcp-storage-emulator that answers preconditions as the real service does.

The emulator ignores them. Here each object has a generation and a metageneration, both only ever growing, put into
every answer that describes it; a request whose precondition does not hold is answered 412 (304 to a read that asks
for something newer) and never reaches the store. Comparing and writing are one step: other requests wait.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from tests.servers.messages import Request, Response
from tests.servers.reverseproxy import Passage, ReverseProxy
from tests.servers.stores import GCSServer, gcs_emulator

OBJECT = re.compile(r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)")
COPY = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/(?:copyTo|rewriteTo)/b/([^/]+)/o/([^/]+)")
COMPOSE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/compose")
LIST = re.compile(r"/storage/v1/b/([^/]+)/o")
UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o")
CONTENT_RANGE = re.compile(r"bytes (?:\*|\d+-(?P<last>\d+))/(?P<total>\d+|\*)")

# Their answer would have to be taken apart, or the emulator has no such thing; nothing of ours needs them.
NOT_SERVED = re.compile(r"/batch/.*|/storage/v1/b/[^/]+/o/[^/]+/(?:moveTo|restore)\b.*")

Name = tuple[str, str]
Query = Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class Version:
    """The version of an object that is live; `stored` is the emulator's own number for it."""

    stored: str
    generation: int
    metageneration: int = 1


@dataclass(slots=True, kw_only=True)
class Session:
    """A resumable upload: its preconditions hold at its start and must still hold when it finishes."""

    name: Name
    query: Query
    received: int = 0
    finished: Response | None = None


@contextmanager
def gcs() -> Iterator[GCSServer]:
    """GCS by gcp-storage-emulator and a `GenerationProxy`."""
    with gcs_emulator() as server, GenerationProxy(server.url) as proxy:
        yield server.at(proxy.url)


class GenerationProxy(ReverseProxy):
    """Serves the JSON API: insert (media, multipart, resumable), get, list, patch, delete, copy, rewrite, compose."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._lock = threading.Lock()
        self._versions: dict[Name, Version] = {}
        self._sessions: dict[str, Session] = {}
        self._generations = itertools.count(time.time_ns() // 1000)

    def handle(self, passage: Passage) -> None:
        """Answer one request while all others wait."""
        with self._lock:
            response = self._answer(passage.request)
        passage.reply(response)

    def _answer(self, request: Request) -> Response:  # noqa: PLR0911 - one for each route
        if request.missing:
            return self.send(request)
        parts = urlsplit(request.target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if NOT_SERVED.fullmatch(parts.path):
            return _error(501, "the generation proxy does not serve this")
        if UPLOAD.fullmatch(parts.path):
            return self._upload(request, unquote(parts.path.split("/")[5]), query)
        if names := COPY.fullmatch(parts.path):
            source, target = _name(names[1], names[2]), _name(names[3], names[4])
            return self._source_refusal(source, query) or self._write(request, target, query)
        if names := COMPOSE.fullmatch(parts.path):
            return self._write(request, _name(names[1], names[2]), query)
        if names := OBJECT.fullmatch(parts.path):
            return self._object(request, _name(names[1], names[2]), query)
        if LIST.fullmatch(parts.path) and request.method == "GET":
            return self._stamped(self.send(request))
        return self.send(request)

    def _object(self, request: Request, name: Name, query: Query) -> Response:
        version = self._version(name)
        if version is None or query.get("generation", str(version.generation)) != str(version.generation):
            return _error(404, f"No such object: {'/'.join(name)}")
        refusal = _refusal(query, version, reading=request.method == "GET")
        if refusal is not None:
            return refusal
        response = self.send(request)
        if response.status >= 300:
            return response
        if request.method == "DELETE":
            del self._versions[name]
            return response
        if request.method == "PATCH":
            version.metageneration += 1
        if query.get("alt") == "media" or request.target.startswith("/download"):
            return replace(response, headers=(*response.without("etag"), *_headers(version)))
        return self._stamped(response)

    def _source_refusal(self, name: Name, query: Query) -> Response | None:
        version = self._version(name)
        if version is None or query.get("sourceGeneration", str(version.generation)) != str(version.generation):
            return _error(404, f"No such object: {'/'.join(name)}")
        asked = {key.replace("ifSource", "if"): value for key, value in query.items() if key.startswith("ifSource")}
        return _refusal(asked, version)

    def _write(self, request: Request, name: Name, query: Query) -> Response:
        """Forward a request that makes a new version of an object, if its preconditions hold."""
        refusal = _refusal(query, self._version(name))
        if refusal is not None:
            return refusal
        response = self.send(request)
        if response.status == 200:
            self._versions.pop(name, None)
            return self._stamped(response)
        return response

    def _upload(self, request: Request, bucket: str, query: Query) -> Response:
        if "upload_id" in query:
            return self._resume(request, query["upload_id"])
        name = (bucket, query.get("name") or _name_in(request))
        if query.get("uploadType") != "resumable":
            return self._write(request, name, query)
        refusal = _refusal(query, self._version(name))
        if refusal is not None:
            return refusal
        response = self.send(request)
        location = response.header("location")
        if location is not None:
            upload_id = dict(parse_qsl(urlsplit(location).query))["upload_id"]
            self._sessions[upload_id] = Session(name=name, query=query)
        return response

    def _resume(self, request: Request, upload_id: str) -> Response:
        session = self._sessions.get(upload_id)
        if session is None:
            return _error(410, "the upload was cancelled, or never was")
        if session.finished is not None:
            return session.finished
        if request.method == "DELETE":
            del self._sessions[upload_id]
            return Response(status=499, reason="Client Closed Request")
        if _finishes(request, session.received):
            response = self._write(request, session.name, session.query)
            if response.status == 200:
                session.finished = response
            return response
        response = self.send(request)
        confirmed = re.fullmatch(r"bytes=0-(\d+)", response.header("range") or "")
        session.received = int(confirmed[1]) + 1 if confirmed else session.received
        return response

    def _version(self, name: Name) -> Version | None:
        bucket, key = (quote(word, safe="") for word in name)
        response = self.send(Request(method="GET", target=f"/storage/v1/b/{bucket}/o/{key}"))
        if response.status != 200:
            self._versions.pop(name, None)
            return None
        return self._known(name, json.loads(response.body)["generation"])

    def _known(self, name: Name, stored: str) -> Version:
        """Give the version of what the emulator holds; a new one for what was written behind this proxy's back."""
        version = self._versions.get(name)
        if version is None or version.stored != stored:
            version = self._versions[name] = Version(stored=stored, generation=next(self._generations))
        return version

    def _stamped(self, response: Response) -> Response:
        """Put our numbers into every object that an answer describes."""
        if response.status != 200:
            return response
        answer = json.loads(response.body)
        for described in (answer, answer.get("resource"), *answer.get("items", ())):
            if described and described.get("kind") == "storage#object":
                name = (described["bucket"], described["name"])
                described.update(_description(described, self._known(name, described["generation"])))
        return replace(response, body=json.dumps(answer).encode())


def _name(bucket: str, key: str) -> Name:
    return unquote(bucket), unquote(key)


def _name_in(request: Request) -> str:
    """Find an object's name in the metadata that an upload begins with."""
    body = request.body
    if (request.header("content-type") or "").startswith("multipart/"):
        body = body[body.index(b"\r\n\r\n") + 4 : body.index(b"\r\n--", 4)]
    return str(json.loads(body)["name"])


def _finishes(request: Request, received: int) -> bool:
    stated = request.header("content-range")
    if stated is None:
        return True
    found = CONTENT_RANGE.fullmatch(stated)
    if found is None or found["total"] == "*":
        return False
    last = int(found["last"]) + 1 if found["last"] else received
    return last >= int(found["total"])


def _refusal(query: Query, version: Version | None, *, reading: bool = False) -> Response | None:
    """Judge preconditions on a live version (`None`: there is no object, which counts as generation 0)."""
    numbers = {
        "Generation": version.generation if version else 0,
        "Metageneration": version.metageneration if version else 0,
    }
    for what, number in numbers.items():
        if query.get(f"if{what}Match", str(number)) != str(number):
            return _error(412, "At least one of the pre-conditions you specified did not hold.")
        if query.get(f"if{what}NotMatch") == str(number):
            return Response(status=304) if reading else _error(412, "At least one of the pre-conditions failed.")
    return None


def _description(described: Mapping[str, Any], version: Version) -> dict[str, Any]:
    host = urlsplit(described["mediaLink"])[:2]
    bucket, key = (quote(described[part], safe="") for part in ("bucket", "name"))
    path, query = f"/download/storage/v1/b/{bucket}/o/{key}", f"generation={version.generation}&alt=media"
    return {
        "id": f"{described['bucket']}/{described['name']}/{version.generation}",
        "generation": str(version.generation),
        "metageneration": str(version.metageneration),
        "etag": f"{version.generation}-{version.metageneration}",
        "mediaLink": urlunsplit((*host, path, query, "")),
    }


def _headers(version: Version) -> tuple[tuple[str, str], ...]:
    return (
        ("ETag", f'"{version.generation}-{version.metageneration}"'),
        ("X-Goog-Generation", str(version.generation)),
        ("X-Goog-Metageneration", str(version.metageneration)),
    )


def _error(status: int, message: str) -> Response:
    reason = "conditionNotMet" if status == 412 else "notFound" if status == 404 else "invalid"
    error = {"code": status, "message": message, "errors": [{"domain": "global", "reason": reason, "message": message}]}
    return Response(
        status=status,
        headers=(("Content-Type", "application/json; charset=UTF-8"),),
        body=json.dumps({"error": error}).encode(),
    )
