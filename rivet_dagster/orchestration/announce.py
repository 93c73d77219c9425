"""What is said about a destination's promises before the first query of an export."""

from __future__ import annotations

import logging

from rivet_dagster.contract import DestinationCapabilities
from rivet_dagster.orchestration.run_facts import RunFacts

__all__ = ["announce"]


def announce(
    log: logging.Logger, *, export_name: str, kind: str, capabilities: DestinationCapabilities, facts: RunFacts
) -> None:
    """Say what the destination promises, on every attempt; warn once per run that automatic retries are not safe.

    Args:
        log: of the step.
        export_name: as a person knows it.
        kind: of the destination.
        capabilities: its promises.
        facts: which attempt this is, and whether Dagster would repeat it.
    """
    promised = capabilities
    log.info(
        "export '%s': destination commit_protocol=%s idempotent=%s retry_safe=%s partial_risk=%s",
        export_name,
        promised.commit_protocol.value,
        _word(promised.idempotent_overwrite),
        _word(promised.retry_safe),
        _word(promised.partial_write_risk),
    )
    if promised.retry_safe or facts.max_retries == 0 or facts.attempt > 1:
        return
    log.warning(
        "export '%s': %s destination is not retry-safe (max_retries=%d); "
        "partial artifacts may exist at destination on failure — manual cleanup may be needed",
        export_name,
        kind,
        facts.max_retries,
    )


def _word(flag: bool) -> str:  # noqa: FBT001 - the one value it is about
    return "true" if flag else "false"
