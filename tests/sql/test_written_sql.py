"""SQL on the pages of the docs can be typed: statements of ours are read, queries are resolved."""

from __future__ import annotations

import pytest

from penstock.sources.postgres.options import PostgresKind
from penstock.sql.grammar import parse
from penstock.sql.query import resolve
from penstock.sql.script import divided
from tests.test_docs import PAGES, ROOT, blocks

SHOWN = [(path, block) for path in PAGES for block in blocks(path, "sql")]
UPSTREAM = (
    "ALTER ROLE",
    "ALTER SYSTEM",
    "ALTER TABLE",
    "ALTER PUBLICATION",
    "CREATE PUBLICATION",
    "CREATE ROLE",
    "GRANT",
)
"""What is shown for psql."""


def test_there_is_sql_to_look_at() -> None:
    assert any(path.name == "sql.md" for path, _ in SHOWN)


@pytest.mark.parametrize(("path", "block"), SHOWN, ids=[f"{path.relative_to(ROOT)}" for path, _ in SHOWN])
def test_sql_on_a_page_can_be_typed(path: object, block: str) -> None:
    for piece in divided(block):
        if not piece.text.startswith(UPSTREAM) and parse(piece.text, {"POSTGRES": PostgresKind}) is None:
            resolve(piece.text, {}, "v")
