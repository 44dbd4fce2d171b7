"""kill -9 at each step of create, alter and drop: after a restart, the operation has happened completely or not at all.

The operations run in child processes (see `kill_points`); a restart is what `penstock run` does before it captures.
"""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engine.actions import (
    add_table,
    change,
    create,
    create_with_secret,
    drop,
    drop_by_force,
    drop_keeping_tables,
    drop_table,
    reconcile_requests,
    retry_table,
)
from tests.engine.kill_points import killed_at_each_step, killed_when
from tests.postgres_records import postgres_instance_of, postgres_spec_of

from penstock.catalog.bases import BaseVersion
from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog
from penstock.engine.lifecycle import TABLES
from penstock.engine.reconcile import is_set, set_options
from penstock.engine.requests import pending_requests
from penstock.engine.table_names import named_source, named_sources
from penstock.home import Home
from penstock.layout import base_path, catalog_path, lake_path, log_path, secrets_path, state_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres import config
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.testing.waiting import until

pytestmark = pytest.mark.deep

SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, status text); CREATE TABLE audit (id int PRIMARY KEY);
CREATE TABLE invoices (id int PRIMARY KEY)
"""
CAPTURED = ("public.orders", "public.audit")
TABLE_OPTIONS = {"heartbeat": "table", "watermarks": "table"}
"""With these options, Penstock also creates tables upstream."""
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

    def reset(self) -> None:
        """Reset to a home without sources."""
        Home(self.path).recover()
        for source in {record.known_as for record in self.catalog.sources()}:
            Home(self.path).drop(source)
        shutil.rmtree(lake_path(self.path, "shop"), ignore_errors=True)
        assert self.upstream() == set()

    def reset_with(self, **options: Any) -> None:
        """Reset to a home with the source `shop`, of which the table `orders` is live."""
        self.reset()
        self.create(**options)
        for table in ("orders", "audit"):
            folder = base_path(self.path, "shop", table)
            folder.mkdir(parents=True)
            (folder / "rows").write_text("")
        state_path(self.path, "shop").mkdir(parents=True)
        (orders,) = [table for table in postgres_instance_of(self.record()).tables if table.name.name == "orders"]
        self.catalog.bases.note("shop", "orders", BaseVersion(0, Lsn(1), orders.table_schema()))
        self.catalog.set_table("shop", orders.name, TableState.LIVE)

    def record(self) -> Any:
        return named_source(self.catalog, "shop")

    def restart(self) -> None:
        """Do what `penstock run` does before it captures."""
        assert Home(self.path).recover() == []
        for record in self.catalog.sources():
            set_options(self.catalog, record)
            reconcile_requests(self.path)

    def is_gone(self, *, kept: set[str] | None = None) -> bool:
        """Whether nothing is left of the source; fails with what is left in the home or upstream."""
        catalog = self.catalog
        assert (catalog.sources(), catalog.tables(), catalog.debts()) == ([], [], [])
        assert self.upstream() == set()
        assert not list(self.path.glob("log/*"))
        assert not list(self.path.glob("state/*"))
        assert not list(self.path.glob("run/capture-*"))
        assert {path.name for path in self.path.glob("lake/shop/*")} == (kept or set())
        return True

    def is_complete(self, created: set[str]) -> bool:
        """Whether the source is complete; fails with what is missing."""
        record = self.record()
        instance = postgres_instance_of(record)
        assert (record.state, record.error) == (SourceState.READY, None)
        assert instance.start() > 0
        assert self.upstream() == created
        with closing(self.catalog.log("shop").reader()) as log:
            assert [lease.reader for lease in log.leases()] == [TABLES]
            assert log.frontiers().durable >= instance.start()
        return True


@pytest.fixture
def shop(database: Any, tmp_path: Path) -> Shop:
    database.execute(SETUP)
    created = Shop(tmp_path, database)
    assert created.catalog.sources() == []
    return created


def assert_atomic(outcomes: list[bool]) -> None:
    """Assert that the operation has not happened before some step, and has from that step on."""
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}


def test_create(shop: Shop) -> None:
    shop.create(**TABLE_OPTIONS)
    created, outcomes = shop.upstream(), list[bool]()
    assert len(created) == 5
    action = (create, shop.path, shop.database.url, {**shop.names, **TABLE_OPTIONS})
    for step in killed_at_each_step(*action, notes=shop.notes, prepare=shop.reset):
        shop.restart()
        outcomes.append(bool(shop.catalog.sources()))
        assert shop.is_complete(created) if outcomes[-1] else shop.is_gone(), step
    assert_atomic(outcomes)


def test_create_and_drop_with_a_stored_secret(shop: Shop) -> None:
    """The secret exists as long as the source: the process that completes a drop needs it to log in."""
    secret = secrets_path(shop.path, "shop") / "password"
    for action, args in ((create_with_secret, (shop.path, shop.database.url)), (drop, (shop.path,))):

        def prepare(action: Any = action) -> None:
            shop.reset()
            if action is drop:
                create_with_secret(shop.path, shop.database.url)

        for step in killed_at_each_step(action, *args, notes=shop.notes, prepare=prepare):
            shop.restart()
            assert secret.exists() == bool(shop.catalog.sources()), step
            assert secret.parent.exists() == secret.exists(), step
            assert bool(shop.upstream()) == secret.exists(), step


def test_create_retried_without_a_restart(shop: Shop) -> None:
    """Without a restart, the next create undoes what the previous one left."""
    created, action = set[str](), (create, shop.path, shop.database.url, shop.names)
    for step in killed_at_each_step(*action, notes=shop.notes, prepare=shop.reset):
        if not shop.catalog.sources() or shop.record().state is not SourceState.READY:
            shop.create()
        created = created or shop.upstream()
        assert shop.is_complete(created), step


def test_create_killed_while_postgres_creates_the_slot(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server keeps creating the slot, which is in use until then; cleanup waits for it."""
    monkeypatch.setattr(config, "_RELEASE_SECONDS", 0.5)
    slot = f"slot {shop.names['slot']}"
    with shop.database.connect(autocommit=False) as before:
        before.execute("INSERT INTO orders VALUES (1)")  # a slot is created once all open transactions have ended
        killed_when(lambda: slot in shop.upstream(), create, shop.path, shop.database.url, shop.names)
        (waiting,) = Home(shop.path).recover()
        assert "not dropped yet" in waiting.message
        assert shop.record().state is SourceState.DROPPING
    until(lambda: Home(shop.path).recover() == [], "the slot to be created and dropped")
    assert shop.is_gone()


