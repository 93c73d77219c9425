"""What planning an export begins with and ends with: what was asked for, and rows that can be encoded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from rivet_dagster.contract import EncodedPart, Staged
from rivet_dagster.errors import ConfigError, ContractError
from rivet_dagster.exports.appending import check_growth
from rivet_dagster.exports.content import content_of_export, identity_of, schema_of_export
from rivet_dagster.exports.drift import drift_of
from rivet_dagster.exports.judge import Judge
from rivet_dagster.exports.memory import divide
from rivet_dagster.exports.modes import Incremental
from rivet_dagster.exports.output import OutputSettings
from rivet_dagster.exports.pace import Pace
from rivet_dagster.exports.progress import Progress
from rivet_dagster.exports.reading import Encoder, Reading
from rivet_dagster.exports.resume import Resume
from rivet_dagster.exports.spec import Export
from rivet_dagster.manifest import Content, Identity, Manifest
from rivet_dagster.rows import IncrementalSource, Query, ResultStream, Source, SplittableSource

__all__ = ["Asked", "Described", "Extraction"]

_SHOWN_RETRIES = 20


@dataclass(slots=True, kw_only=True)
class Extraction:
    """Rows that can be encoded once, and what the manifest will say of them.

    Attributes:
        content: what is known before the first row.
        output: how parts come out.
        read: reads and encodes the rows; called once.
        stop: stops reading and frees what is read from; may be called again.
        parallel: how many parts are encoded at a time.
        said: what is known of the reading, as metadata.
        retried: why reading was begun again, each time.
        coerced: how many values became NULL that would have been refused, by column.
        resume: leaves out what a dead run has exported; `None` where all rows must be read.
        judge: of the rows, where the export has gates.
        gates: called after the last row.
        suffix: of the parts, e.g. ".csv.gz".
        skip_empty: a run without rows leaves the dataset as it was.
    """

    content: Content
    output: OutputSettings
    read: Callable[[Callable[[], Staged]], Iterator[EncodedPart]]
    stop: Callable[[], None]
    parallel: int = 1
    said: Mapping[str, Any] = field(default_factory=dict)
    retried: Sequence[str] = ()
    coerced: Callable[[], Mapping[str, int]] = dict
    resume: Resume | None = None
    judge: Judge | None = None
    gates: Sequence[Callable[[], None]] = ()
    suffix: str = field(init=False)
    skip_empty: bool = field(init=False)

    def __post_init__(self) -> None:
        self.suffix = self.output.suffix
        self.skip_empty = self.output.skip_empty
        if self.judge is not None:
            self.gates = (*self.gates, self.judge.gate)

    def parts(self, stage: Callable[[], Staged]) -> Iterator[EncodedPart]:
        """Read and encode; `stage` is called when the first row of a part is there, never for an empty part.

        It is called by one thread at a time, and never after `close`.

        Raises:
            SourceError: reading failed; the parts that were not complete are discarded.
            ContractError: the rows are not what was described; likewise.
        """
        return self.read(stage)

    def counters(self) -> Mapping[str, Any]:
        """What was counted while reading, and how it was read: metadata."""
        said = dict(self.said)
        if coerced := self.coerced():
            said["rivet/coerced"] = coerced
        if self.retried:
            causes = list(self.retried[:_SHOWN_RETRIES])
            said["rivet/source_retries"] = {"count": len(self.retried), "causes": causes}
        return said

    def close(self) -> None:
        """Stop reading and free the source; may be called at any time and again."""
        self.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A result whose columns are known.

    Attributes:
        content: what the manifest will say.
        encoder: how rows become parts.
        said: what is known of them, as metadata.
    """

    content: Content
    encoder: Encoder
    said: Mapping[str, Any]

    def extraction(
        self,
        read: Callable[[Callable[[], Staged]], Iterator[EncodedPart]],
        stop: Callable[[], None],
        *,
        said: Mapping[str, Any],
        parallel: int = 1,
        resume: Resume | None = None,
    ) -> Extraction:
        """Its rows, read by `read`; see `Extraction` for the arguments."""
        return Extraction(
            content=self.content if resume is None else resume.content,
            output=self.encoder.output,
            read=read,
            stop=stop,
            parallel=parallel,
            said={**self.said, **said},
            retried=self.encoder.retried,
            coerced=self.encoder.coerced_values,
            resume=resume,
            judge=self.encoder.judge,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What `plan_export` was asked for; `head` is what its rows replace, or are added to."""

    export: Export
    export_name: str
    source: Source
    output: OutputSettings
    subject: str
    progress: Progress
    pace: Pace
    head: Manifest | None = None

    @property
    def identity(self) -> Identity:
        """Whose dataset it is."""
        return identity_of(self.export, export_name=self.export_name, source=self.source)

    def windows(self, what: str) -> IncrementalSource:
        """The source, where it can read windows.

        Args:
            what: needs them.

        Raises:
            ConfigError: it cannot.
        """
        if isinstance(self.source, IncrementalSource):
            return self.source
        msg = f"{self.subject}: expected a source with windows for {what}, found {self.source.engine}"
        raise ConfigError(f"{msg}; read it by the URL of its own kind where there is one, or export with Full()")

    def by_one_statement(
        self, query: Query, stream: ResultStream, described: Described, *, said: Mapping[str, Any]
    ) -> Extraction:
        """All rows of `query`, of which `stream` is the first reading."""
        ahead = divide(self.output.max_memory, self.output.format).ahead_bytes
        reading = Reading(described.encoder, partial(self.source.open, query), ahead_bytes=ahead, opened=stream)
        return described.extraction(reading.parts, reading.close, said=said)

    def described(self, stream: ResultStream, *, in_ranges: bool = False) -> Described:
        """What the manifest will say, and how rows become parts.

        Args:
            stream: of the rows, or of some.
            in_ranges: whether rows come by several readings.

        Raises:
            ConfigError: the columns cannot be exported like this; the stream is closed.
            ContractError: they are not those of the dataset, and have to be; likewise.
        """
        try:
            return self._described(stream, in_ranges=in_ranges)
        except BaseException:
            stream.close()
            raise

    def _described(self, stream: ResultStream, *, in_ranges: bool) -> Described:
        schema = schema_of_export(stream.columns, self.export, output=self.output, subject=self.subject)
        content = content_of_export(
            self.export,
            export_name=self.export_name,
            source=self.source,
            output=self.output,
            schema=schema,
            described=stream.columns,
        )
        encoder = Encoder(
            schema=schema,
            output=self.output,
            subject=self.subject,
            progress=self.progress,
            pace=self.pace,
            coerce=self.export.source_query.coerce,
            judge=self._judge(schema, in_ranges=in_ranges),
        )
        return Described(content=content, encoder=encoder, said=self._drift(content))

    def _drift(self, content: Content) -> Mapping[str, Any]:
        """What is said of columns that are not those of the dataset, where they need not be."""
        policy, head = self.export.on_schema_drift, self.head
        drift = drift_of(content.columns, head)
        if head is not None and isinstance(self.export.mode, Incremental):
            check_growth(content, head, drift, allowed=policy in {"warn", "allow"})
        elif head is not None and drift and policy == "fail":
            raise ContractError(
                f"{head.destination_uri}: expected the columns of the dataset that this run replaces, found others: "
                f'{drift}; set them back, set on_schema_drift to "warn" or "allow", or export with full_refresh: true '
                "in the run's config"
            )
        if not drift or policy == "allow":
            return {}
        self.progress.warn(f"the columns are not those of the dataset that is there: {drift}")
        return {"rivet/schema_drift": drift.said}

    def _judge(self, schema: pa.Schema, *, in_ranges: bool) -> Judge | None:
        quality, source = self.export.quality, self.source
        if quality is None:
            return None
        keys = source.keys(self.export.source_query) if isinstance(source, SplittableSource) else ()
        key = keys[0].columns if keys else ()
        return Judge(quality, schema, subject=self.subject, key=key, numbered=not in_ranges)
