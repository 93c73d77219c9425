"""What a destination declares is what its store shows."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from rivet_dagster.contract import DestinationCapabilities, ObjectDestination, WriteCommitProtocol
from rivet_dagster.destinations.local import LocalDestination
from rivet_dagster.destinations.stdout import StdoutDestination
from rivet_dagster.testing import observe_capabilities
from tests.harnesses import LocalHarness, StdoutHarness


def test_declared_capabilities_are_the_observed_ones(harness):
    assert observe_capabilities(harness) == harness.fresh().capabilities


def test_objects_can_be_looked_at_exactly_where_they_are_at_rest(harness):
    destination = harness.fresh()
    at_rest = destination.capabilities.commit_protocol.leaves_objects_at_rest
    assert isinstance(destination, ObjectDestination) is at_rest


def test_capabilities_are_known_without_a_client(harness):
    """Planning reads them off the class."""
    kind = type(harness.fresh())
    assert isinstance(kind.capabilities, DestinationCapabilities)


def test_a_forgotten_promise_does_not_construct():
    complete = dataclasses.asdict(LocalDestination.capabilities)
    for name in complete:
        with pytest.raises(TypeError, match=name):
            DestinationCapabilities(**{k: v for k, v in complete.items() if k != name})


class InPlace(LocalDestination):
    """Writes straight to the final name, and so lies about its promises."""

    def write(self, key, body, *, md5, expect):
        from rivet_dagster.contract import WriteOutcome
        from rivet_dagster.destinations.bodies import as_body

        path = self._base / key
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb", buffering=0) as out, as_body(body).open() as source:
            while piece := source.read(4096):
                out.write(piece)
        return WriteOutcome(size_bytes=path.stat().st_size, version="1")


class PublishesOnError(LocalDestination):
    """Closes the final name on the way out of an error, as file-like writers of object stores do."""

    def write(self, key, body, *, md5, expect):
        from rivet_dagster.destinations.bodies import as_body

        pieces = []
        try:
            with as_body(body).open() as source:
                while piece := source.read(4096):
                    pieces.append(piece)
        finally:
            path = self._base / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(pieces))
        return super().write(key, body, md5=md5, expect=expect)


class LeavesItsTemporary(LocalDestination):
    """Forgets what it had staged when a write breaks."""

    def write(self, key, body, *, md5, expect):
        from rivet_dagster.destinations.bodies import as_body

        staged = self.stage(key)
        try:
            with as_body(body).open() as source:
                while piece := source.read(4096):
                    staged.write(piece)
        except BaseException:
            staged._raw.close()
            raise
        staged.close()
        outcome = super().write(key, staged, md5=md5, expect=expect)
        staged.discard()
        return outcome


class Appends(LocalDestination):
    """Adds to what is there."""

    def write(self, key, body, *, md5, expect):
        from hashlib import md5 as md5_of

        from rivet_dagster.destinations.bodies import as_body

        found = self.read(key)
        with as_body(body).open() as source:
            whole = (found.body if found else b"") + source.read()
        return super().write(key, whole, md5=md5_of(whole).digest(), expect=expect)


class CreatesOnly(LocalDestination):
    """Refuses to replace."""

    def write(self, key, body, *, md5, expect):
        from rivet_dagster.contract import ABSENT

        return super().write(key, body, md5=md5, expect=ABSENT)


class Holds(StdoutDestination):
    """Sends nothing before all of it is there and right."""

    def write(self, key, body, *, md5, expect):
        from rivet_dagster.destinations.bodies import as_body, checked

        whole = b"".join(checked(key, as_body(body), md5=md5))
        return super().write(key, whole, md5=md5, expect=expect)


@pytest.mark.parametrize(
    ("leaky", "observed"),
    [
        (
            InPlace,
            {"commit_protocol": WriteCommitProtocol.STREAMING, "partial_write_risk": True},
        ),
        (PublishesOnError, {"partial_write_risk": True}),
        (LeavesItsTemporary, {"retry_safe": False}),
        (Appends, {"idempotent_overwrite": False}),
        (CreatesOnly, {"idempotent_overwrite": False}),
    ],
)
def test_a_leaky_destination_is_unmasked(tmp_path, leaky, observed):
    """It declares what it inherits; the experiments say what is true, and nothing else."""

    class Harness(LocalHarness):
        def recipe(self):
            return partial(leaky, self.root)

    assert observe_capabilities(Harness(tmp_path)) == dataclasses.replace(leaky.capabilities, **observed)


def test_a_stream_is_unmasked_by_what_it_sends_while_encoding():
    """That whole bodies are held back does not make it safe: a part leaves while it is being encoded."""

    class Harness(StdoutHarness):
        def again(self):
            return Holds(self._stream)

    assert observe_capabilities(Harness()) == Holds.capabilities


def test_a_write_that_never_reads_its_body_is_an_error_of_the_experiment(tmp_path):
    class Ignores(LocalDestination):
        def write(self, key, body, *, md5, expect):
            return None

    class Harness(LocalHarness):
        def recipe(self):
            return partial(Ignores, self.root)

    with pytest.raises(AssertionError, match="without reading its body"):
        observe_capabilities(Harness(tmp_path))