def test_drop(shop: Shop) -> None:
    outcomes = list[bool]()
    for step in killed_at_each_step(
        *(drop, shop.path), notes=shop.notes, prepare=lambda: shop.reset_with(tables=CAPTURED, **TABLE_OPTIONS)
    ):
        shop.restart()
        outcomes.append(not shop.catalog.sources())
        assert shop.is_gone() if outcomes[-1] else len(shop.upstream()) == 5, step
    assert_atomic(outcomes)


def test_drop_keeping_tables(shop: Shop) -> None:
    for step in killed_at_each_step(
        *(drop_keeping_tables, shop.path), notes=shop.notes, prepare=lambda: shop.reset_with(tables=CAPTURED)
    ):
        shop.restart()
        if shop.catalog.sources():
            assert base_path(shop.path, "shop", "audit").exists(), step
        else:
            assert shop.is_gone(kept={"orders"}), step


def test_drop_with_force(shop: Shop) -> None:
    """Killed, then repeated while Postgres is still down: the leftovers are recorded, and removed by recovery."""

    def prepare() -> None:
        shop.reset_with(tables=CAPTURED)
        shop.database.execute("INSERT INTO audit SELECT count(*) FROM audit")
        ((lsn,),) = shop.database.execute("SELECT pg_current_wal_lsn()::text")
        with closing(shop.catalog.log("shop").writer()) as writer:
            writer.publish([], Lsn.parse(lsn))
        shop.database.execute(f"SELECT pg_replication_slot_advance('{shop.names['slot']}', '{lsn}')")

    for step in killed_at_each_step(drop_by_force, shop.path, notes=shop.notes, prepare=prepare):
        if shop.catalog.sources():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(PostgresInstanceConfig, "cleanup", PostgresInstanceConfig.cleanup)
                patch.setattr(PostgresInstanceConfig, "settle", PostgresInstanceConfig.settle)
                drop_by_force(shop.path)
        assert len(shop.catalog.debts()) == 1, step
        shop.restart()
        assert shop.is_gone(), step


