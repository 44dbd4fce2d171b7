"""Requests for tables of a source, and recovery when their execution is interrupted; no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.postgres_records import postgres_instance_of, postgres_spec_of

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord, TableRequest
from penstock.engine import reconcile
from penstock.engine.reconcile import alter, describe, give_up
from penstock.engine.requests import pending_requests, request_add, request_drop, request_retry
from penstock.engine.table_names import named_source
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.home import Home
from penstock.layout import base_path, catalog_path
from penstock.model import TableName
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sql.show_statements import Answer

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE users (id int PRIMARY KEY);
CREATE TABLE invoices (id int PRIMARY KEY); CREATE TABLE notes (body text);
CREATE TABLE geo (id int PRIMARY KEY, "Id" int); CREATE VIEW seen AS SELECT * FROM orders;
CREATE SCHEMA other; CREATE TABLE other.orders (id int PRIMARY KEY)
"""
NAMED = ("public.orders", "public.users")
INVOICES = TableName("public", "invoices")


class IdleShop:
    """A home with the source `shop`, not running."""

    def __init__(self, home: Home, database: Any) -> None:
        self.home, self.database = home, database
        self.catalog = Catalog(catalog_path(home.path))

    def states(self) -> dict[str, str]:
        return {str(table.upstream): table.state.value for table in self.catalog.tables("shop")}

    def captured(self) -> dict[str, int]:
        tables = postgres_instance_of(named_source(self.catalog, "shop")).tables
        return {str(table.name): table.generation for table in tables}

    def published(self) -> set[str]:
        return {name for (name,) in self.database.execute("SELECT tablename FROM pg_publication_tables")}

    def reconcile(self) -> list[str]:
        requests = pending_requests(self.catalog, "shop")
        found = describe(named_source(self.catalog, "shop"), requests)
        return alter(self.home.path, self.catalog, named_source(self.catalog, "shop"), requests, found)


@pytest.fixture
def create_shop(database: Any, tmp_path: Path) -> Iterator[Callable[..., IdleShop]]:
    database.execute(TABLES)
    homes = []

    def create(**options: Any) -> IdleShop:
        home = Home(tmp_path / "home")
        home.create(database.url, "shop", **options)
        homes.append(home)
        return IdleShop(home, database)

    yield create
    for home in homes:
        home.drop("shop")


def test_requests_are_recorded_with_the_new_spec(create_shop: Callable[..., IdleShop]) -> None:
    shop = create_shop(tables=NAMED)
    answer = shop.home.sql("ALTER SOURCES shop ADD TABLE public.invoices AS bills")
    assert isinstance(answer, Answer)
    assert "at the next `penstock run`" in answer.message
    shop.home.drop_table("shop", "users")
    assert shop.states() == {"public.orders": "pending", "public.users": "dropping", "public.invoices": "adding"}
    assert postgres_spec_of(named_source(shop.catalog, "shop")).tables == ("public.orders", "public.invoices AS bills")
    assert shop.captured() == {"public.orders": 0, "public.users": 0}
    lines = shop.reconcile()
    assert [line.split(": ")[1].split(",")[0] for line in lines] == [
        "public.invoices is added",
        "public.users is dropped",
    ]
    assert shop.states() == {"public.orders": "pending", "public.invoices": "pending"}
    assert shop.captured() == {"public.orders": 0, "public.invoices": 1}
    assert shop.published() == {"orders", "invoices"}


