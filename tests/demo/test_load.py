"""The demo's load changes all tables, and its invariants hold at all times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from penstock.demo.load import Load
from penstock.demo.scenario import bank_checks, create_bank, shop_checks
from penstock.demo.shop import create_shop
from penstock.errors import UsageError
from penstock.testing.waiting import until

if TYPE_CHECKING:
    from tests.conftest import Database

TABLES = ("shop.customers", "shop.orders", "shop.order_lines", "shop.payments", "bank.accounts", "bank.transfers")
CHECKS = bank_checks() | shop_checks()


@pytest.fixture
def upstream(database: Database) -> Database:
    """A small shop and a bank with few accounts, so that transfers compete for them."""
    with database.connect() as connection:
        create_shop(connection, customers=200)
        create_bank(connection, accounts=20)
    return database


def violations(connection: psycopg.Connection[Any]) -> dict[str, list[Any]]:
    found = {name: connection.execute(query).fetchall() for name, query in CHECKS.items()}
    return {name: rows for name, rows in found.items() if rows}


def fingerprints(database: Database) -> dict[str, str]:
    rows = {t: database.execute(f"SELECT md5(string_agg(r::text, ',' ORDER BY r::text)) FROM {t} r") for t in TABLES}
    return {table: str(found[0][0]) for table, found in rows.items()}


def test_new_tables_are_filled_and_consistent(upstream: Database) -> None:
    counts = {table: upstream.execute(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}
    assert counts == dict(zip(TABLES, (200, 400, 1000, 300, 20, 0), strict=True))
    with upstream.connect() as connection:
        assert violations(connection) == {}


def test_every_table_has_a_primary_key_and_a_comment(upstream: Database) -> None:
    rows = upstream.execute(
        "SELECT c.oid::regclass::text, obj_description(c.oid, 'pg_class') FROM pg_class c"
        " JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary WHERE c.relnamespace::regnamespace::text"
        " IN ('shop', 'bank')"
    )
    assert {name for name, _ in rows} == set(TABLES)
    assert all(comment for _, comment in rows)


def test_some_customers_have_toasted_values(upstream: Database) -> None:
    upstream.needs(17, "pg_column_toast_chunk_id")
    large = "SELECT count(*) FROM shop.customers WHERE pg_column_toast_chunk_id({}) IS NOT NULL"
    assert upstream.execute(large.format("notes")) == [(10,)]
    assert upstream.execute(large.format("profile")) == [(10,)]


def test_the_same_sizes_give_the_same_rows(upstream: Database) -> None:
    first = {t: f for t, f in fingerprints(upstream).items() if t.startswith("shop")}
    with upstream.connect() as connection:
        connection.execute("DROP SCHEMA shop CASCADE")
        create_shop(connection, customers=200)
    assert {t: f for t, f in fingerprints(upstream).items() if t.startswith("shop")} == first


def test_all_tables_change_and_invariants_hold(upstream: Database) -> None:
    before = fingerprints(upstream)
    checks = 0
    with Load(upstream.url, rate=400, threads=3, seed=1) as load, upstream.connect(autocommit=False) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

        def has_checked_enough() -> bool:
            nonlocal checks
            assert violations(reader) == {}
            reader.rollback()
            checks += 1
            return (load.transactions >= 600 and checks > 3) or not load.running

        until(has_checked_enough, "600 transactions and some checks")
    assert 0.35 < load.transfers / load.transactions < 0.65
    assert upstream.execute("SELECT count(*) FROM bank.transfers") == [(load.transfers,)]
    after = fingerprints(upstream)
    assert [table for table in TABLES if after[table] == before[table]] == []
    with upstream.connect() as connection:
        assert violations(connection) == {}


def test_rows_are_inserted_updated_and_deleted(upstream: Database) -> None:
    with Load(upstream.url, rate=2000, seed=2) as load:
        until(lambda: load.transactions >= 500 or not load.running, "500 transactions")
    changes = "SELECT n_tup_ins - {initial}, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = '{name}'"

    def changed() -> bool:
        orders = upstream.execute(changes.format(initial=400, name="orders"))[0]
        lines = upstream.execute(changes.format(initial=1000, name="order_lines"))[0]
        return bool(min(orders) > 0 and lines[0] > 0 and lines[2] > 0)

    until(changed, "statistics that show inserts, updates and deletes")


def test_violations_are_found(upstream: Database) -> None:
    with upstream.connect() as connection:
        connection.execute("SELECT bank.transfer(1, 2, 10, NULL)")
        connection.execute("UPDATE bank.accounts SET balance = balance + 10 WHERE id = 1")
        connection.execute("UPDATE shop.orders SET total = total + 1 WHERE id = 3")
        assert set(violations(connection)) == {
            "money is neither made nor lost",
            "each balance is the sum of its transfers",
            "each order's total is the sum of its lines",
        }


def test_rate_is_not_exceeded(upstream: Database) -> None:
    """The actual rate depends on the machine."""
    start = time.monotonic()
    with Load(upstream.url, rate=50, threads=2) as load:
        until(lambda: load.transactions >= 100 or not load.running, "100 transactions")
    assert 100 <= load.transactions <= 50 * (time.monotonic() - start) + 2


def test_seed_determines_the_transfers(upstream: Database) -> None:
    def transfers(seed: int) -> list[Any]:
        upstream.execute("TRUNCATE bank.transfers")
        with Load(upstream.url, rate=2000, threads=1, seed=seed) as load:
            until(lambda: load.transfers >= 20 or not load.running, "20 transfers")
        return upstream.execute("SELECT from_account, to_account, amount FROM bank.transfers ORDER BY id LIMIT 20")

    assert transfers(1) == transfers(1) != transfers(2)


def test_an_error_in_a_worker_is_raised_on_stop(upstream: Database) -> None:
    upstream.execute("DROP FUNCTION bank.transfer")
    load = Load(upstream.url, rate=500).start()
    until(lambda: not load.running, "the error")
    with pytest.raises(psycopg.errors.UndefinedFunction):
        load.stop()


def test_error_of_the_block_takes_precedence(upstream: Database) -> None:
    upstream.execute("DROP FUNCTION bank.transfer")
    with pytest.raises(KeyError), Load(upstream.url, rate=500) as load:
        until(lambda: not load.running, "the error of a worker")
        raise KeyError


def test_rate_of_zero_is_rejected() -> None:
    with pytest.raises(UsageError, match="rate greater than 0"):
        Load("postgresql://", rate=0)
