"""Start a server process on a free loopback port, wait until it answers, end it whatever happens."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
TRIES = 3


class Unavailable(Exception):
    """A server that this machine cannot start, and the command that would change it."""

    def __init__(self, reason: str, install_command: str) -> None:
        super().__init__(f"{reason}; install it with: {install_command}")
        self.reason = reason
        self.install_command = install_command


class StartFailed(RuntimeError):
    """The server is installed and does not come up; carries the end of its output."""


def free_port() -> int:
    """Return a loopback port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def refusing_port() -> Iterator[int]:
    """Lend a loopback port that refuses connections, and that nobody else is given meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def answers_http(port: int, path: str = "/") -> bool:
    """Whether anything that speaks HTTP answers there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    else:
        return True
    finally:
        connection.close()


@contextmanager
def scratch(*, user: str | None = None) -> Iterator[Path]:
    """Lend a directory of the user's own below the system's temporary one; it is gone afterwards."""
    # Not tempfile.TemporaryDirectory: a server that is being killed may still write while its directory is removed.
    directory = Path(tempfile.mkdtemp(prefix="rivet-tests-"))
    try:
        if user is not None:
            shutil.chown(directory, user)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def running(
    command: Callable[[int], Sequence[str]],
    *,
    directory: Path,
    ready: Callable[[int], bool] = answers_http,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[int]:
    """Run a server and yield its port.

    The process leads a group of its own, which is ended as a whole. Where `setpriv` exists, the kernel ends the
    server should this process be killed; so start servers in a thread that lives as long as they are needed.

    Args:
        command: gives the command line for a port.
        directory: where the server runs and its output is kept.
        ready: whether the server on that port can be used.
        environment: additions to this process's environment.
        user: run as this user.
        stop_signal: the polite one; SIGKILL follows.

    Raises:
        StartFailed: it ended, or did not answer in time, on each of a few ports; nothing is left running.
    """
    for attempt in range(1, TRIES + 1):
        port = free_port()
        log = directory / f"output-{port}.log"
        process = _start(command(port), directory=directory, log=log, environment=environment, user=user)
        try:
            if _wait(process, lambda: ready(port)):  # noqa: B023 - called before the next round only
                yield port
                return
        finally:
            _end(process, stop_signal)
        # Another process may have taken the port in between: that is worth a second try.
        if attempt == TRIES:
            tail = log.read_text(errors="replace")[-4000:]
            raise StartFailed(
                f"{command(port)[0]} ended with {process.returncode} or gave no answer; its output:\n{tail}"
            )


def _start(
    command: Sequence[str], *, directory: Path, log: Path, environment: Mapping[str, str] | None, user: str | None
) -> subprocess.Popen[bytes]:
    setpriv = shutil.which("setpriv")
    wrapped = [setpriv, "--pdeathsig", "KILL", *command] if setpriv else list(command)
    with log.open("wb") as output:
        return subprocess.Popen(
            wrapped,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )


def _wait(process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if ready():
            # Someone else's server on the same port would answer too, while ours dies of it.
            return process.poll() is None
        time.sleep(POLL_S)
    return False


def _end(process: subprocess.Popen[bytes], stop_signal: signal.Signals) -> None:
    try:
        with suppress(subprocess.TimeoutExpired):
            process.send_signal(stop_signal)
            process.wait(STOP_TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