@pytest.mark.parametrize(
    ("options", "table", "error", "message", "hint"),
    [
        ({}, "public.nvoices", DefiniteError, "table does not exist", "Did you mean public.invoices?"),
        ({}, "public.seen", DefiniteError, "a view", "instead"),
        ({}, "public.geo", DefiniteError, "differ only in case", "Rename"),
        ({"tables": NAMED}, "public.notes", DefiniteError, "no primary key", "REPLICA IDENTITY FULL"),
        ({"tables": NAMED}, "public.orders", UsageError, "already has table public.orders", "RETRY TABLE"),
        ({"tables": NAMED}, "public.invoices AS Users", UsageError, "the local name Users", "another name"),
        ({"schemas": ("other",)}, "public.orders", UsageError, "of the schemas other", "another source"),
        ({}, "invoices", UsageError, "invalid table name", "schema.table"),
    ],
)
def test_table_that_cannot_be_added_is_rejected(
    create_shop: Callable[..., IdleShop],
    options: dict[str, Any],
    table: str,
    error: type[Exception],
    message: str,
    hint: str,
) -> None:
    shop = create_shop(**options)
    if table == "public.geo":
        shop.catalog.complete_request(TableRecord("shop", TableName("public", "geo"), "geo", TableState.FAILED), None)
    before = shop.states(), named_source(shop.catalog, "shop")
    with pytest.raises(error, match=message) as caught:
        shop.home.add_table("shop", table)
    assert hint in getattr(caught.value, "hint", "")
    assert (shop.states(), named_source(shop.catalog, "shop")) == before


def test_publication_of_the_user_must_contain_the_table(create_shop: Callable[..., IdleShop], database: Any) -> None:
    database.execute("CREATE PUBLICATION mine FOR TABLE orders")
    shop = create_shop(publication="mine", publication_ownership="user")
    assert shop.captured() == {"public.orders": 0}
    with pytest.raises(DefiniteError, match='not in publication "mine"') as caught:
        shop.home.add_table("shop", "public.users")
    statement = 'ALTER PUBLICATION "mine" ADD TABLE "public"."users";'
    assert statement in caught.value.hint
    database.execute(statement)
    shop.home.add_table("shop", "public.users")
    shop.reconcile()
    assert shop.captured() == {"public.orders": 0, "public.users": 1}
    shop.home.drop_table("shop", "orders")
    shop.reconcile()
    assert shop.published() == {"orders", "users"}, "the publication is never changed"
    assert shop.captured() == {"public.users": 1}


def test_same_name_in_two_schemas(create_shop: Callable[..., IdleShop]) -> None:
    shop = create_shop(tables=NAMED)
    shop.home.add_table("shop", "other.orders")
    assert [t.local for t in shop.catalog.tables("shop")] == ["other_orders", "orders", "users"]


def test_tables_that_cannot_be_dropped_or_retried(create_shop: Callable[..., IdleShop]) -> None:
    shop = create_shop(tables=NAMED)
    with pytest.raises(UsageError, match="is pending"):
        shop.home.retry("shop", "orders")
    shop.home.drop_table("shop", "orders")
    with pytest.raises(UsageError, match="the last table") as caught:
        shop.home.drop_table("shop", "public.users")
    assert "penstock drop shop" in caught.value.hint
    with pytest.raises(UsageError, match="it is dropping"):
        shop.home.add_table("shop", "public.orders")
    with pytest.raises(UsageError, match="is dropping"):
        shop.home.retry("shop", "orders")
    for ask in (request_add, request_drop, request_retry):
        with pytest.raises(UsageError, match="source shops does not exist"):
            ask(shop.catalog, "shops", "public.orders")
    with pytest.raises(UsageError, match=r"no table public\.user") as caught:
        shop.home.drop_table("shop", "public.user")
    assert caught.value.hint == "Did you mean public.users? Tables of this source: public.orders, public.users."


def test_stale_state_change_does_not_undo_a_request(create_shop: Callable[..., IdleShop]) -> None:
    shop = create_shop(tables=NAMED)
    shop.home.drop_table("shop", "users")
    users = TableName("public", "users")
    for state in (TableState.LIVE, TableState.FAILED, TableState.PENDING):
        shop.catalog.set_table("shop", users, state)
        assert shop.states()["public.users"] == "dropping"
    (request,) = pending_requests(shop.catalog, "shop")
    shop.catalog.complete_request(replace(request, state=TableState.RETRYING), TableState.PENDING)
    assert shop.states()["public.users"] == "dropping"
    give_up(shop.catalog, [request], DefiniteError("no way", "find one"))
    assert shop.states()["public.users"] == "failed"


