"""Create, drop and recover: whatever fails, no upstream object is left that the catalog does not record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres_records import postgres_instance_of

from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine import lifecycle
from penstock.engine.lifecycle import create_source, drop_source, recover
from penstock.engine.status import home_status
from penstock.engine.table_names import unique_local_names
from penstock.errors import DefiniteError, TransientError
from penstock.layout import catalog_path, lake_path, log_path
from penstock.model import TableName
from penstock.sources.postgres import config
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.replication.slot import create_slot
from penstock.sources.postgres.spec import PostgresSource
from penstock.testing.postgres import start_postgres


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(catalog_path(tmp_path))


@pytest.fixture
def source(database: Any) -> PostgresSource:
    """A source with one table that can be captured and one without a key."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE keyless (id int)")
    return PostgresSource.from_url(database.url, database.name)


def upstream(database: Any) -> set[str]:
    """The slots and publications in this database."""
    slots = "SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE database = current_database()"
    return {
        row[0] for row in database.execute(f"{slots} UNION ALL SELECT 'publication ' || pubname FROM pg_publication")
    }


def test_create_and_drop(database: Any, source: PostgresSource, catalog: Catalog, tmp_path: Path) -> None:
    name = source.name
    create_source(tmp_path, catalog, source)
    record = catalog.source(name)
    assert record is not None
    assert record.state is SourceState.READY
    assert PostgresSource.model_validate_json(record.spec) == source
    assert postgres_instance_of(record).start() > 0
    assert log_path(tmp_path, name).exists()
    assert upstream(database) == {f"slot penstock_{name}", f"publication penstock_{name}"}
    keyless, captured = catalog.tables(name)
    assert (captured.upstream, captured.local, captured.state) == (TableName("public", "t"), "t", TableState.PENDING)
    assert (keyless.state, keyless.error) == (
        TableState.FAILED,
        "table has no primary key: UPDATE and DELETE fail once the table is published",
    )
    (lake_path(tmp_path, name) / "t").mkdir()
    assert drop_source(tmp_path, catalog, name) == []
    assert (catalog.sources(), catalog.tables(), upstream(database)) == ([], [], set())
    assert not lake_path(tmp_path, name).exists()
    assert list((tmp_path / "log").iterdir()) == []


def test_duplicate_name(database: Any, source: PostgresSource, catalog: Catalog, tmp_path: Path) -> None:
    create_source(tmp_path, catalog, source)
    with pytest.raises(DefiniteError, match="already") as caught:
        create_source(tmp_path, catalog, source)
    assert f"penstock drop {source.name}" in caught.value.hint
    assert len(upstream(database)) == 2
    drop_source(tmp_path, catalog, source.name)


