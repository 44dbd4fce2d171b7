"""Findings: what preflight and the contracts of publication and slot have to say, in one shape."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Finding", "Level", "error", "errors_among", "info", "warning"]


class Level(enum.StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """Capture cannot start, or not for this table."""
    WARNING = "warning"
    """Capture works, but somebody should know."""
    INFO = "info"
    """Worth knowing; nothing needs to be done."""


@dataclass(frozen=True)
class Finding:
    """One thing that was found, and what mends it; `sql` are the statements that do, where they can be named."""

    level: Level
    object: str
    why: str
    hint: str
    sql: tuple[str, ...] = ()


def error(about: str, why: str, hint: str = "", sql: Iterable[str] = ()) -> Finding:
    """Something that keeps capture from starting."""
    return _finding(Level.ERROR, about, why, hint, tuple(sql))


def warning(about: str, why: str, hint: str = "", sql: Iterable[str] = ()) -> Finding:
    """Something that will hurt one day."""
    return _finding(Level.WARNING, about, why, hint, tuple(sql))


def info(about: str, why: str, hint: str = "") -> Finding:
    """Something worth knowing."""
    return _finding(Level.INFO, about, why, hint, ())


def errors_among(findings: Iterable[Finding]) -> list[Finding]:
    """Return the errors."""
    return [finding for finding in findings if finding.level is Level.ERROR]


def _finding(level: Level, about: str, why: str, hint: str, sql: tuple[str, ...]) -> Finding:
    """Statements are part of the hint; a hint may say more than they do."""
    run = f"Run: {' '.join(sql)}" if sql else ""
    return Finding(level, about, why, " ".join(part for part in (run, hint) if part), sql)
