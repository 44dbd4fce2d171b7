"""What may be wished of a source's tables, and what is left of a wish when its carrying out is cut short; no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord, Wish
from penstock.engine import reconcile
from penstock.engine.reconcile import alter, describe, give_up
from penstock.engine.records import database_instance_of, database_spec_of
from penstock.engine.requests import ask_add, ask_drop, ask_retry, open_wishes
from penstock.engine.table_names import named_source
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.home import Home
from penstock.layout import base_path, catalog_path
from penstock.model import TableName
from penstock.sql.answer import Answer

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE users (id int PRIMARY KEY);
CREATE TABLE invoices (id int PRIMARY KEY); CREATE TABLE notes (body text);
CREATE TABLE geo (id int PRIMARY KEY, "Id" int); CREATE VIEW seen AS SELECT * FROM orders;
CREATE SCHEMA other; CREATE TABLE other.orders (id int PRIMARY KEY)
"""
NAMED = ("public.orders", "public.users")
INVOICES = TableName("public", "invoices")


class Made:
    """A home with the source `shop`, which does not run."""

    def __init__(self, home: Home, database: Any) -> None:
        self.home, self.database = home, database
        self.catalog = Catalog(catalog_path(home.path))

    def states(self) -> dict[str, str]:
        return {str(table.upstream): table.state.value for table in self.catalog.tables("shop")}

    def captured(self) -> dict[str, int]:
        tables = database_instance_of(named_source(self.catalog, "shop")).tables
        return {str(table.name): table.generation for table in tables}

    def published(self) -> set[str]:
        return {name for (name,) in self.database.execute("SELECT tablename FROM pg_publication_tables")}

    def carry_out(self) -> list[str]:
        wishes = open_wishes(self.catalog, "shop")
        found = describe(named_source(self.catalog, "shop"), wishes)
        return alter(self.home.path, self.catalog, named_source(self.catalog, "shop"), wishes, found)


@pytest.fixture
def shop(database: Any, tmp_path: Path) -> Iterator[Callable[..., Made]]:
    database.execute(TABLES)
    homes = []

    def make(**options: Any) -> Made:
        home = Home(tmp_path / "home")
        home.create(database.url, "shop", **options)
        homes.append(home)
        return Made(home, database)

    yield make
    for home in homes:
        home.drop("shop")


def test_wishes_are_noted_with_what_is_asked_of_the_source(shop: Callable[..., Made]) -> None:
    made = shop(tables=NAMED)
    answer = made.home.sql("ALTER SOURCES shop ADD TABLE public.invoices AS bills")
    assert isinstance(answer, Answer)
    assert "at the next penstock run" in answer.told
    made.home.drop_table("shop", "users")
    assert made.states() == {"public.orders": "pending", "public.users": "dropping", "public.invoices": "adding"}
    assert database_spec_of(named_source(made.catalog, "shop")).tables == ("public.orders", "public.invoices AS bills")
    assert made.captured() == {"public.orders": 0, "public.users": 0}
    told = made.carry_out()
    assert [line.split(": ")[1].split(",")[0] for line in told] == [
        "public.invoices is added",
        "public.users is dropped",
    ]
    assert made.states() == {"public.orders": "pending", "public.invoices": "pending"}
    assert made.captured() == {"public.orders": 0, "public.invoices": 1}
    assert made.published() == {"orders", "invoices"}


@pytest.mark.parametrize(
    ("options", "table", "kind", "said", "hint"),
    [
        ({}, "public.nvoices", DefiniteError, "no such table", "Did you mean public.invoices?"),
        ({}, "public.seen", DefiniteError, "a view", "instead"),
        ({}, "public.geo", DefiniteError, "differ by case", "Rename"),
        ({"tables": NAMED}, "public.notes", DefiniteError, "no primary key", "REPLICA IDENTITY FULL"),
        ({"tables": NAMED}, "public.orders", UsageError, "has the table public.orders already", "RETRY TABLE"),
        ({"tables": NAMED}, "public.invoices AS Users", UsageError, "a table Users here", "another name"),
        ({"schemas": ("other",)}, "public.orders", UsageError, "of the schemas other", "of its own"),
        ({}, "invoices", UsageError, "does not name a table", "schema.table"),
    ],
)
def test_what_cannot_be_added_is_refused_at_once(
    shop: Callable[..., Made], options: dict[str, Any], table: str, kind: type[Exception], said: str, hint: str
) -> None:
    made = shop(**options)
    if table == "public.geo":
        made.catalog.grant(TableRecord("shop", TableName("public", "geo"), "geo", TableState.FAILED), None)
    before = made.states(), named_source(made.catalog, "shop")
    with pytest.raises(kind, match=said) as caught:
        made.home.add_table("shop", table)
    assert hint in getattr(caught.value, "hint", "")
    assert (made.states(), named_source(made.catalog, "shop")) == before


def test_a_publication_of_yours_has_to_have_the_table(shop: Callable[..., Made], database: Any) -> None:
    database.execute("CREATE PUBLICATION mine FOR TABLE orders")
    made = shop(publication="mine", publication_ownership="user")
    assert made.captured() == {"public.orders": 0}
    with pytest.raises(DefiniteError, match="not in the publication mine") as caught:
        made.home.add_table("shop", "public.users")
    statement = 'ALTER PUBLICATION "mine" ADD TABLE "public"."users";'
    assert statement in caught.value.hint
    database.execute(statement)
    made.home.add_table("shop", "public.users")
    made.carry_out()
    assert made.captured() == {"public.orders": 0, "public.users": 1}
    made.home.drop_table("shop", "orders")
    made.carry_out()
    assert made.published() == {"orders", "users"}, "it is never changed"
    assert made.captured() == {"public.users": 1}


