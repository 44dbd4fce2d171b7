"""Statements carried out on a home: sources are made, explained, shown, changed and removed by what somebody writes."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from tests.engine.test_lifecycle import upstream

from penstock.errors import DefiniteError, UsageError
from penstock.home import Home, open_to_run
from penstock.layout import catalog_path, secrets_path
from penstock.sources.postgres.spec import PostgresSource
from penstock.sql.answer import Answer


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def shop(database: Any) -> str:
    """The beginning of a statement that captures a database with two tables and one that cannot be."""
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric(10, 2));"
        " CREATE TABLE users (id int PRIMARY KEY, name text, secret text); CREATE TABLE keyless (id int)"
    )
    return f"CREATE SOURCES shop FROM POSTGRES CONNECTION '{database.url}'"


def told(home: Home, statement: str) -> str:
    answer = home.sql(statement)
    assert isinstance(answer, Answer)
    return answer.told


def rows(home: Home, statement: str) -> list[dict[str, Any]]:
    answer = home.sql(statement)
    assert isinstance(answer, Answer)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def test_a_source_is_made_shown_and_removed(home: Home, shop: str, database: Any) -> None:
    statement = (
        f"{shop} FOR TABLES (public.orders AS purchases, public.users)"
        " WITH (exclude columns = (public.users.secret), retain history = '2 hours', chunk rows = 500);"
    )
    assert told(home, statement).startswith("created source shop: DROP SOURCES shop;")
    assert upstream(database) == {"slot penstock_shop", "publication penstock_shop"}
    assert [row["name"] for row in rows(home, "SHOW SOURCES")] == ["shop"]
    tables = rows(home, "SHOW TABLES FROM shop")
    assert [(row["name"], row["upstream"], row["state"]) for row in tables] == [
        ("shop.purchases", "public.orders", "pending"),
        ("shop.users", "public.users", "pending"),
    ]
    assert rows(home, "SHOW SINKS") == []
    (shown,) = rows(home, "SHOW CREATE SOURCE shop")
    spec = home.spec("shop")
    assert told(home, "DROP SOURCES shop") == "dropped shop"
    assert upstream(database) == set()
    told(home, shown["statement"])
    assert home.spec("shop") == spec
    assert told(home, "DROP SOURCE IF EXISTS shop;") == "dropped shop"
    assert told(home, "DROP SOURCE IF EXISTS shop;") == "there is no source shop"


def test_if_not_exists(home: Home, shop: str) -> None:
    told(home, shop)
    with pytest.raises(DefiniteError, match="there is a source shop already"):
        home.sql(shop)
    again = shop.replace("SOURCES shop", "SOURCES IF NOT EXISTS shop")
    assert told(home, again) == "source shop is there already"
    home.sql("DROP SOURCES shop")


def test_explain_makes_nothing(home: Home, shop: str, database: Any) -> None:
    found = rows(home, f"EXPLAIN {shop.removeprefix('CREATE ')}")
    what = [row["what"] for row in found]
    assert "publication penstock_shop" in what
    assert "slot penstock_shop" in what
    assert "table shop.orders of public.orders" in what
    assert any(each.startswith("error: public.keyless: ") for each in what)
    assert next(row["note"] for row in found if row["what"].startswith("table shop.users")).endswith("key (id)")
    assert (home.names(), upstream(database)) == ([], set())


def test_options_are_set(home: Home, shop: str) -> None:
    home.sql(shop)
    assert "at the next penstock run" in told(home, "ALTER SOURCES shop SET (retain history = '3 days')")
    spec = home.spec("shop")
    assert spec.retain_history == "3 days"
    assert "retain history = '3 days'" in home.statement("shop")
    with pytest.raises(UsageError, match="slot") as caught:
        home.sql("ALTER SOURCES shop SET (slot = 'another')")
    assert caught.value.hint
    home.sql("DROP SOURCES shop")


def test_errors_are_shown_with_what_to_do(home: Home, shop: str) -> None:
    home.sql(shop)
    (error,) = rows(home, "SHOW ERRORS")
    assert error["name"] == "shop.keyless"
    assert "ALTER TABLE" in error["hint"]
    home.sql("DROP SOURCES shop")


def test_a_file_makes_what_is_missing(home: Home, shop: str) -> None:
    script = f"-- what this home shall have\n{shop}\n  FOR TABLES (public.orders);\n"
    assert home.make_missing(script) == ["shop"]
    assert home.make_missing(script) == []
    with pytest.raises(UsageError, match="described otherwise") as caught:
        home.make_missing(script.replace("public.orders", "public.users"))
    assert "line 2" in caught.value.message
    with pytest.raises(UsageError, match="only CREATE SOURCES stands in a file that is run"):
        home.make_missing(f"{script} DROP SOURCES shop;")
    home.sql("DROP SOURCES shop")


def test_nothing_is_made_of_a_file_with_an_error(home: Home, shop: str, database: Any) -> None:
    with pytest.raises(UsageError, match="line 2") as caught:
        home.make_missing(f"{shop};\nCREATE SOURCES more FROM POSTGRESS CONNECTION 'x';")
    assert "POSTGRES" in caught.value.hint
    assert (home.names(), upstream(database)) == ([], set())


def test_a_secret_in_clear_is_kept_in_a_file_of_the_owner(home: Home, shop: str) -> None:
    with pytest.raises(UsageError, match="a secret in clear") as caught:
        home.sql(f"{shop} PASSWORD 'canary-7'")
    assert "canary" not in str(caught.value)
    statement = f"{shop} PASSWORD 'canary-7' WITH (allow literal secrets = true)"
    told(home, statement)
    kept = secrets_path(home.path, "shop") / "password"
    assert kept.read_text() == "canary-7"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    spec = home.spec("shop")
    assert isinstance(spec, PostgresSource)
    assert spec.password == f"file:{kept.absolute()}"
    assert "canary" not in home.statement("shop")
    assert b"canary" not in catalog_path(home.path).read_bytes()
    home.sql("DROP SOURCES shop")
    assert not kept.exists()


def test_a_home_is_made_by_a_statement_that_needs_it(tmp_path: Path, shop: str) -> None:
    for text in ("SELECT 1", "SHOW SOURCES", None):
        with pytest.raises(UsageError, match="there is no home"):
            open_to_run(tmp_path / "none", text)
    assert open_to_run(tmp_path / "new", f"SHOW SOURCES; {shop}").names() == []


def test_names_are_completed(home: Home, shop: str) -> None:
    home.sql(shop)
    assert "SOURCES" in home.completions("CREATE ")
    assert home.completions("SHOW TABLES FROM s") == ["shop"]
    assert home.completions("SELECT * FROM shop.") == ["keyless", "orders", "users"]
    home.sql("DROP SOURCES shop")


@pytest.mark.parametrize(
    "statement", ["SHOW TABLES FROM nowhere", "SHOW CREATE SOURCES nowhere", "ALTER SOURCES nowhere RETRY TABLE a.b"]
)
def test_a_source_that_is_not_there(home: Home, statement: str) -> None:
    with pytest.raises(UsageError, match="there is no source nowhere"):
        home.sql(statement)
