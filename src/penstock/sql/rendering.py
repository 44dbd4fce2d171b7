"""A source as the statement that makes it: ``SHOW CREATE`` shows it, and `grammar.parse` reads the same from it."""

from __future__ import annotations

from pydantic import BaseModel

from penstock.sources.name_syntax import written_name
from penstock.sources.option_syntax import written_clauses, written_settings

__all__ = ["written_source"]


def written_source(name: str, kind: str, sql_options: BaseModel, with_options: BaseModel) -> str:
    """Write the statement: only what differs from the defaults, a line each."""
    settings = written_settings(with_options)
    lines = [f"CREATE SOURCES {written_name(name)} FROM {kind}", *written_clauses(sql_options)]
    if settings:
        lines.append("WITH (\n    " + ",\n    ".join(settings) + "\n  )")
    return "\n  ".join(lines) + ";"
