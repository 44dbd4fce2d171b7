"""Invalid input and a broken environment: an error, a hint, the right exit code, and no leftovers.

All of these are detected before Spark starts: a run that starts Spark has its own exit code.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.commands import STARTED_SPARK, in_a_shell, penstock
from tests.conftest import Database

from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.locks import hold_home
from penstock.home import open_home
from penstock.layout import catalog_path, log_path
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import until

DONE, USAGE, DEFINITE, TRANSIENT = 0, 2, 3, 4
SECRET = "correct-horse-battery"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def shop(database: Database) -> Database:
    """A database with a table that can be captured."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
    return database


@pytest.fixture(scope="module")
def other_server() -> Iterator[EmbeddedPostgres]:
    """A server with wal_level = replica, which requires a password from one role."""
    hba = ["host all guarded 127.0.0.1/32 scram-sha-256"]
    with start_postgres(settings={"wal_level": "replica"}, hba=hba, fsync=False) as server:
        server.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        server.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{SECRET}'")
        yield server


def upstream(server: EmbeddedPostgres, database: str = "postgres") -> set[str]:
    """The slots and publications of a database."""
    slots = "SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE database = current_database()"
    query = f"{slots} UNION ALL SELECT 'publication ' || pubname FROM pg_publication"
    return {row[0] for row in server.execute(query, database)}


def no_leftovers(home: Path, database: Database) -> bool:
    """Whether nothing is left upstream, in the catalog, or in the log folder."""
    logs = list((home / "log").iterdir()) if (home / "log").exists() else []
    sources = Catalog(catalog_path(home)).sources() if catalog_path(home).exists() else []
    return not logs and not sources and not upstream(database.server, database.name)


# -- the database ---------------------------------------------------------------------------------------------------


def test_unreachable_server(home: Path) -> None:
    answer = penstock("run", "postgresql://u@127.0.0.1:1/shop", "--home", home).assert_error(TRANSIENT)
    assert "127.0.0.1:1/shop" in answer.error
    assert "refused" in answer.error
    assert "Check that the server is running" in answer.hint
    assert open_home(home).sources() == []


def test_unknown_host(home: Path) -> None:
    answer = penstock("run", "postgresql://u@no.such.host.invalid/shop", "--home", home).assert_error(TRANSIENT)
    assert "no.such.host.invalid" in answer.error


def test_unknown_database(home: Path, shop: Database) -> None:
    answer = penstock("run", shop.url + "_missing", "--home", home).assert_error(DEFINITE)
    assert f'database "{shop.name}_missing" does not exist' in answer.error
    assert "Check database, user" in answer.hint
    assert no_leftovers(home, shop)


@pytest.mark.parametrize("password", ["wrong-" + SECRET, None], ids=["wrong", "none"])
def test_wrong_password(home: Path, other_server: EmbeddedPostgres, password: str | None) -> None:
    env = {} if password is None else {"PGPASSWORD": password}
    url = other_server.url_for("postgres", "guarded")
    answer = penstock("run", url, "--home", home, env=env).assert_error(DEFINITE)
    assert "refused the login" in answer.error
    assert "PGPASSWORD" in answer.hint
    assert ".pgpass" in answer.hint
    assert SECRET not in answer.out + answer.err
    assert all(SECRET.encode() not in path.read_bytes() for path in home.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@127.0.0.1:1/shop",
        f"postgresql://u@127.0.0.1:1/shop?password={SECRET}",
        f"postgresql://u:{SECRET}/x@127.0.0.1:1/shop",
        f"postgresql+psycopg://u:{SECRET}@127.0.0.1:1/shop",
        f"u:{SECRET}@127.0.0.1/shop",
    ],
)
def test_password_in_the_url(home: Path, url: str) -> None:
    answer = penstock("run", url, "--home", home).assert_error(USAGE)
    assert SECRET not in answer.out + answer.err
    assert "password" in answer.error or "invalid database URL" in answer.error or "invalid Postgres" in answer.error


def test_wal_level(home: Path, other_server: EmbeddedPostgres) -> None:
    answer = penstock("run", other_server.url, "--home", home).assert_error(DEFINITE)
    assert 'wal_level: set to "replica"' in answer.error
    assert "ALTER SYSTEM SET wal_level = 'logical'" in answer.hint
    assert upstream(other_server) == set()
    assert open_home(home).sources() == []


