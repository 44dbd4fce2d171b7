"""The roles of the how-to page are sufficient as documented, and are not superusers."""

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
from penstock.sources.postgres.replication.slot import export_snapshot
from penstock.sources.postgres.replication.watermark import Mark, Watermark, write_watermark
from penstock.sources.postgres.snapshot.copy import copy_range, page_ranges
from penstock.testing.postgres import start_postgres

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "prepare-postgres.md"
_SECTION = PAGE.read_text(encoding="utf-8").partition("## A role with few privileges")[2].partition("\n### ")[0]
OWNER_ROLE, READER_ROLE = re.findall(r"^```sql\n(.*?)^```$", _SECTION, re.MULTILINE | re.DOTALL)
_META_SECTION = PAGE.read_text(encoding="utf-8").partition("## Watermarks and heartbeats")[2].partition("\n## ")[0]
(META_TABLES,) = re.findall(r"^```sql\n(.*?)^```$", _META_SECTION, re.MULTILINE | re.DOTALL)
USER_PUBLICATION = {"publication": "shop_changes", "publication_ownership": "user"}


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
        (OWNER_ROLE, "penstock", {}),
        (READER_ROLE, "penstock_reader", USER_PUBLICATION),
        (OWNER_ROLE, "penstock", {"watermarks": "table", "heartbeat": "table"}),
        (READER_ROLE + META_TABLES, "penstock_reader", {**USER_PUBLICATION, "watermarks": "table"}),
    ],
    ids=["managed publication", "user publication", "managed meta tables", "user meta tables"],
)
def test_documented_role_is_sufficient(
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


def test_documented_reader_role_cannot_write(server: EmbeddedPostgres, tmp_path: Path) -> None:
    server.execute(READER_ROLE, "shop")
    url = server.url_for("shop", "penstock_reader")
    with connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("DELETE FROM t")
    with pytest.raises(DefiniteError, match="no privilege to create a publication"):
        Capture(url, tmp_path / "log.db", "shop")
