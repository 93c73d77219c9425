"""Run by LocalStack's own Python: LocalStack, listening on loopback only, and completing one upload at a time.

With its default server (the one that hides truncated uploads) LocalStack takes the port of GATEWAY_LISTEN and drops
the address, which would open the store to the network. It also compares and completes in two steps, so that of several
conditional completions at once more than one can win; S3 lets one win. And all LocalStacks of a machine have one
directory for their buckets, where one removes those of another that have the same name.
"""

from __future__ import annotations

import functools
import os
import runpy
import threading
from typing import Any

from localstack.services.s3 import provider
from localstack.services.s3.provider import S3Provider
from twisted.internet import endpoints


class LoopbackEndpoint(endpoints.TCP4ServerEndpoint):
    """An endpoint that nobody outside of this machine reaches."""

    def __init__(self, reactor: object, port: int, backlog: int = 50) -> None:
        super().__init__(reactor, port, backlog, interface="127.0.0.1")


_complete, _one_at_a_time = S3Provider.complete_multipart_upload, threading.Lock()


@functools.wraps(_complete)
def complete_alone(*args: Any, **kwargs: Any) -> Any:
    """Compare and complete in one step."""
    with _one_at_a_time:
        return _complete(*args, **kwargs)


S3Provider.complete_multipart_upload = complete_alone
provider.DEFAULT_S3_TMP_DIR = f"{os.environ['FILESYSTEM_ROOT']}/buckets"
endpoints.TCP4ServerEndpoint = LoopbackEndpoint
runpy.run_module("localstack.runtime.main", run_name="__main__")