def test_role_without_replication(home: Path, shop: Database) -> None:
    role = f"plain_{shop.name}"
    shop.execute(f'CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE "{shop.name}" TO {role}')
    try:
        answer = penstock("run", shop.server.url_for(shop.name, role), "--home", home).assert_error(DEFINITE)
    finally:
        shop.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert f'role "{role}" has no REPLICATION attribute' in answer.error
    assert f"ALTER ROLE {role} REPLICATION;" in answer.hint.replace('"', "")
    assert no_leftovers(home, shop)


def test_empty_database(home: Path, database: Database) -> None:
    answer = penstock("run", database.url, "--home", home).assert_error(DEFINITE)
    assert "no table to capture" in answer.error
    assert no_leftovers(home, database)


@pytest.mark.parametrize(
    ("table", "message", "hint"),
    [
        ("CREATE TABLE t (id int)", "table has no primary key", 'ALTER TABLE "public"."t" ADD PRIMARY KEY'),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", "table is unlogged", "SET LOGGED"),
    ],
    ids=["keyless", "unlogged"],
)
def test_only_table_cannot_be_captured(home: Path, database: Database, table: str, message: str, hint: str) -> None:
    database.execute(table)
    answer = penstock("run", database.url, "--home", home).assert_error(DEFINITE)
    assert "public.t" in answer.error
    assert message in answer.error
    assert hint in answer.hint
    assert no_leftovers(home, database)


def test_one_of_two_tables_cannot_be_captured(home: Path, shop: Database) -> None:
    shop.execute("CREATE TABLE notes (body text)")
    opened = open_home(home)
    opened.create(shop.url, "shop")
    try:
        answer = penstock("status", "--home", home)
        assert answer.code == DONE
        lines = answer.out.splitlines()
        assert any("shop.notes" in line and "failed" in line for line in lines)
        assert any("shop.orders" in line and "pending" in line for line in lines)
        assert any(line.startswith("public.notes: table has no primary key") for line in lines)
        assert any("ADD PRIMARY KEY" in line for line in lines)
    finally:
        opened.drop("shop")
    assert no_leftovers(home, shop)


def test_slot_already_exists(home: Path, shop: Database, tmp_path: Path) -> None:
    first = open_home(tmp_path / "first")
    first.create(shop.url, "shop")
    try:
        before = upstream(shop.server, shop.name)
        answer = penstock("run", shop.url, "--home", home, "--name", "shop").assert_error(DEFINITE)
        assert 'replication slot "penstock_shop" already exists' in answer.error
        assert "--name" in answer.hint
        assert upstream(shop.server, shop.name) == before == {"slot penstock_shop", "publication penstock_shop"}
        assert open_home(home).sources() == []
    finally:
        first.drop("shop")


def test_invalid_source_name(home: Path, shop: Database) -> None:
    answer = penstock("run", shop.url, "--home", home, "--name", "My Shop").assert_error(USAGE)
    assert "invalid source name 'My Shop'" in answer.error
    assert no_leftovers(home, shop)


# -- the home -------------------------------------------------------------------------------------------------------


def test_second_run_of_a_home(home: Path, shop: Database) -> None:
    with hold_home(home):
        answer = penstock("run", shop.url, "--home", home).assert_error(DEFINITE)
    assert f"pid {os.getpid()}" in answer.error
    assert "--home" in answer.hint
    assert no_leftovers(home, shop)


def test_second_run_of_a_home_with_a_source(home: Path, shop: Database) -> None:
    opened = open_home(home)
    opened.create(shop.url, "shop")
    with hold_home(home):
        for command in (["run"], ["run", shop.url]):
            assert f"pid {os.getpid()}" in penstock(*command, "--home", home).assert_error(DEFINITE).error
        assert opened.sources() == ["shop"]
        assert penstock("drop", "shop", "--home", home).code == 0
    assert no_leftovers(home, shop)


def test_source_that_was_already_dropped(home: Path, shop: Database) -> None:
    open_home(home).create(shop.url, "shop")
    penstock("drop", "shop", "--home", home)
    assert "source shop does not exist" in penstock("drop", "shop", "--home", home).assert_error(DEFINITE).error


