"""One value on its way into the seam: planned once, on top of the head that the seam has read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rivet_dagster.attempt import Extraction, Head
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.manifest import Column
from rivet_dagster.orchestration.handle import ExportHandle
from rivet_dagster.orchestration.state import agreed, remembered

if TYPE_CHECKING:
    from rivet_dagster.exports.judge import Judge

__all__ = ["Planning"]


@dataclass(kw_only=True)
class Planning:
    """What is asked for, and after `plan` what became of it.

    Attributes:
        value: of the asset.
        name: of the export.
        output: how parts come out.
        uri: of the dataset; `None` where nothing stays at rest, and so nothing is continued.
        materialized: what Dagster recorded of the dataset, the newest first.
        log: of the step.
        columns: of the rows.
        judge: of the rows, where the export has gates.
        adopted: a delivery that the run goes on from and nobody had recorded.
    """

    value: Any
    name: str
    output: OutputSettings
    uri: str | None
    materialized: Callable[[], Iterator[Mapping[str, Any]]]
    log: logging.Logger
    columns: tuple[Column, ...] = field(default=(), init=False)
    judge: Judge | None = field(default=None, init=False)
    adopted: Mapping[str, Any] | None = field(default=None, init=False)

    def plan(self, head: Head | None) -> Extraction:
        """See `plan_export` and `plan_value` for what they raise."""
        # pyarrow loads only where rows are read or written.
        from rivet_dagster.exports.extraction import plan_export, plan_value  # noqa: PLC0415

        if isinstance(self.value, ExportHandle):
            base = None if self.value.full_refresh else head
            if head is None and not isinstance(self.value.export.mode, Incremental):
                self._tell_what_is_lost()
            planned = plan_export(
                self.value.export,
                export_name=self.name,
                source=self.value.database.source(),
                output=self.output,
                head=base.manifest if base else None,
                partition=self.value.partition,
                agree=lambda: self._agree(base),
                log=self.log,
                max_rows_per_second=self.value.database.max_rows_per_second,
            )
        else:
            planned = plan_value(
                self.value,
                export_name=self.name,
                output=self.output,
                head=head.manifest if head else None,
                log=self.log,
            )
        self.columns, self.judge = planned.content.columns, planned.judge
        return planned

    def _agree(self, head: Head | None) -> None:
        if self.uri is None or self.value.full_refresh:
            return
        self.adopted = agreed(head, remembered(self.materialized()), uri=self.uri)
        if self.adopted is not None:
            self.log.warning(
                "export '%s': goes on from %s at %s: %s",
                self.name,
                self.adopted["run_id"],
                self.uri,
                self.adopted["because"],
            )

    def _tell_what_is_lost(self) -> None:
        last = next(remembered(self.materialized()), None) if self.uri is not None else None
        if last is not None and last.uri.rstrip("/") == str(self.uri).rstrip("/"):
            self.log.warning(
                "export '%s': expected the delivery %s at %s, found nothing: the destination has lost it; it is "
                "exported anew",
                self.name,
                last.run_id,
                self.uri,
            )
