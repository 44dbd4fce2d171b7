"""ALTER SOURCES … SET (connection = …): capture continues over another connection to the same cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import created_database
from tests.engine.shop import Shop

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import until

SETUP = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)"


def test_capture_continues_over_another_connection(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    moved = f"{shop.database.url}{'&' if '?' in shop.database.url else '?'}application_name=moved"
    with shop.writing("INSERT INTO t VALUES (%s)"):
        shop.home.sql(f"ALTER SOURCES shop SET (connection = '{moved}')")
        reads = "SELECT 1 FROM pg_stat_replication WHERE application_name = 'moved'"
        until(lambda: bool(shop.database.execute(reads)), "capture over the new connection")
    shop.database.execute("DELETE FROM t WHERE id = 1")
    assert shop.equal()
    assert "application_name=moved" in shop.home.statement("shop")
    assert shop.home.status().sources[0].error is None


def test_other_databases_are_rejected(start_shop: Callable[..., Shop], postgres_server: EmbeddedPostgres) -> None:
    shop = start_shop(SETUP)
    before = shop.home.statement("shop")
    with created_database(postgres_server) as other, start_postgres() as cluster:
        cluster.execute(SETUP)
        _rejected(shop, other.url, DefiniteError, "belongs to another database")
        _rejected(shop, cluster.url, DefiniteError, "its system identifier is")
        unreachable = cluster.url
    _rejected(shop, unreachable, TransientError, "127.0.0.1")
    _rejected(shop, "postgresql://user:secret@host/db", UsageError, "password")
    assert shop.home.statement("shop") == before
    shop.database.execute("INSERT INTO t VALUES (2)")
    assert shop.equal()


def _rejected(shop: Shop, url: str, error: type[PenstockError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        shop.home.alter("shop", connection=url)
    shown: Any = caught.value
    assert "secret" not in f"{shown.message} {shown.hint}"