def test_concurrent_change_of_a_source_is_rejected(create_shop: Callable[..., IdleShop]) -> None:
    shop = create_shop(tables=NAMED)
    stale = named_source(shop.catalog, "shop").spec
    shop.home.add_table("shop", "public.invoices")
    request = TableRecord("shop", TableName("other", "orders"), "more", TableState.ADDING)
    with pytest.raises(TransientError, match="changed concurrently"):
        shop.catalog.add_requests([TableRequest(request, (stale, stale))])
    assert "other.orders" not in shop.states()


class Killed(BaseException):
    """Simulates the end of the process."""


STEPS = [
    "_end_incomplete",
    "PostgresInstanceConfig.republish",
    "PostgresInstanceConfig.alter_tables",
    "Catalog.set_source",
    "_end",
    "shutil.rmtree",
    "Catalog.complete_request",
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_next_start_completes_a_request_killed_at_any_step(
    create_shop: Callable[..., IdleShop], monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    shop = create_shop(tables=NAMED)
    shop.home.add_table("shop", "public.invoices")
    shop.home.drop_table("shop", "users")
    folder = base_path(shop.home.path, "shop", "users")
    folder.mkdir(parents=True)
    (users,) = [t for t in postgres_instance_of(named_source(shop.catalog, "shop")).tables if t.name.name == "users"]
    with closing(shop.catalog.log("shop").writer()) as writer:
        start = writer.frontiers().durable
        writer.define(users.table_schema(), start)
    *where, name = step.split(".")
    kinds = {"PostgresInstanceConfig": PostgresInstanceConfig}
    owner = (kinds.get(where[0]) or getattr(reconcile, where[0])) if where else reconcile
    work, calls = getattr(owner, name), []

    def killed(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if after:
            work(*arguments, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            shop.reconcile()
    assert calls == [1]
    while pending_requests(shop.catalog, "shop"):
        shop.reconcile()
    assert shop.states() == {"public.orders": "pending", "public.invoices": "pending"}
    assert shop.published() == {"orders", "invoices"}
    assert set(shop.captured()) == {"public.orders", "public.invoices"}
    assert shop.captured()["public.invoices"] >= 1
    assert not folder.exists()
    with closing(shop.catalog.log("shop").reader()) as log:
        found = log.tables()[users.name].error
    assert found is not None
    assert (found.lsn, found.message.partition(":")[0]) == (start + 1, "public.users is no longer captured")


def test_excluded_columns_of_a_dropped_table_stay_excluded(create_shop: Callable[..., IdleShop], database: Any) -> None:
    database.execute("ALTER TABLE users ADD secret text")
    shop = create_shop(tables=NAMED, exclude_columns=("public.users.secret",))
    shop.home.drop_table("shop", "users")
    shop.reconcile()
    assert shop.home.check("shop").ready
    shop.home.add_table("shop", "public.users")
    shop.reconcile()
    (users,) = [t for t in postgres_instance_of(named_source(shop.catalog, "shop")).tables if t.name.name == "users"]
    assert [column.name for column in users.columns] == ["id"]
    assert users.column_list


def test_table_that_changed_since_its_request_fails_with_the_reason(
    create_shop: Callable[..., IdleShop], database: Any
) -> None:
    shop = create_shop(tables=NAMED)
    shop.home.add_table("shop", "public.invoices")
    database.execute("DROP TABLE invoices")
    shop.reconcile()
    (record,) = [t for t in shop.catalog.tables("shop") if t.upstream == INVOICES]
    assert (record.state, record.error) == (TableState.FAILED, "table does not exist")
    assert shop.published() == {"orders", "users"}
    shop.home.drop_table("shop", "public.invoices")
    shop.reconcile()
    assert set(shop.states()) == set(NAMED)
