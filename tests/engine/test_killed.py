"""Killed with -9 at every step of create, alter and drop: after a restart each has happened, or has not.

The actions run in processes of their own (see `killing`); a restart is what `penstock run` does before it runs.
"""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engine.actions import (
    add,
    carry_out,
    change,
    create,
    create_with_secret,
    drop,
    drop_by_force,
    keep,
    retry,
    take_out,
)
from tests.engine.killing import killed_at_each_step, killed_when

from penstock.catalog.bases import BaseVersion
from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog
from penstock.engine.lifecycle import TABLES
from penstock.engine.reconcile import is_set, set_options
from penstock.engine.records import database_instance_of, database_spec_of
from penstock.engine.requests import open_wishes
from penstock.engine.table_names import named_source, named_sources
from penstock.home import Home
from penstock.layout import base_path, catalog_path, lake_path, log_path, secrets_path, state_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres import config
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.testing.waiting import until

pytestmark = pytest.mark.deep

MADE = """
CREATE TABLE orders (id int PRIMARY KEY, status text); CREATE TABLE audit (id int PRIMARY KEY);
CREATE TABLE invoices (id int PRIMARY KEY)
"""
CHOSEN = ("public.orders", "public.audit")
BY_TABLE = {"heartbeat": "table", "watermarks": "table"}
"""With these, there are tables of ours upstream, too."""
UPSTREAM = """
SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE database = current_database()
UNION ALL SELECT 'publication ' || pubname FROM pg_publication
UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname = 'dblog_meta'
UNION ALL SELECT 'table ' || oid::regclass FROM pg_class WHERE relnamespace = to_regnamespace('dblog_meta')::oid
   AND relkind = 'r'
"""


class Shop:
    """A home for the source `shop`, and its database."""

    def __init__(self, path: Path, database: Any) -> None:
        self.path, self.database, self.notes = path / "home", database, path / "steps"
        self.names = {"slot": f"slot_{database.name}", "publication": f"publication_{database.name}"}

    @property
    def catalog(self) -> Catalog:
        return Catalog(catalog_path(self.path))

    def upstream(self) -> set[str]:
        return {row[0] for row in self.database.execute(UPSTREAM)}

    def create(self, **options: Any) -> None:
        create(self.path, self.database.url, {**self.names, **options})

    def begin(self) -> None:
        """Begin anew, with a home that has no source."""
        Home(self.path).recover()
        for source in {record.known_as for record in self.catalog.sources()}:
            Home(self.path).drop(source)
        shutil.rmtree(lake_path(self.path, "shop"), ignore_errors=True)
        assert self.upstream() == set()

    def begin_with(self, **options: Any) -> None:
        """Begin anew, with the source `shop`, of which the table `orders` is whole."""
        self.begin()
        self.create(**options)
        for table in ("orders", "audit"):
            folder = base_path(self.path, "shop", table)
            folder.mkdir(parents=True)
            (folder / "rows").write_text("")
        state_path(self.path, "shop").mkdir(parents=True)
        (orders,) = [table for table in database_instance_of(self.record()).tables if table.name.name == "orders"]
        self.catalog.bases.note("shop", "orders", BaseVersion(0, Lsn(1), orders.table_schema()))
        self.catalog.set_table("shop", orders.name, TableState.LIVE)

    def record(self) -> Any:
        return named_source(self.catalog, "shop")

    def restart(self) -> None:
        """Do what a start does before anything runs, and what is done first when it does."""
        assert Home(self.path).recover() == []
        for record in self.catalog.sources():
            set_options(self.catalog, record)
            carry_out(self.path)

    def is_gone(self, *, kept: set[str] | None = None) -> bool:
        """Whether nothing is left of the source, here and upstream; else what is."""
        catalog = self.catalog
        assert (catalog.sources(), catalog.tables(), catalog.debts()) == ([], [], [])
        assert self.upstream() == set()
        assert not list(self.path.glob("log/*"))
        assert not list(self.path.glob("state/*"))
        assert not list(self.path.glob("run/capture-*"))
        assert {path.name for path in self.path.glob("lake/shop/*")} == (kept or set())
        return True

    def is_whole(self, made: set[str]) -> bool:
        """Whether all of the source is there."""
        record = self.record()
        instance = database_instance_of(record)
        assert (record.state, record.error) == (SourceState.READY, None)
        assert instance.start() > 0
        assert self.upstream() == made
        with closing(self.catalog.log("shop").reader()) as log:
            assert [pin.reader for pin in log.pins()] == [TABLES]
            assert log.frontiers().durable >= instance.start()
        return True


