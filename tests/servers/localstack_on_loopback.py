"""Run by LocalStack's own Python: LocalStack, listening on loopback only.

With its default server (the one that hides truncated uploads) LocalStack takes the port of GATEWAY_LISTEN and drops
the address, which would open the store to the network.
"""

from __future__ import annotations

import runpy

from twisted.internet import endpoints


class LoopbackEndpoint(endpoints.TCP4ServerEndpoint):
    """An endpoint that nobody outside of this machine reaches."""

    def __init__(self, reactor: object, port: int, backlog: int = 50) -> None:
        super().__init__(reactor, port, backlog, interface="127.0.0.1")


endpoints.TCP4ServerEndpoint = LoopbackEndpoint
runpy.run_module("localstack.runtime.main", run_name="__main__")
