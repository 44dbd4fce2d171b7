"""The whole pipeline: Postgres → change log → Spark → live tables."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.demo.load import Load
from penstock.demo.scenario import bank_look
from penstock.engine.runner import HomeRunner
from penstock.home import Home
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE, until
from tests.conftest import Database

READS = int(os.environ.get("PENSTOCK_LOOKS", "12"))
"""How often the bank is read."""


def upstream_lsn(database: Database) -> Lsn:
    return Lsn.parse(database.execute("SELECT pg_current_wal_lsn()::text")[0][0])


def wait_until_readable(home: Home, source: str, lsn: Lsn) -> None:
    until(lambda: home.frontiers(source).durable >= lsn, f"{source} to reach {lsn}")


def transfer(database: Database, times: int) -> None:
    for _ in range(times):
        database.execute("SELECT bank.transfer(1, 2, 1.00, 'test')")


def wait_until_applied(home: Home, table: str, lsn: Lsn) -> None:
    """Wait until the log has reached a position, and the base table has all changes of the log."""

    def applied() -> bool:
        source = home.status().sources[0]
        found = next(t for t in source.tables if t.name == table)
        return source.durable is not None and Lsn.parse(source.durable) >= lsn and found.behind == 0

    until(applied, f"{table} to be applied up to {lsn}")


@pytest.fixture
def running_home(tmp_path: Path, shop_and_bank: Database, spark: SparkSession) -> Iterator[tuple[Home, HomeRunner]]:
    home = penstock.open(tmp_path / "home")
    home.create(shop_and_bank.url, "demo")
    with home.run(spark) as running:
        running.wait_live(PATIENCE)
        yield home, running
    home.drop("demo")


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_no_read_sees_half_a_transfer(
    running_home: tuple[Home, HomeRunner], shop_and_bank: Database, spark: SparkSession
) -> None:
    home, _ = running_home

    def read(_: int) -> tuple[Decimal, int]:
        live = home.live(spark)
        total, transfers, broken = live.sql(bank_look("demo.accounts", "demo.transfers")).collect()[0]
        assert broken == 0, f"at {live.position}"
        return total, transfers

    with Load(shop_and_bank.url, rate=40), ThreadPoolExecutor(2) as readers:
        reads = list(readers.map(read, range(READS)))
    assert len({total for total, _ in reads}) == 1
    assert len({transfers for _, transfers in reads}) > READS / 4, "the reads must see the bank change"
    assert all(verdict.equal for verdict in home.verify(spark, "demo"))


@pytest.mark.slow("the whole pipeline once, in processes with a Spark of their own")
def test_every_kind_of_change_arrives(
    running_home: tuple[Home, HomeRunner], shop_and_bank: Database, spark: SparkSession
) -> None:
    home, _ = running_home
    with shop_and_bank.connect() as connection:
        connection.execute(
            "UPDATE shop.customers SET id = id + 100000"
            " WHERE id % 7 = 0 AND id NOT IN (SELECT customer_id FROM shop.orders)"
        )
        connection.execute("DELETE FROM shop.payments WHERE id IN (SELECT id FROM shop.payments LIMIT 5)")
        connection.execute("UPDATE shop.customers SET notes = repeat(md5(id::text), 500) WHERE id = 1")
        connection.execute("UPDATE shop.customers SET loyalty_points = loyalty_points + 1 WHERE id = 1")
        connection.execute("TRUNCATE bank.transfers")
        connection.execute("UPDATE bank.accounts SET balance = opening, transfer_count = 0")
    wait_until_readable(home, "demo", upstream_lsn(shop_and_bank))
    assert home.live(spark).table("demo.transfers").count() == 0
    verdicts = home.verify(spark, "demo")
    assert {verdict.table: verdict.equal for verdict in verdicts} == dict.fromkeys((v.table for v in verdicts), True)


@pytest.mark.deep
def test_failed_table_does_not_affect_the_others(
    running_home: tuple[Home, HomeRunner], shop_and_bank: Database, spark: SparkSession
) -> None:
    home, _ = running_home
    shop_and_bank.execute("ALTER TABLE shop.payments ADD COLUMN surprise double precision DEFAULT random()")
    before = upstream_lsn(shop_and_bank)
    shop_and_bank.execute("UPDATE shop.payments SET surprise = 1 WHERE id = (SELECT id FROM shop.payments LIMIT 1)")
    with Load(shop_and_bank.url, rate=20) as load:
        until(lambda: load.transactions >= 40 or not load.running, "some load")
    wait_until_readable(home, "demo", upstream_lsn(shop_and_bank))
    live = home.live(spark)
    with pytest.raises(penstock.TableError, match="surprise") as caught:
        live.table("demo.payments")
    assert caught.value.lsn > before
    assert "RETRY TABLE shop.payments" in caught.value.hint
    assert live.table("demo.accounts").count() == 50
    failed = until(lambda: [t for t in home.status().sources[0].tables if t.error], "the error in the status")
    assert [t.upstream for t in failed] == ["shop.payments"]


@pytest.mark.deep
def test_crash_between_commit_and_catalog_update_applies_nothing_twice(
    tmp_path: Path, shop_and_bank: Database, spark: SparkSession
) -> None:
    home = penstock.open(tmp_path / "home")
    home.create(shop_and_bank.url, "demo")
    with home.run(spark) as running:
        running.wait_live(PATIENCE)
        transfer(shop_and_bank, 10)
        wait_until_applied(home, "demo.transfers", upstream_lsn(shop_and_bank))
    with closing(sqlite3.connect(tmp_path / "home" / "penstock.db")) as catalog, catalog:
        deleted = catalog.execute("DELETE FROM base_version WHERE local = 'transfers' AND version > 0").rowcount
    assert deleted >= 1, "there must be a commit that is not in the catalog"
    transfer(shop_and_bank, 5)
    with home.run(spark):
        wait_until_applied(home, "demo.transfers", upstream_lsn(shop_and_bank))
        assert home.live(spark).table("demo.transfers").count() == 15
        assert all(verdict.equal for verdict in home.verify(spark, "demo"))
    home.drop("demo")


@pytest.mark.deep
def test_table_names_and_queries(running_home: tuple[Home, HomeRunner], spark: SparkSession) -> None:
    home, _ = running_home
    live = home.live(spark)
    assert live.table("demo.bank.accounts").count() == live.table("demo.accounts").count() == 50
    joined = live.sql(
        "SELECT count(*) FROM demo.orders o JOIN demo.customers ON o.customer_id = customers.id"
        " WHERE demo.customers.id > 0 AND 'demo.orders' <> ''"
    ).collect()[0][0]
    assert joined == live.table("demo.orders").count()
    with pytest.raises(penstock.UsageError, match=r"no table demo\.nothing"):
        live.table("demo.nothing")
    later = live.refresh()
    assert later.position >= live.position
    assert live.timestamp is None or later.timestamp is not None
