"""What is said before the first query of an export: what its destination promises, and what planning found."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterable

from rivet_dagster.contract import DestinationCapabilities
from rivet_dagster.exports.plan import Diagnostic
from rivet_dagster.orchestration.run_facts import RunFacts

__all__ = ["announce", "announce_findings"]


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


def announce_findings(log: logging.Logger, found: Iterable[Diagnostic]) -> None:
    """Warn of what planning found, where somebody loads definitions.

    Dagster loads them again in a process for each run and each step: whoever started those has been told.
    """
    if multiprocessing.parent_process() is not None:
        return
    for finding in found:
        log.warning("%s", finding)


def _word(flag: bool) -> str:  # noqa: FBT001 - the one value it is about
    return "true" if flag else "false"
