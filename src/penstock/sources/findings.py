"""Findings of preflight checks and of the checks of publication and slot."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Finding", "Level", "error", "errors_among", "info", "warning"]


class Level(enum.StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """Capture of the source, or of this table, cannot start."""
    WARNING = "warning"
    """Capture works, but an operator should know."""
    INFO = "info"
    """No action is needed."""


@dataclass(frozen=True)
class Finding:
    """One finding and its hint; `sql` has the statements that fix it, if there are any."""

    level: Level
    object: str
    why: str
    hint: str
    sql: tuple[str, ...] = ()


def error(about: str, why: str, hint: str = "", sql: Iterable[str] = ()) -> Finding:
    """Return a finding that prevents capture from starting."""
    return _finding(Level.ERROR, about, why, hint, tuple(sql))


def warning(about: str, why: str, hint: str = "", sql: Iterable[str] = ()) -> Finding:
    """Return a finding that may cause a failure later."""
    return _finding(Level.WARNING, about, why, hint, tuple(sql))


def info(about: str, why: str, hint: str = "") -> Finding:
    """Return a finding for information."""
    return _finding(Level.INFO, about, why, hint, ())


def errors_among(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of level error."""
    return [finding for finding in findings if finding.level is Level.ERROR]


def _finding(level: Level, about: str, why: str, hint: str, sql: tuple[str, ...]) -> Finding:
    """Put the statements into the hint, before its text."""
    run = f"Run: {' '.join(sql)}" if sql else ""
    return Finding(level, about, why, " ".join(part for part in (run, hint) if part), sql)