def test_drop_of_an_unknown_source(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(DefiniteError, match="source x does not exist"):
        drop_source(tmp_path, catalog, "x")


class Crash(BaseException):
    """Simulates a crash of the process."""


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


ERRORS = [Crash(), KeyboardInterrupt(), psycopg.OperationalError("lost"), DefiniteError("no")]
PLACES = [
    (config, "identify"),
    (config, "create_publication"),
    (config, "create_slot"),
    (lifecycle, "_create_log"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("module", "step"), PLACES, ids=[step for _, step in PLACES])
def test_create_fails_at_any_step(
    database: Any,
    source: PostgresSource,
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    step: str,
    error: BaseException,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, step, failing(error))
        with pytest.raises((type(error), DefiniteError, TransientError)):
            create_source(tmp_path, catalog, source)
    assert (upstream(database), catalog.sources()) == (set(), [])
    create_source(tmp_path, catalog, source)
    drop_source(tmp_path, catalog, source.name)


def test_create_whose_slot_exists_but_the_reply_was_lost(
    database: Any, source: PostgresSource, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = create_slot

    def create_then_fail(connection: Any, name: str, **flags: bool) -> Any:
        original(connection, name, **flags)
        raise psycopg.OperationalError("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(config, "create_slot", create_then_fail)
        with pytest.raises(TransientError, match="connection was lost"):
            create_source(tmp_path, catalog, source)
    assert (upstream(database), catalog.sources()) == (set(), [])


def test_foreign_slot_and_publication_are_kept(
    database: Any, source: PostgresSource, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another Penstock creates a slot and a publication of this name between the preflight check and the creation."""
    (instance,) = source.create_instances(1)
    monkeypatch.setattr(PostgresSource, "create_instances", lambda *_: [instance])
    foreign = instance.prepare()
    with pytest.raises(DefiniteError, match="already exists"):
        create_source(tmp_path, catalog, source)
    assert len(upstream(database)) == 2
    assert catalog.sources() == []
    foreign.cleanup()
    database.execute(f"SELECT pg_create_logical_replication_slot('{instance.slot}', 'pgoutput')")
    with pytest.raises(DefiniteError, match="already exists"):
        create_source(tmp_path, catalog, source)
    assert upstream(database) == {f"slot {instance.slot}"}


def test_crash_in_create_is_cleaned_up_by_recover(
    database: Any, source: PostgresSource, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No code runs after the crash: the next start finds the record in the catalog."""
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "mark_created", failing(Crash()))
        patch.setattr(Catalog, "remove_source", failing(Crash()))
        patch.setattr(PostgresInstanceConfig, "cleanup", failing(Crash()))
        with pytest.raises(Crash):
            create_source(tmp_path, catalog, source)
    assert len(upstream(database)) == 2
    record = catalog.source(source.name)
    assert record is not None
    assert record.state is SourceState.CREATING
    recover(tmp_path, catalog)
    assert (upstream(database), catalog.sources()) == (set(), [])
    assert not log_path(tmp_path, source.name).exists()


@pytest.mark.parametrize("step", ["_clean_upstream", "remove_files"])
def test_crash_in_drop_is_completed_by_recover(
    database: Any, source: PostgresSource, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    create_source(tmp_path, catalog, source)
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, step, failing(Crash()))
        with pytest.raises(Crash):
            drop_source(tmp_path, catalog, source.name)
    record = catalog.source(source.name)
    assert record is not None
    assert record.state is SourceState.DROPPING
    recover(tmp_path, catalog)
    assert (upstream(database), catalog.sources()) == (set(), [])
    assert not log_path(tmp_path, source.name).exists()


def test_recover_keeps_complete_sources(source: PostgresSource, catalog: Catalog, tmp_path: Path) -> None:
    create_source(tmp_path, catalog, source)
    recover(tmp_path, catalog)
    assert [record.state for record in catalog.sources()] == [SourceState.READY]
    drop_source(tmp_path, catalog, source.name)


def test_drop_while_postgres_is_down(tmp_path: Path, catalog: Catalog) -> None:
    with start_postgres(fsync=False) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        create_source(tmp_path, catalog, PostgresSource.from_url(server.url, "shop"))
        server.stop()
        with pytest.raises(TransientError, match="not dropped yet") as caught:
            drop_source(tmp_path, catalog, "shop")
        record = catalog.source("shop")
        assert record is not None
        assert record.state is SourceState.DROPPING
        assert log_path(tmp_path, "shop").exists()
        statements = drop_source(tmp_path, catalog, "shop", force=True)
        assert catalog.sources() == []
        assert not log_path(tmp_path, "shop").exists()
        assert "\n".join(statements) in caught.value.hint
        assert "--force" in caught.value.hint
        server.start()
        for statement in statements:
            server.execute(statement)
        assert (
            server.execute("SELECT 1 FROM pg_replication_slots") == server.execute("SELECT 1 FROM pg_publication") == []
        )


# -- unreachable servers ---------------------------------------------------------------------------------------------


def leftover_objects(server: EmbeddedPostgres) -> int:
    return len(server.execute("SELECT 1 FROM pg_replication_slots")) + len(
        server.execute("SELECT 1 FROM pg_publication")
    )


@pytest.fixture
def stopped_server(catalog: Catalog, tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server with a captured database, stopped."""
    with start_postgres(fsync=False) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        create_source(tmp_path, catalog, PostgresSource.from_url(server.url, "shop"))
        server.stop()
        yield server


def test_unreachable_server_does_not_block_recovery_of_other_sources(
    stopped_server: EmbeddedPostgres, database: Any, source: PostgresSource, catalog: Catalog, tmp_path: Path
) -> None:
    create_source(tmp_path, catalog, source)
    catalog.set_source("shop", SourceState.DROPPING)
    catalog.set_source(source.name, SourceState.CREATING)
    (waiting,) = recover(tmp_path, catalog)
    assert "shop is not dropped yet" in waiting.message
    (shop,) = catalog.sources()
    assert (shop.name, shop.state, shop.error) == ("shop", SourceState.DROPPING, waiting.message)
    assert upstream(database) == set()
    stopped_server.start()
    assert recover(tmp_path, catalog) == []
    assert (catalog.sources(), leftover_objects(stopped_server)) == ([], 0)


def test_leftovers_are_recorded_and_removed(stopped_server: EmbeddedPostgres, catalog: Catalog, tmp_path: Path) -> None:
    statements = drop_source(tmp_path, catalog, "shop", force=True)
    (debt,) = catalog.debts()
    assert (debt.source, debt.error, catalog.sources()) == ("shop", None, [])
    (shown,) = home_status(tmp_path, catalog).debts
    assert (shown.source, shown.statements) == ("shop", statements[1:])
    assert shown.at == f"127.0.0.1:{stopped_server.port}/postgres"
    (waiting,) = recover(tmp_path, catalog)
    assert statements[1] in waiting.hint
    assert "cannot reach Postgres" in str(catalog.debts()[0].error)
    stopped_server.start()
    assert leftover_objects(stopped_server) == 2
    assert recover(tmp_path, catalog) == []
    assert (catalog.debts(), leftover_objects(stopped_server)) == ([], 0)


def test_leftovers_removed_by_hand(stopped_server: EmbeddedPostgres, catalog: Catalog, tmp_path: Path) -> None:
    statements = drop_source(tmp_path, catalog, "shop", force=True)
    stopped_server.start()
    for statement in statements:
        stopped_server.execute(statement)
    assert (recover(tmp_path, catalog), catalog.debts()) == ([], [])


@pytest.mark.parametrize("home", ["same", "other"])
def test_leftovers_do_not_include_objects_of_a_new_source(
    stopped_server: EmbeddedPostgres, catalog: Catalog, tmp_path: Path, home: str
) -> None:
    statements = drop_source(tmp_path, catalog, "shop", force=True)
    stopped_server.start()
    for statement in statements:
        stopped_server.execute(statement)
    elsewhere = tmp_path if home == "same" else tmp_path / "other"
    owner = catalog if home == "same" else Catalog(catalog_path(elsewhere))
    create_source(elsewhere, owner, PostgresSource.from_url(stopped_server.url, "shop"))
    assert recover(tmp_path, catalog) == []
    assert (catalog.debts(), leftover_objects(stopped_server)) == ([], 2)


def test_objects_of_the_user_are_not_leftovers(database: Any, catalog: Catalog, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    database.execute(f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')")
    foreign = {"publication": "p", "publication_ownership": "user", "slot": database.name, "slot_ownership": "user"}
    create_source(tmp_path, catalog, PostgresSource.from_url(database.url, "shop", **foreign))
    assert drop_source(tmp_path, catalog, "shop") == []
    assert upstream(database) == {f"slot {database.name}", "publication p"}


def test_requested_local_name(database: Any, catalog: Catalog, tmp_path: Path) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    tables = ("public.a AS B", "public.b")
    create_source(tmp_path, catalog, PostgresSource.from_url(database.url, database.name, tables=tables))
    assert [table.local for table in catalog.tables()] == ["B", "public_b"]
    drop_source(tmp_path, catalog, database.name)


LOCAL_NAMES = [
    (["public.a", "public.b"], ["a", "b"]),
    (["public.a", "sales.a", "sales.b"], ["public_a", "sales_a", "b"]),
    (["public.a", "sales.a", "public.sales_a"], ["public_a", "sales_a_2", "sales_a"]),
    (["public.Orders", "public.orders"], ["public_Orders", "public_orders_2"]),
    (["public.a/b", "public.order items", "public...", "public.é"], ["a/b", "order items", "..", "é"]),
]


@pytest.mark.parametrize(("tables", "local"), LOCAL_NAMES)
def test_local_names_are_unique(tables: list[str], local: list[str]) -> None:
    names = [TableName.parse(table) for table in tables]
    found = unique_local_names(names, {})
    assert [found[name] for name in names] == local
