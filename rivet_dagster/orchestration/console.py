"""What the console script prints: tables and documents, without what a URL in them may carry, and nothing of others."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from rivet_dagster.orchestration.failures import masked_urls

__all__ = ["Masking", "print_json", "print_line", "print_table", "quiet"]


class Masking(click.Group):
    """Where click itself refuses a command line, its message repeats no secret of it."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _masking():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _masking():
            return super().invoke(ctx)


@contextmanager
def _masking() -> Iterator[None]:
    try:
        yield
    except click.UsageError as e:
        raise click.UsageError(masked_urls(e.format_message()), ctx=e.ctx) from None


@contextmanager
def quiet() -> Iterator[None]:
    """What a code location has to say while it loads is said by Dagster's own commands."""
    ours, everybody, silence = logging.getLogger("rivet_dagster"), logging.getLogger(), logging.NullHandler()
    propagated = ours.propagate
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours.addHandler(silence)
        ours.propagate = False
        # What SDKs say besides their errors would otherwise be printed by Python's last resort.
        everybody.addHandler(silence)
        try:
            yield
        finally:
            everybody.removeHandler(silence)
            ours.removeHandler(silence)
            ours.propagate = propagated


def print_line(line: str, *, err: bool = False) -> None:
    """One, or a paragraph."""
    click.echo(masked_urls(line), err=err)


def print_json(document: Mapping[str, Any]) -> None:
    """The only document of a command."""
    click.echo(json.dumps(_masked(document), indent=2, ensure_ascii=False))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """In columns, each as wide as its widest text."""
    lines = [tuple(headings), *(tuple(map(masked_urls, row)) for row in rows)]
    widths = [max(len(x) for x in column) for column in zip(*lines, strict=True)]
    for row in lines:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _masked(value: Any) -> Any:
    """The texts in a document, each by itself."""
    if isinstance(value, Mapping):
        return {key: _masked(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float) else masked_urls(str(value))
