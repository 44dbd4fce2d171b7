"""SQL statements executed on a home: they create, explain, show, alter and drop sources."""

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
from penstock.sql.show_statements import Answer


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def shop(database: Any) -> str:
    """The start of a statement that captures a database with two tables and one that cannot be captured."""
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric(10, 2));"
        " CREATE TABLE users (id int PRIMARY KEY, name text, secret text); CREATE TABLE keyless (id int)"
    )
    return f"CREATE SOURCES shop FROM POSTGRES CONNECTION '{database.url}'"


def message_of(home: Home, statement: str) -> str:
    answer = home.sql(statement)
    assert isinstance(answer, Answer)
    return answer.message


def rows(home: Home, statement: str) -> list[dict[str, Any]]:
    answer = home.sql(statement)
    assert isinstance(answer, Answer)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def test_source_is_created_shown_and_dropped(home: Home, shop: str, database: Any) -> None:
    statement = (
        f"{shop} FOR TABLES (public.orders AS purchases, public.users)"
        " WITH (exclude columns = (public.users.secret), retain history = '2 hours', chunk rows = 500);"
    )
    assert message_of(home, statement).startswith("created source shop; ")
    assert upstream(database) == {"slot penstock_shop", "publication penstock_shop"}
    assert [row["name"] for row in rows(home, "SHOW SOURCES")] == ["shop"]
    tables = rows(home, "SHOW TABLES FROM shop")
    assert [(row["name"], row["upstream"], row["state"]) for row in tables] == [
        ("shop.purchases", "public.orders", "pending"),
        ("shop.users", "public.users", "pending"),
    ]
    assert rows(home, "SHOW SINKS") == []
    (statement_row,) = rows(home, "SHOW CREATE SOURCE shop")
    spec = home.spec("shop")
    assert message_of(home, "DROP SOURCES shop") == "dropped shop"
    assert upstream(database) == set()
    message_of(home, statement_row["statement"])
    assert home.spec("shop") == spec
    assert message_of(home, "DROP SOURCE IF EXISTS shop;") == "dropped shop"
    assert message_of(home, "DROP SOURCE IF EXISTS shop;") == "source shop does not exist, skipping"


def test_if_not_exists(home: Home, shop: str) -> None:
    message_of(home, shop)
    with pytest.raises(DefiniteError, match="source shop already exists"):
        home.sql(shop)
    again = shop.replace("SOURCES shop", "SOURCES IF NOT EXISTS shop")
    assert message_of(home, again) == "source shop already exists, skipping"
    home.sql("DROP SOURCES shop")


def test_explain_creates_nothing(home: Home, shop: str, database: Any) -> None:
    found = rows(home, f"EXPLAIN {shop.removeprefix('CREATE ')}")
    objects = [row["what"] for row in found]
    assert "publication penstock_shop" in objects
    assert "slot penstock_shop" in objects
    assert "table shop.orders of public.orders" in objects
    assert any(each.startswith("error: public.keyless: ") for each in objects)
    assert next(row["note"] for row in found if row["what"].startswith("table shop.users")).endswith("key (id)")
    assert (home.names(), upstream(database)) == ([], set())


def test_options_are_set(home: Home, shop: str) -> None:
    home.sql(shop)
    assert "at the next `penstock run`" in message_of(home, "ALTER SOURCES shop SET (retain history = '3 days')")
    spec = home.spec("shop")
    assert spec.retain_history == "3 days"
    assert "retain history = '3 days'" in home.statement("shop")
    with pytest.raises(UsageError, match="slot") as caught:
        home.sql("ALTER SOURCES shop SET (slot = 'another')")
    assert caught.value.hint
    home.sql("DROP SOURCES shop")


def test_errors_are_shown_with_hints(home: Home, shop: str) -> None:
    home.sql(shop)
    (error,) = rows(home, "SHOW ERRORS")
    assert error["name"] == "shop.keyless"
    assert "ALTER TABLE" in error["hint"]
    home.sql("DROP SOURCES shop")


def test_script_creates_missing_sources(home: Home, shop: str) -> None:
    script = f"-- the sources of this home\n{shop}\n  FOR TABLES (public.orders);\n"
    assert home.create_missing(script) == [("source", "shop")]
    assert home.create_missing(script) == []
    with pytest.raises(UsageError, match="with another definition") as caught:
        home.create_missing(script.replace("public.orders", "public.users"))
    assert "line 2" in caught.value.message
    with pytest.raises(UsageError, match="accepts only CREATE SOURCES and CREATE SINK statements"):
        home.create_missing(f"{script} DROP SOURCES shop;")
    home.sql("DROP SOURCES shop")


def test_script_with_an_error_creates_nothing(home: Home, shop: str, database: Any) -> None:
    with pytest.raises(UsageError, match="line 2") as caught:
        home.create_missing(f"{shop};\nCREATE SOURCES more FROM POSTGRESS CONNECTION 'x';")
    assert "POSTGRES" in caught.value.hint
    assert (home.names(), upstream(database)) == ([], set())


def test_plaintext_secret_is_stored_in_a_private_file(home: Home, shop: str) -> None:
    with pytest.raises(UsageError, match="literal secret") as caught:
        home.sql(f"{shop} PASSWORD 'canary-7'")
    assert "canary" not in str(caught.value)
    statement = f"{shop} PASSWORD 'canary-7' WITH (allow literal secrets = true)"
    message_of(home, statement)
    secret_file = secrets_path(home.path, "shop") / "password"
    assert secret_file.read_text() == "canary-7"
    assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
    spec = home.spec("shop")
    assert isinstance(spec, PostgresSource)
    assert spec.password == f"file:{secret_file.absolute()}"
    assert "canary" not in home.statement("shop")
    assert b"canary" not in catalog_path(home.path).read_bytes()
    home.sql("DROP SOURCES shop")
    assert not secret_file.exists()


def test_home_is_created_by_a_statement_that_needs_it(tmp_path: Path, shop: str) -> None:
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
def test_source_that_does_not_exist(home: Home, statement: str) -> None:
    with pytest.raises(UsageError, match="source nowhere does not exist"):
        home.sql(statement)


def test_table_that_a_sink_reads_is_not_dropped(home: Home, shop: str) -> None:
    home.sql(f"{shop} FOR TABLES (public.orders, public.users)")
    kafka = "INTO KAFKA BROKER 'k:9092' TOPIC 'orders' FORMAT JSON ENVELOPE UPSERT"
    home.sql(f"CREATE SINK out FROM shop.public.orders {kafka}")
    with pytest.raises(UsageError, match=r"table public\.orders is not dropped: sink out reads it"):
        home.sql("ALTER SOURCE shop DROP TABLE orders")
    home.sql("ALTER SOURCE shop DROP TABLE users; DROP SINK out; DROP SOURCE shop")
