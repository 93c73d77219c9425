"""`python -m tests.benchmark.overlap`: whether parts travel to S3 while others are encoded, behind a slow link.

Three times are taken of the same rows: encoding alone (to a local directory), sending the same parts alone (by a client
of its own), and an export that does both. The link carries so many bytes in a second, however many requests share it.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.destinations.s3 import S3Destination
from rivet_dagster.exports.modes import Full
from tests.benchmark.fixtures import FIXTURES
from tests.benchmark.ours import by_library
from tests.servers import moto, postgres
from tests.servers.process import scratch
from tests.servers.reverseproxy import Passage, ReverseProxy


class SlowLink(ReverseProxy):
    """Holds every request for as long as its body would take; one after the other."""

    def __init__(self, upstream: str, *, bytes_per_second: float) -> None:
        super().__init__(upstream)
        self._rate = bytes_per_second
        self._line = threading.Lock()

    def handle(self, passage: Passage) -> None:
        self.exchanges.clear()
        with self._line:
            time.sleep(len(passage.request.body) / self._rate)
        passage.reply(passage.forward())


def main() -> None:
    asked = _arguments()
    with ExitStack() as stack:
        server, store = stack.enter_context(postgres()), stack.enter_context(moto())
        server.execute(*FIXTURES[asked.fixture].statements(asked.rows))
        link = stack.enter_context(SlowLink(store.url, bytes_per_second=asked.mb_per_second * 1e6))
        client = store.at(link.url).client(retries={"total_max_attempts": 4})
        client.create_bucket(Bucket="lake")
        found: dict[str, list[float]] = {"encode": [], "send": [], "both": []}
        for number in range(asked.rounds):
            here = stack.enter_context(scratch())
            local, bucket = LocalDestination(here), S3Destination(client, bucket="lake", prefix=f"run-{number}")

            def export(to: LocalDestination | S3Destination) -> None:
                by_library(server.url, asked.fixture, to, Full(), max_file_size=asked.max_file_size)

            found["encode"].append(_seconds(lambda to=local: export(to)))
            parts = sorted(here.rglob("*.parquet"))
            found["send"].append(_seconds(lambda of=parts, n=number: _send(client, of, f"sent-{n}")))
            found["both"].append(_seconds(lambda to=bucket: export(to)))
        encode, send, both = (statistics.median(found[name]) for name in ("encode", "send", "both"))
        size = sum(part.stat().st_size for part in parts)
    print(  # noqa: T201 (what it is for)
        f"{asked.fixture}, {asked.rows:,} rows, {len(parts)} parts, {size / 1e6:.1f} MB at {asked.mb_per_second} MB/s: "
        f"encode {encode:.2f} s, send {send:.2f} s, both {both:.2f} s, {both / max(encode, send):.2f} of the longer one"
    )


def _arguments() -> argparse.Namespace:
    said = argparse.ArgumentParser(prog="python -m tests.benchmark.overlap", description=__doc__)
    said.add_argument("--fixture", choices=FIXTURES, default="narrow")
    said.add_argument("--rows", type=int, default=5_000_000)
    said.add_argument("--mb-per-second", type=float, default=12)
    said.add_argument("--max-file-size", default="8MB")
    said.add_argument("--rounds", type=int, default=3)
    return said.parse_args()


def _seconds(what: Callable[[], None]) -> float:
    began = time.monotonic()
    what()
    return time.monotonic() - began


def _send(client, parts: list[Path], prefix: str) -> None:
    for part in parts:
        client.put_object(Bucket="lake", Key=f"{prefix}/{part.name}", Body=part.read_bytes())


if __name__ == "__main__":
    main()