def test_alter_set(shop: Shop) -> None:
    outcomes, options = list[bool](), {"retain_history": "2 hours", "snapshot": "chunked"}
    for step in killed_at_each_step(
        *(change, shop.path, options), notes=shop.notes, prepare=lambda: shop.reset_with(tables=CAPTURED)
    ):
        shop.restart()
        assert is_set(shop.record()), step
        spec, instance = postgres_spec_of(shop.record()), postgres_instance_of(shop.record())
        assert (spec.retain_history, spec.snapshot) == (instance.retain_history, instance.snapshot), step
        outcomes.append((spec.retain_history, spec.snapshot.value) == ("2 hours", "chunked"))
        assert outcomes[-1] or (spec.retain_history, spec.snapshot.value) == ("1 day", "parallel"), step
    assert_atomic(outcomes)


REQUESTS = {
    add_table: ({"orders", "audit"}, {"orders", "audit", "invoices"}),
    drop_table: ({"orders", "audit"}, {"audit"}),
    retry_table: ({"orders", "audit"}, {"orders", "audit"}),
}


@pytest.mark.parametrize("action", REQUESTS, ids=lambda action: action.__name__)
def test_alter_table(shop: Shop, action: Any) -> None:
    outcomes, (before, after) = list[bool](), REQUESTS[action]
    for step in killed_at_each_step(
        *(action, shop.path), notes=shop.notes, prepare=lambda: shop.reset_with(tables=CAPTURED)
    ):
        shop.restart()
        catalog, instance = shop.catalog, postgres_instance_of(shop.record())
        assert pending_requests(catalog, "shop") == [], step
        captured = {table.name.name: table.generation for table in instance.tables}
        states = {table.upstream.name: table.state for table in catalog.tables("shop")}
        published = {name for (name,) in shop.database.execute("SELECT tablename FROM pg_publication_tables")}
        chosen = {TableName.parse(text.split()[0]).name for text in postgres_spec_of(shop.record()).tables}
        assert set(captured) == set(states) == published == chosen, step
        assert set(states.values()) <= {TableState.PENDING, TableState.LIVE}, step
        assert len(shop.upstream()) == 2, step
        outcomes.append(set(captured) == after and (captured.get("orders", 0) > 0 or action is not retry_table))
        assert outcomes[-1] or set(captured) == before, step
        assert base_path(shop.path, "shop", "orders").exists() == ("orders" in captured), step
    assert_atomic(outcomes)


def test_shards(shop: Shop, postgres_server: Any) -> None:
    """Either all shards exist, or none."""
    second = f"{shop.database.name}_2"
    postgres_server.create_database(second)
    postgres_server.execute(SETUP, second)
    urls = [shop.database.url, postgres_server.url_for(second)]
    outcomes = list[bool]()
    try:
        for step in killed_at_each_step(create, shop.path, urls, {}, notes=shop.notes, prepare=shop.reset):
            shop.restart()
            outcomes.append(bool(shop.catalog.sources()))
            found = named_sources(shop.catalog, "shop") if outcomes[-1] else []
            assert [record.state for record in found] == [SourceState.READY] * len(found), step
            slots = postgres_server.execute("SELECT 1 FROM pg_replication_slots")
            assert len(slots) == len(found) == len(list(shop.path.glob("log/*.db"))) == (2 if found else 0), step
        assert_atomic(outcomes)
        shop.reset()
    finally:
        postgres_server.execute(f'DROP DATABASE "{second}" WITH (FORCE)')


def test_catalog_stores_the_requested_spec_and_the_actual_instance(shop: Shop) -> None:
    """The catalog stores the requested options and the options in effect separately, as JSON."""
    shop.create(tables=CAPTURED)
    Home(shop.path).alter("shop", retain_history="3 hours")
    record = shop.record()
    assert json.loads(record.spec)["retain_history"] == "3 hours"
    assert json.loads(record.instance)["retain_history"] == "1 day"
    assert log_path(shop.path, "shop").exists()
