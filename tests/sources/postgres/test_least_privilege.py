"""The role of the how-to page, as it stands there, is enough; and it is no superuser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.sources.postgres.capturing import Capture

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import DefiniteError
from penstock.positions import Lsn
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.copy import copy_range, page_ranges
from penstock.sources.postgres.slot import export_snapshot
from penstock.sources.postgres.watermark import Mark, Watermark, write_watermark
from penstock.testing.postgres import start_postgres

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "prepare-postgres.md"
_SECTION = PAGE.read_text(encoding="utf-8").partition("## A role with few privileges")[2].partition("\n### ")[0]
OWNING, READING = re.findall(r"^```sql\n(.*?)^```$", _SECTION, re.MULTILINE | re.DOTALL)
_MARKS = PAGE.read_text(encoding="utf-8").partition("## Watermarks and heartbeats")[2].partition("\n## ")[0]
(MARKING,) = re.findall(r"^```sql\n(.*?)^```$", _MARKS, re.MULTILINE | re.DOTALL)
YOURS = {"publication": "shop_changes", "publication_ownership": "user"}


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    with start_postgres(fsync=False) as started:
        started.execute("CREATE ROLE shop_owner")
        started.execute("CREATE DATABASE shop OWNER shop_owner")
        started.execute("SET ROLE shop_owner; CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)", "shop")
        yield started


@pytest.mark.parametrize(
    ("statements", "role", "options"),
    [
        (OWNING, "penstock", {}),
        (READING, "penstock_reader", YOURS),
        (OWNING, "penstock", {"watermarks": "table", "heartbeat": "table"}),
        (READING + MARKING, "penstock_reader", {**YOURS, "watermarks": "table"}),
    ],
    ids=["our publication", "your publication", "our tables", "your tables"],
)
def test_the_role_of_the_page_is_enough(
    server: EmbeddedPostgres, tmp_path: Path, statements: str, role: str, options: dict[str, Any]
) -> None:
    server.execute(statements, "shop")
    assert server.execute(f"SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = '{role}'") == [(False, False)]
    url = server.url_for("shop", role)
    capture = Capture(url, tmp_path / "log.db", "shop", **options)
    capture.start()
    try:
        (table,) = capture.config.tables
        with connect(url) as connection, export_snapshot(url) as snapshot:
            (pages,) = page_ranges(connection, table.name, 1)
            rows = [row for b in copy_range(url, snapshot.name, table, pages, snapshot.lsn) for row in b.to_pylist()]
        assert rows == [{"id": 1}]
        server.execute("INSERT INTO t VALUES (2)", "shop")
        with connect(url) as connection:
            low = Watermark(capture.config.identity, "0" * 32, 1, Mark.LOW)
            capture.wait(write_watermark(connection, capture.config.watermarks, low))
        capture.wait(Lsn.parse(server.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]))
        assert [change["after"] for change in capture.changes("t")] == [{"id": 2}]
    finally:
        capture.stop()
    assert f"slot {capture.config.slot}" in capture.config.cleanup()


def test_the_reader_can_change_nothing(server: EmbeddedPostgres, tmp_path: Path) -> None:
    server.execute(READING, "shop")
    url = server.url_for("shop", "penstock_reader")
    with connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("DELETE FROM t")
    with pytest.raises(DefiniteError, match="may not create a publication"):
        Capture(url, tmp_path / "log.db", "shop")