@pytest.fixture
def shop(database: Any, tmp_path: Path) -> Shop:
    database.execute(MADE)
    made = Shop(tmp_path, database)
    assert made.catalog.sources() == []
    return made


def happened(outcomes: list[bool]) -> None:
    """It did not happen before some step, and did from there on."""
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}


def test_create(shop: Shop) -> None:
    shop.create(**BY_TABLE)
    made, outcomes = shop.upstream(), list[bool]()
    assert len(made) == 5
    action = (create, shop.path, shop.database.url, {**shop.names, **BY_TABLE})
    for step in killed_at_each_step(*action, notes=shop.notes, prepare=shop.begin):
        shop.restart()
        outcomes.append(bool(shop.catalog.sources()))
        assert shop.is_whole(made) if outcomes[-1] else shop.is_gone(), step
    happened(outcomes)


def test_create_and_drop_with_a_secret_that_is_kept(shop: Shop) -> None:
    """It is there for as long as the source is: also who finishes a drop has to log in."""
    secret = secrets_path(shop.path, "shop") / "password"
    for action, args in ((create_with_secret, (shop.path, shop.database.url)), (drop, (shop.path,))):

        def prepare(action: Any = action) -> None:
            shop.begin()
            if action is drop:
                create_with_secret(shop.path, shop.database.url)

        for step in killed_at_each_step(action, *args, notes=shop.notes, prepare=prepare):
            shop.restart()
            assert secret.exists() == bool(shop.catalog.sources()), step
            assert secret.parent.exists() == secret.exists(), step
            assert bool(shop.upstream()) == secret.exists(), step


def test_create_of_one_that_is_tried_again_at_once(shop: Shop) -> None:
    """Nobody restarts anything: the next create undoes what the one before it left."""
    made, action = set[str](), (create, shop.path, shop.database.url, shop.names)
    for step in killed_at_each_step(*action, notes=shop.notes, prepare=shop.begin):
        if not shop.catalog.sources() or shop.record().state is not SourceState.READY:
            shop.create()
        made = made or shop.upstream()
        assert shop.is_whole(made), step