def test_incomplete_source_is_removed_and_can_be_created(home: Path, shop: Database) -> None:
    opened = open_home(home)
    opened.create(shop.url, "shop")
    Catalog(catalog_path(home)).set_source("shop", SourceState.CREATING)
    assert penstock("run", "--home", home).assert_error(USAGE).error == "this home has no sources"
    assert no_leftovers(home, shop)
    opened.create(shop.url, "shop")
    Catalog(catalog_path(home)).set_source("shop", SourceState.CREATING)
    assert penstock("run", shop.url, "--home", home, "--name", "shop").code == STARTED_SPARK
    assert [record.state for record in Catalog(catalog_path(home)).sources()] == [SourceState.READY]
    opened.drop("shop")


def test_killed_create_leaves_nothing_after_the_next_start(home: Path, shop: Database) -> None:
    """An open transaction delays the creation of the slot; the process is killed while it waits."""
    with shop.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO orders VALUES (1, 'new')")
        command = [sys.executable, "-m", "penstock.cli", "run", shop.url, "--home", str(home), "--name", "shop"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            until(lambda: "slot penstock_shop" in upstream(shop.server, shop.name), "the slot")
            process.send_signal(signal.SIGKILL)
    assert not no_leftovers(home, shop)
    open_home(home).recover()
    assert no_leftovers(home, shop)


def test_home_of_a_newer_version(home: Path, shop: Database) -> None:
    open_home(home)
    with closing(sqlite3.connect(catalog_path(home))) as db:
        db.execute("PRAGMA user_version = 99")
    for command in (["run", shop.url], ["status"], ["sql", "SELECT 1"], ["drop", "shop"]):
        answer = penstock(*command, "--home", home).assert_error(DEFINITE)
        assert "newer Penstock" in answer.error
        assert "Upgrade" in answer.hint
    assert upstream(shop.server, shop.name) == set()


def test_home_that_is_a_file(home: Path, shop: Database) -> None:
    home.write_text("mine")
    assert "cannot be used" in penstock("run", shop.url, "--home", home).assert_error(DEFINITE).error
    assert penstock("status", "--home", home).assert_error(USAGE).error == f"there is no home at {home}"
    assert (home.read_text(), upstream(shop.server, shop.name)) == ("mine", set())


def test_catalog_that_is_not_a_database(home: Path, shop: Database) -> None:
    home.mkdir()
    catalog_path(home).write_text("not a database " * 1000)
    for command in (["run", shop.url], ["status"]):
        assert "is not a Penstock catalog" in penstock(*command, "--home", home).assert_error(DEFINITE).error
    assert upstream(shop.server, shop.name) == set()


@pytest.mark.parametrize("kilobytes", [0, 8, 32, 40, 100])
def test_full_disk(home: Path, shop: Database, kilobytes: int) -> None:
    """A limit on the file size makes different steps fail; then the limit is lifted."""
    answer = penstock("run", shop.url, "--home", home, "--name", "shop", file_bytes=kilobytes << 10)
    if answer.code != STARTED_SPARK:
        answer.assert_error(DEFINITE)
        assert str(home) in answer.error
        assert upstream(shop.server, shop.name) == set()
    opened = open_home(home)
    opened.recover()
    if answer.code != STARTED_SPARK:
        assert no_leftovers(home, shop)
        opened.create(shop.url, "shop")
    opened.drop("shop")


@pytest.mark.parametrize("command", [["status"], ["sql", "SELECT 1"], ["drop", "shop"]])
def test_no_home(home: Path, command: list[str]) -> None:
    answer = penstock(*command, "--home", home).assert_error(USAGE)
    assert answer.error == f"there is no home at {home}"
    assert "--home" in answer.hint
    assert not home.exists()


def test_home_from_the_environment(home: Path) -> None:
    assert str(home) in penstock("status", env={"PENSTOCK_HOME": str(home)}).assert_error(USAGE).error


# -- commands -------------------------------------------------------------------------------------------------------


def test_run_without_sources(home: Path) -> None:
    answer = penstock("run", "--home", home).assert_error(USAGE)
    assert answer.error == "this home has no sources"
    assert "postgresql://" in answer.hint


def test_target_that_is_not_a_database(home: Path) -> None:
    answer = penstock("run", "shop.sql", "--home", home).assert_error(USAGE)
    assert "shop.sql" in answer.error


def test_drop_of_an_unknown_source(home: Path) -> None:
    open_home(home)
    answer = penstock("drop", "shop", "--home", home).assert_error(DEFINITE)
    assert (answer.error, answer.hint) == ("source shop does not exist", "Sources of this home: none.")


def test_drop_while_postgres_is_down(home: Path) -> None:
    with start_postgres(fsync=False) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        open_home(home).create(server.url, "shop")
        server.stop()
        answer = penstock("drop", "shop", "--home", home).assert_error(TRANSIENT)
        assert "shop is not dropped yet" in answer.error
        assert "penstock drop shop --force" in answer.hint
        assert "dropping" in penstock("status", "--home", home).out
        again = penstock("run", "--home", home).assert_error(TRANSIENT)
        assert "penstock drop shop --force" in again.hint
        forced = penstock("drop", "shop", "--force", "--home", home)
        assert (forced.code, forced.err) == (DONE, "")
        statements = [line for line in forced.out.splitlines() if line.endswith(";")]
        server.start()
        assert upstream(server) == {"slot penstock_shop", "publication penstock_shop"}
        for statement in statements:
            assert statement in answer.hint
            server.execute(statement)
        assert upstream(server) == set()
    assert open_home(home).sources() == []
    assert not log_path(home, "shop").exists()


def test_pending_drop_does_not_block_other_sources(home: Path, shop: Database) -> None:
    opened = open_home(home)
    opened.create(shop.url, "shop")
    with start_postgres(fsync=False) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        opened.create(server.url, "away")
        opened.create(server.url, "lost")
        server.stop()
        penstock("drop", "away", "--home", home).assert_error(TRANSIENT)
        assert penstock("drop", "lost", "--home", home, "--force").code == DONE
        answer = penstock("run", "--home", home)
        assert answer.code == STARTED_SPARK
        assert "away is not dropped yet" in answer.err
        assert "the upstream objects of dropped source lost could not be removed" in answer.err
        shown = penstock("status", "--home", home).out
        assert "left upstream by lost" in shown
        assert "SELECT pg_drop_replication_slot('penstock_lost');" in shown
        server.start()
        assert penstock("drop", "shop", "--home", home).code == DONE  # also removes the leftovers
        assert upstream(server) == set()
    assert no_leftovers(home, shop)
    assert "lost" not in penstock("status", "--home", home).out


@pytest.mark.parametrize(
    "arguments", [["run", "--bogus"], ["bogus"], ["drop"], ["demo", "--seconds", "x"], ["sql", "--format", "xml", "x"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    answer = penstock(*arguments)
    assert answer.code == USAGE
    assert "Usage: penstock" in answer.err
    assert "--help" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sql", " ; "], "contains no statement"),
        (["sql", "SELECT 1", "-f", "query.sql"], "cannot be combined with --file"),
        (["sql", "-f", "no such file.sql"], "no such file.sql"),
        (["sql", "SELECT 1", "--as-of", "noon"], "'noon' is neither an LSN nor a time"),
        (["sql", "SELECT 1", "--as-of", "2026-11-15 12:00"], "has no time zone"),
    ],
)
def test_invalid_queries(home: Path, arguments: list[str], message: str) -> None:
    open_home(home)
    assert message in penstock(*arguments, "--home", home).assert_error(USAGE).error


@pytest.mark.parametrize("command", ["demo", "run", "check", "sql", "status", "drop"])
def test_help_has_an_example(command: str) -> None:
    answer = penstock(command, "--help")
    assert (answer.code, answer.err) == (DONE, "")
    assert f"Example: penstock {command}" in answer.out


def test_help_names_the_exit_codes() -> None:
    assert "2 invalid usage, 3 permanent error" in " ".join(penstock("--help").out.split())


def test_installed_program(home: Path) -> None:
    shown = in_a_shell("--version")
    assert (shown.code, shown.err) == (DONE, "")
    assert shown.out.startswith("penstock 0.")
    in_a_shell("status", "--home", home).assert_error(USAGE)


def test_debug_shows_a_traceback(home: Path) -> None:
    answer = penstock("status", "--home", home, "--debug")
    assert answer.code == USAGE
    assert "Traceback" in answer.err
    assert "open_existing" in answer.err
    assert answer.error == f"there is no home at {home}"
