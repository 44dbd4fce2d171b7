"""`penstock check`: exit code 0 or 1, the documented JSON format, and text output with a hint for each finding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands import STARTED_SPARK, penstock
from tests.conftest import Database
from tests.postgres_records import postgres_spec_of

from penstock.catalog.store import Catalog
from penstock.home import open_home
from penstock.layout import catalog_path

DONE, FAILED, USAGE, TRANSIENT = 0, 1, 2, 4
SECRET = "correct-horse-battery"


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text); CREATE TABLE notes (body text)")
    return database


def test_database_can_be_captured(shop: Database) -> None:
    answer = penstock("check", shop.url)
    assert (answer.code, answer.err) == (DONE, "")
    assert "1 of 2 tables can be captured" in answer.out
    assert 'ALTER TABLE "public"."notes" ADD PRIMARY KEY' in answer.out
    assert shop.execute("SELECT 1 FROM pg_publication") == []


def test_json_format(shop: Database) -> None:
    answer = penstock("check", shop.url, "--json")
    found = json.loads(answer.out)
    assert list(found) == ["version", "at", "source", "ready", "tables", "findings"]
    assert (found["version"], found["source"], found["ready"]) == (1, None, True)
    assert found["at"] == f"127.0.0.1:{shop.server.port}/{shop.name}"
    assert {table["name"]: table["capturable"] for table in found["tables"]} == {
        "public.notes": False,
        "public.orders": True,
    }
    assert all(list(finding) == ["level", "object", "why", "hint", "sql"] for finding in found["findings"])
    (notes,) = [finding for finding in found["findings"] if finding["object"] == "public.notes"]
    assert notes["level"] == "error"
    assert notes["why"].startswith("table has no primary key")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--table", "public.notes"], "table has no primary key"),
        (["--table", "public.odrers"], "Did you mean public.orders?"),
        (["--schema", "sales"], "schema sales"),
        (["--publication", "nothing"], "CREATE PUBLICATION"),
        (["--exclude-column", "public.orders.id"], "a column of the primary key"),
    ],
)
def test_database_cannot_be_captured(shop: Database, options: list[str], message: str) -> None:
    answer = penstock("check", shop.url, *options)
    assert answer.code == FAILED, answer
    assert message in answer.out
    assert "capture cannot start" in answer.out
    assert json.loads(penstock("check", shop.url, *options, "--json").out)["ready"] is False


def test_rejected_login_is_a_finding(shop: Database) -> None:
    answer = penstock("check", shop.url + "_missing", "--json")
    assert answer.code == FAILED
    (finding,) = json.loads(answer.out)["findings"]
    assert finding["object"] == "connection"
    assert "does not exist" in finding["why"]
    penstock("check", "postgresql://u@127.0.0.1:1/shop").assert_error(TRANSIENT)


def test_empty_database(database: Database) -> None:
    assert "has no table to capture" in penstock("check", database.url).out


def test_existing_source(shop: Database, tmp_path: Path) -> None:
    home = open_home(tmp_path / "home")
    home.create(shop.url, "shop")
    try:
        fine = penstock("check", "shop", "--json", "--home", home.path)
        found = json.loads(fine.out)
        assert (fine.code, found["source"], found["ready"]) == (DONE, "shop", True)
        shop.execute("CREATE TABLE later (id int PRIMARY KEY)")
        assert "the table is new; `penstock run` captures it" in penstock("check", "shop", "--home", home.path).out
        shop.execute("ALTER PUBLICATION penstock_shop DROP TABLE orders")
        shop.execute("SELECT pg_replication_slot_advance('penstock_shop', pg_current_wal_lsn())")
        broken = penstock("check", "shop", "--home", home.path)
        assert broken.code == FAILED
        assert "not in publication" in broken.out
        assert "the changes in between are lost" in broken.out
        shop.execute("SELECT pg_drop_replication_slot('penstock_shop')")
        assert "no longer exists" in penstock("check", "shop", "--home", home.path).out
    finally:
        home.drop("shop")


@pytest.mark.parametrize(
    "arguments",
    [["shop"], ["shop", "--table", "a.b"], [f"u:{SECRET}@h/shop"], [f"host=h password={SECRET}"]],
)
def test_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    answer = penstock("check", *arguments, "--home", tmp_path).assert_error(USAGE)
    assert SECRET not in answer.out + answer.err


# -- the same options, for run -----------------------------------------------------------------------------------------


def test_run_accepts_the_same_options(shop: Database, tmp_path: Path) -> None:
    shop.execute("CREATE PUBLICATION mine FOR TABLE orders")
    (tmp_path / "password").write_text(SECRET)
    home = tmp_path / "home"
    arguments = ["--table", "public.orders AS purchases", "--text-column", "public.orders.note"]
    arguments += ["--publication", "mine", "--password", f"file:{tmp_path}/password"]
    answer = penstock("run", shop.url, "--home", home, "--name", "shop", *arguments)
    assert answer.code == STARTED_SPARK, answer
    catalog = Catalog(catalog_path(home))
    (record,) = catalog.sources()
    assert SECRET not in record.spec + record.instance
    assert postgres_spec_of(record).publication_ownership == "user"
    assert [table.local for table in catalog.tables()] == ["purchases"]
    again = penstock("run", shop.url, "--home", home, "--schema", "public").assert_error(USAGE)
    assert "with other options" in again.error
    assert penstock("run", shop.url, "--home", home, *arguments).code == STARTED_SPARK
    dropped = penstock("drop", "shop", "--home", home)
    assert dropped.code == DONE, dropped
    assert "kept in Postgres, not created by Penstock: publication mine" in dropped.out
    assert shop.execute("SELECT pubname FROM pg_publication") == [("mine",)]


def test_options_without_a_database(tmp_path: Path) -> None:
    answer = penstock("run", "--home", tmp_path, "--table", "a.b").assert_error(USAGE)
    assert "postgresql://" in answer.hint


def test_plaintext_password(tmp_path: Path) -> None:
    answer = penstock("run", "postgresql://u@127.0.0.1:1/d", "--home", tmp_path, "--password", SECRET)
    answer.assert_error(USAGE)
    assert SECRET not in answer.out + answer.err