def test_the_same_name_in_two_schemas(shop: Callable[..., Made]) -> None:
    made = shop(tables=NAMED)
    made.home.add_table("shop", "other.orders")
    assert [t.local for t in made.catalog.tables("shop")] == ["other_orders", "orders", "users"]


def test_what_cannot_be_dropped_or_retried(shop: Callable[..., Made]) -> None:
    made = shop(tables=NAMED)
    with pytest.raises(UsageError, match="is pending"):
        made.home.retry("shop", "orders")
    made.home.drop_table("shop", "orders")
    with pytest.raises(UsageError, match="the last table") as caught:
        made.home.drop_table("shop", "public.users")
    assert "penstock drop shop" in caught.value.hint
    with pytest.raises(UsageError, match="it is dropping"):
        made.home.add_table("shop", "public.orders")
    with pytest.raises(UsageError, match="is dropping"):
        made.home.retry("shop", "orders")
    for ask in (ask_add, ask_drop, ask_retry):
        with pytest.raises(UsageError, match="no source shops"):
            ask(made.catalog, "shops", "public.orders")
    with pytest.raises(UsageError, match=r"no table public\.user") as caught:
        made.home.drop_table("shop", "public.user")
    assert caught.value.hint == "Did you mean public.users? Its tables are: public.orders, public.users."


def test_who_does_not_know_of_a_wish_cannot_undo_it(shop: Callable[..., Made]) -> None:
    made = shop(tables=NAMED)
    made.home.drop_table("shop", "users")
    users = TableName("public", "users")
    for state in (TableState.LIVE, TableState.FAILED, TableState.PENDING):
        made.catalog.set_table("shop", users, state)
        assert made.states()["public.users"] == "dropping"
    (wish,) = open_wishes(made.catalog, "shop")
    made.catalog.grant(replace(wish, state=TableState.RETRYING), TableState.PENDING)
    assert made.states()["public.users"] == "dropping"
    give_up(made.catalog, [wish], DefiniteError("no way", "find one"))
    assert made.states()["public.users"] == "failed"


def test_two_who_change_a_source_at_once(shop: Callable[..., Made]) -> None:
    made = shop(tables=NAMED)
    stale = named_source(made.catalog, "shop").spec
    made.home.add_table("shop", "public.invoices")
    wish = TableRecord("shop", TableName("other", "orders"), "more", TableState.ADDING)
    with pytest.raises(TransientError, match="at this moment"):
        made.catalog.wish([Wish(wish, (stale, stale))])
    assert "other.orders" not in made.states()


class Killed(BaseException):
    """As if the process had ended here."""


STEPS = ["_altered", "PostgresInstanceConfig.repair", "Catalog.set_source", "_end", "shutil.rmtree", "Catalog.grant"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_the_next_start_finishes(
    shop: Callable[..., Made], monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    made = shop(tables=NAMED)
    made.home.add_table("shop", "public.invoices")
    made.home.drop_table("shop", "users")
    folder = base_path(made.home.path, "shop", "users")
    folder.mkdir(parents=True)
    (users,) = [t for t in database_instance_of(named_source(made.catalog, "shop")).tables if t.name.name == "users"]
    with closing(made.catalog.log("shop").writer()) as writer:
        begun = writer.frontiers().durable
        writer.define(users.table_schema(), begun)
    *where, name = step.split(".")
    owner = getattr(reconcile, where[0]) if where else reconcile
    work, calls = getattr(owner, name), []

    def killed(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if after:
            work(*arguments, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            made.carry_out()
    assert calls == [1]
    while open_wishes(made.catalog, "shop"):
        made.carry_out()
    assert made.states() == {"public.orders": "pending", "public.invoices": "pending"}
    assert made.published() == {"orders", "invoices"}
    assert set(made.captured()) == {"public.orders", "public.invoices"}
    assert made.captured()["public.invoices"] >= 1
    assert not folder.exists()
    with closing(made.catalog.log("shop").reader()) as log:
        error = log.tables()[users.name].error
    assert error is not None
    assert (error.lsn, error.message.partition(":")[0]) == (begun + 1, "public.users is not captured any more")


def test_what_is_excluded_of_a_dropped_table_stays_so(shop: Callable[..., Made], database: Any) -> None:
    database.execute("ALTER TABLE users ADD secret text")
    made = shop(tables=NAMED, exclude_columns=("public.users.secret",))
    made.home.drop_table("shop", "users")
    made.carry_out()
    assert made.home.check("shop").ready
    made.home.add_table("shop", "public.users")
    made.carry_out()
    (users,) = [t for t in database_instance_of(named_source(made.catalog, "shop")).tables if t.name.name == "users"]
    assert [column.name for column in users.columns] == ["id"]
    assert users.column_list


def test_what_changed_since_it_was_wished_fails_with_the_reason(shop: Callable[..., Made], database: Any) -> None:
    made = shop(tables=NAMED)
    made.home.add_table("shop", "public.invoices")
    database.execute("DROP TABLE invoices")
    made.carry_out()
    (record,) = [t for t in made.catalog.tables("shop") if t.upstream == INVOICES]
    assert (record.state, record.error) == (TableState.FAILED, "there is no such table")
    assert made.published() == {"orders", "users"}
    made.home.drop_table("shop", "public.invoices")
    made.carry_out()
    assert set(made.states()) == set(NAMED)
