"""What gates found in the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Example", "Finding", "Verdict"]

Example = Mapping[str, Any]
# Examples in an error's message.
_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one gate found.

    Attributes:
        gate: its name.
        column: that it judges, or several; "" where it judges how many rows there are.
        expected: what the rows have to be like.
        found: what they are like.
        passed: whether that will do.
        rows: how many rows are not as they should be, where that can be said of single ones.
        examples: some of them: their keys where the catalog knows one, and the values in question.
    """

    gate: str
    column: str = ""
    expected: str
    found: str
    passed: bool
    rows: int = 0
    examples: tuple[Example, ...] = ()

    def __str__(self) -> str:
        """As a message has it."""
        name = f"{self.gate} of {self.column}" if self.column else self.gate
        told = "; ".join(", ".join(f"{k}={v!r}" for k, v in one.items()) for one in self.examples[:_TOLD])
        return f"{name}: expected {self.expected}, found {self.found}" + (f" ({told})" if told else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What all gates found in the rows of one run.

    Attributes:
        rows: how many there were.
        findings: one for each gate; of rows that were not read to their end, only the one that had to refuse them.
    """

    rows: int
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """What keeps the rows from being published."""
        return tuple(f for f in self.findings if not f.passed)