def test_create_while_postgres_makes_the_slot(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes on with what it was told, and has it in hand until it is done: that is waited for."""
    monkeypatch.setattr(config, "_RELEASE_SECONDS", 0.5)
    slot = f"slot {shop.names['slot']}"
    with shop.database.connect(autocommit=False) as before:
        before.execute("INSERT INTO orders VALUES (1)")  # a slot begins where all transactions have ended
        killed_when(lambda: slot in shop.upstream(), create, shop.path, shop.database.url, shop.names)
        (waiting,) = Home(shop.path).recover()
        assert "not gone yet" in waiting.message
        assert shop.record().state is SourceState.DROPPING
    until(lambda: Home(shop.path).recover() == [], "the slot to be made, and dropped")
    assert shop.is_gone()


def test_drop(shop: Shop) -> None:
    outcomes = list[bool]()
    for step in killed_at_each_step(
        *(drop, shop.path), notes=shop.notes, prepare=lambda: shop.begin_with(tables=CHOSEN, **BY_TABLE)
    ):
        shop.restart()
        outcomes.append(not shop.catalog.sources())
        assert shop.is_gone() if outcomes[-1] else len(shop.upstream()) == 5, step
    happened(outcomes)


def test_drop_that_keeps_tables(shop: Shop) -> None:
    for step in killed_at_each_step(
        *(keep, shop.path), notes=shop.notes, prepare=lambda: shop.begin_with(tables=CHOSEN)
    ):
        shop.restart()
        if shop.catalog.sources():
            assert base_path(shop.path, "shop", "audit").exists(), step
        else:
            assert shop.is_gone(kept={"orders"}), step


def test_drop_by_force(shop: Shop) -> None:
    """Killed, then done again while Postgres is still away: what is left there is remembered, and goes when it can."""

    def prepare() -> None:
        shop.begin_with(tables=CHOSEN)
        shop.database.execute("INSERT INTO audit SELECT count(*) FROM audit")
        ((lsn,),) = shop.database.execute("SELECT pg_current_wal_lsn()::text")
        with closing(shop.catalog.log("shop").writer()) as writer:
            writer.publish([], Lsn.parse(lsn))
        shop.database.execute(f"SELECT pg_replication_slot_advance('{shop.names['slot']}', '{lsn}')")

    for step in killed_at_each_step(drop_by_force, shop.path, notes=shop.notes, prepare=prepare):
        if shop.catalog.sources():
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(PostgresInstanceConfig, "cleanup", PostgresInstanceConfig.cleanup)
                patched.setattr(PostgresInstanceConfig, "settle", PostgresInstanceConfig.settle)
                drop_by_force(shop.path)
        assert len(shop.catalog.debts()) == 1, step
        shop.restart()
        assert shop.is_gone(), step


def test_alter_set(shop: Shop) -> None:
    outcomes, options = list[bool](), {"retain_history": "2 hours", "snapshot": "chunked"}
    for step in killed_at_each_step(
        *(change, shop.path, options), notes=shop.notes, prepare=lambda: shop.begin_with(tables=CHOSEN)
    ):
        shop.restart()
        assert is_set(shop.record()), step
        spec, instance = database_spec_of(shop.record()), database_instance_of(shop.record())
        assert (spec.retain_history, spec.snapshot) == (instance.retain_history, instance.snapshot), step
        outcomes.append((spec.retain_history, spec.snapshot.value) == ("2 hours", "chunked"))
        assert outcomes[-1] or (spec.retain_history, spec.snapshot.value) == ("1 day", "parallel"), step
    happened(outcomes)


WISHES = {
    add: ({"orders", "audit"}, {"orders", "audit", "invoices"}),
    take_out: ({"orders", "audit"}, {"audit"}),
    retry: ({"orders", "audit"}, {"orders", "audit"}),
}


@pytest.mark.parametrize("action", WISHES, ids=lambda action: action.__name__)
def test_alter_table(shop: Shop, action: Any) -> None:
    outcomes, (before, after) = list[bool](), WISHES[action]
    for step in killed_at_each_step(
        *(action, shop.path), notes=shop.notes, prepare=lambda: shop.begin_with(tables=CHOSEN)
    ):
        shop.restart()
        catalog, instance = shop.catalog, database_instance_of(shop.record())
        assert open_wishes(catalog, "shop") == [], step
        captured = {table.name.name: table.generation for table in instance.tables}
        known = {table.upstream.name: table.state for table in catalog.tables("shop")}
        published = {name for (name,) in shop.database.execute("SELECT tablename FROM pg_publication_tables")}
        chosen = {TableName.parse(text.split()[0]).name for text in database_spec_of(shop.record()).tables}
        assert set(captured) == set(known) == published == chosen, step
        assert set(known.values()) <= {TableState.PENDING, TableState.LIVE}, step
        assert len(shop.upstream()) == 2, step
        outcomes.append(set(captured) == after and (captured.get("orders", 0) > 0 or action is not retry))
        assert outcomes[-1] or set(captured) == before, step
        assert base_path(shop.path, "shop", "orders").exists() == ("orders" in captured), step
    happened(outcomes)


def test_shards(shop: Shop, postgres_server: Any) -> None:
    """All of them are there, or none."""
    second = f"{shop.database.name}_2"
    postgres_server.create_database(second)
    postgres_server.execute(MADE, second)
    urls = [shop.database.url, postgres_server.url_for(second)]
    outcomes = list[bool]()
    try:
        for step in killed_at_each_step(create, shop.path, urls, {}, notes=shop.notes, prepare=shop.begin):
            shop.restart()
            outcomes.append(bool(shop.catalog.sources()))
            found = named_sources(shop.catalog, "shop") if outcomes[-1] else []
            assert [record.state for record in found] == [SourceState.READY] * len(found), step
            slots = postgres_server.execute("SELECT 1 FROM pg_replication_slots")
            assert len(slots) == len(found) == len(list(shop.path.glob("log/*.db"))) == (2 if found else 0), step
        happened(outcomes)
        shop.begin()
    finally:
        postgres_server.execute(f'DROP DATABASE "{second}" WITH (FORCE)')


def test_the_spec_in_the_catalog_is_what_was_asked_for(shop: Shop) -> None:
    """What a restart reads is JSON that says what is wished, and what is, apart."""
    shop.create(tables=CHOSEN)
    Home(shop.path).alter("shop", retain_history="3 hours")
    record = shop.record()
    assert json.loads(record.spec)["retain_history"] == "3 hours"
    assert json.loads(record.instance)["retain_history"] == "1 day"
    assert log_path(shop.path, "shop").exists()
