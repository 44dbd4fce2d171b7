"""The reference pages, made from the code: ``python -m docs.generate`` writes them, ``--check`` only compares.

::

    typer app ─▶ cli.md              PenstockOptions ─▶ spark-source.md     errors.py ─▶ errors.md
    codecs ─▶ types.md               states.py ─▶ states.md                 HomeStatus ─▶ status.md
    CheckReport ─▶ check.md          PostgresOptions ─▶ source-options.md   transaction_json ─▶ tail.md
    VerifyReport ─▶ verify.md        options of other kinds ─▶ other-sources.md
    statements.py, options ─▶ sql.md KafkaWithOptions ─▶ kafka-options.md   DETECTED ─▶ detected.md

A page is a module with a function `page`. What the code does not say, a word on each field of the status and on each
type, stands in that module; a field or a type without one is a `KeyError`, so a page cannot lag behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from docs.generate import (
    check,
    cli,
    detected,
    errors,
    kafka_options,
    other_sources,
    source_options,
    spark_source,
    sql,
    states,
    status,
    tail,
    types,
    verify,
)
from docs.generate.errors import EXIT_CODES

__all__ = ["EXIT_CODES", "FOLDER", "main", "pages"]

FOLDER = Path(__file__).parent.parent / "reference"
_MADE = "<!-- Made by docs/generate from the code. Change it there. -->"


def pages() -> dict[str, str]:
    """Return all pages: file name → text."""
    makers: dict[str, Callable[[], str]] = {
        "cli.md": cli.page,
        "spark-source.md": spark_source.page,
        "errors.md": errors.page,
        "types.md": types.page,
        "states.md": states.page,
        "status.md": status.page,
        "check.md": check.page,
        "tail.md": tail.page,
        "verify.md": verify.page,
        "source-options.md": source_options.page,
        "other-sources.md": other_sources.page,
        "kafka-options.md": kafka_options.page,
        "sql.md": sql.page,
        "detected.md": detected.page,
    }
    return {name: f"{_MADE}\n\n{make().strip()}\n" for name, make in makers.items()}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or say which are not current."""
    made = pages()
    stale = [name for name, text in made.items() if _stored(name) != text]
    if "--check" in arguments:
        print("\n".join(f"not current: docs/reference/{name}" for name in stale) or "all current")
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(made[name], encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 0


def _stored(name: str) -> str | None:
    path = FOLDER / name
    return path.read_text(encoding="utf-8") if path.exists() else None
