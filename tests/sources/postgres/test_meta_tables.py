"""The meta tables upstream: created and dropped with their source, and never used by another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sources.postgres.capturing import Capture

from penstock.errors import AlreadyExistsError, DefiniteError, NotOwnedError
from penstock.positions import Lsn
from penstock.sources.findings import errors_among
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.preflight import Finding
from penstock.sources.postgres.spec import PostgresSource

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"
BOTH = {"watermarks": "table", "heartbeat": "table"}
META_TABLES = (
    "SELECT nspname, relname FROM pg_namespace n LEFT JOIN pg_class c ON relnamespace = n.oid AND relkind = 'r'"
)


def source(database: Any, name: str = "a", url: str = "", **options: Any) -> PostgresSource:
    return PostgresSource.from_url(url or database.url, f"{database.name}_{name}", **{**BOTH, **options})


def prepared(database: Any, name: str = "a", url: str = "", **options: Any) -> PostgresInstanceConfig:
    return source(database, name, url, **options).create_instances(1)[0].prepare()


def meta_tables(database: Any) -> list[str | None]:
    """The tables of the meta schema: [None] if the schema is empty, [] if it does not exist."""
    found = database.execute(f"{META_TABLES} WHERE nspname = 'dblog_meta' ORDER BY 2")
    return [table for _, table in found]


def errors(found: PostgresSource) -> list[Finding]:
    return [finding for finding in errors_among(found.preflight().server) if finding.object.startswith("dblog_meta")]


def test_meta_tables_are_created_published_and_dropped_with_the_source(database: Any) -> None:
    database.execute(TABLE)
    config = prepared(database)
    assert meta_tables(database) == ["heartbeats", "watermarks"]
    published = "SELECT schemaname || '.' || tablename FROM pg_publication_tables ORDER BY 1"
    every = [("dblog_meta.heartbeats",), ("dblog_meta.watermarks",), ("public.t",)]
    assert database.execute(published) == every
    config.republish([table.name for table in config.tables])
    assert database.execute(published) == every
    assert [str(table.name) for table in config.tables] == ["public.t"]
    statements = config.cleanup_statements()
    assert {"table dblog_meta.watermarks", "schema dblog_meta"} <= set(config.cleanup())
    assert meta_tables(database) == []
    assert [line.split(";")[0] for line in statements if "dblog_meta" in line] == [
        "DROP TABLE IF EXISTS dblog_meta.watermarks",
        "DROP TABLE IF EXISTS dblog_meta.heartbeats",
    ]
    assert config.cleanup() == []


def test_messages_need_no_meta_tables(database: Any) -> None:
    database.execute(TABLE)
    config = prepared(database, watermarks="message", heartbeat="message")
    assert meta_tables(database) == []
    assert not any("dblog_meta" in line for line in config.cleanup_statements())
    config.cleanup()


def test_failed_prepare_drops_meta_tables(database: Any) -> None:
    database.execute(TABLE)
    instance = source(database).create_instances(1)[0]
    database.execute(f'CREATE PUBLICATION "{instance.publication}" FOR TABLE t')
    with pytest.raises(AlreadyExistsError):
        instance.prepare()
    assert meta_tables(database) == []


def test_meta_row_belongs_to_one_source(database: Any) -> None:
    database.execute(TABLE)
    first = prepared(database, heartbeat=None)
    assert [finding.object for finding in errors(source(database, "b"))] == ["dblog_meta.watermarks"]
    second = prepared(database, "b", watermarks="message")
    second.cleanup()
    assert meta_tables(database) == ["watermarks"], "the tables of another source are kept"
    other = source(database, "c", watermarks="message").create_instances(1)[0]
    with pytest.raises(DefiniteError, match="another source uses it"):
        other.model_copy(update={"watermarks": first.watermarks}).prepare()
    first.cleanup()
    assert meta_tables(database) == []


def test_meta_table_created_by_an_administrator_is_released(database: Any) -> None:
    database.execute(TABLE)
    (finding,) = errors(_with_user_publication(database, heartbeat=None))
    for statement in finding.sql:
        database.execute(statement)
    config = prepared(database, heartbeat=None, **USER_PUBLICATION)
    assert database.execute("SELECT token <> '' FROM dblog_meta.watermarks") == [(True,)]
    assert [line for line in config.cleanup() if "dblog_meta" in line] == []
    assert database.execute("SELECT id, token FROM dblog_meta.watermarks") == [(1, "")]
    prepared(database, heartbeat=None, **USER_PUBLICATION).cleanup()


USER_PUBLICATION = {"publication": "yours", "publication_ownership": "user"}


def _with_user_publication(database: Any, **options: Any) -> PostgresSource:
    database.execute("CREATE PUBLICATION yours FOR TABLE t")
    return source(database, **USER_PUBLICATION, **options)


def test_user_publication_must_contain_the_meta_tables(database: Any) -> None:
    database.execute(TABLE)
    user_source = _with_user_publication(database, heartbeat=None, rules="open")
    database.execute("CREATE SCHEMA dblog_meta; CREATE TABLE dblog_meta.watermarks (id int PRIMARY KEY, token text)")
    (finding,) = errors(user_source)
    assert finding.sql == ('ALTER PUBLICATION "yours" ADD TABLE "dblog_meta"."watermarks";',)
    database.execute(finding.sql[0])
    assert errors(user_source) == []
    if database.version() >= 15:
        database.execute("ALTER PUBLICATION yours SET TABLE t, dblog_meta.watermarks WHERE (id = 1)")
        (finding,) = errors(user_source)
        for statement in finding.sql:
            database.execute(statement)
        assert errors(user_source) == []


def test_user_publication_for_all_tables_contains_the_meta_tables(database: Any, tmp_path: Path) -> None:
    database.execute(f"{TABLE}; CREATE PUBLICATION yours FOR ALL TABLES")
    running = Capture(database.url, tmp_path / "log.db", f"{database.name}_a", **BOTH, **USER_PUBLICATION)
    running.start()
    database.execute("INSERT INTO t VALUES (1)")
    running.wait(Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]))
    assert [str(table.name) for table in running.config.tables] == ["public.t"]
    running.stop()
    running.config.cleanup()


@pytest.mark.parametrize(
    "columns",
    [
        "id bigint PRIMARY KEY, token text",
        "id int, token text",
        "id int PRIMARY KEY, token varchar(9)",
        "id int PRIMARY KEY, token text, at timestamptz",
    ],
)
def test_existing_table_with_other_columns_is_an_error(database: Any, columns: str) -> None:
    database.execute(f"{TABLE}; CREATE SCHEMA dblog_meta; CREATE TABLE dblog_meta.heartbeats ({columns})")
    (finding,) = errors(source(database))
    assert (finding.object, "other columns than Penstock requires" in finding.why) == ("dblog_meta.heartbeats", True)


@pytest.fixture
def role(database: Any) -> Iterator[str]:
    """A role that may replicate and publish ``t``."""
    name = f"{database.name}_role"
    database.execute(f"CREATE ROLE {name} LOGIN REPLICATION; {TABLE}; ALTER TABLE t OWNER TO {name}")
    yield name
    database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.parametrize("schema", [False, True])
def test_hints_for_the_role_are_sufficient(database: Any, role: str, schema: bool) -> None:
    if schema:
        database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {role}; CREATE SCHEMA dblog_meta")
    url = database.server.url_for(database.name, role)
    found = errors(source(database, url=url))
    assert [finding.object for finding in found] == ["dblog_meta.watermarks", "dblog_meta.heartbeats"]
    for statement in {statement for finding in found for statement in finding.sql}:
        database.execute(statement)
    database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {role}")
    config = prepared(database, url=url)
    with connect(url) as connection:
        connection.execute("UPDATE dblog_meta.heartbeats SET token = ''")
    config.cleanup()
    assert meta_tables(database) == [None], "the schema existed before"


def test_privileges_on_existing_meta_tables(database: Any, role: str) -> None:
    made = prepared(database)
    made.cleanup()
    (finding, _) = errors(
        source(database, url=database.server.url_for(database.name, role), **_create_user_publication(database))
    )
    for statement in finding.sql[:3]:
        database.execute(statement)
    url = database.server.url_for(database.name, role)
    _, denied = errors(source(database, url=url, heartbeat=None, **USER_PUBLICATION))
    assert "no SELECT and UPDATE privilege" in denied.why
    for statement in denied.sql:
        database.execute(statement)
    (missing,) = errors(source(database, url=url, heartbeat=None, **USER_PUBLICATION))
    assert "not in publication" in missing.why
    (owner,) = errors(source(database, url=url, heartbeat=None))
    assert owner.why == "only the owner of a table can publish it"


def _create_user_publication(database: Any) -> dict[str, str]:
    database.execute("CREATE PUBLICATION yours FOR TABLE t")
    return USER_PUBLICATION


def test_meta_tables_cannot_be_captured(database: Any) -> None:
    database.execute(TABLE)
    config = prepared(database)
    other = source(database, "b", watermarks="message", heartbeat=None)
    assert [str(table.name) for table in other.preflight().capturable()] == ["public.t"]
    named = source(database, "b", watermarks="message", heartbeat=None, tables=("dblog_meta.watermarks",))
    assert "reserved for the watermarks and heartbeats" in named.preflight().blocking()[0].why
    config.cleanup()


def test_dropped_meta_table_is_found_by_preflight(database: Any) -> None:
    database.execute(TABLE)
    config = prepared(database)
    captured = [table.name for table in config.tables]
    assert errors_among(source(database).preflight(captured=captured).findings()) == []
    database.execute("DROP TABLE dblog_meta.watermarks")
    (finding,) = errors_among(source(database).preflight(captured=captured).findings())
    assert (finding.object, finding.why) == ("dblog_meta.watermarks", "the table no longer exists")
    config.cleanup()


def test_settle_drops_meta_tables_although_the_publication_is_not_owned(database: Any) -> None:
    database.execute(TABLE)
    config = prepared(database)
    with pytest.raises(
        NotOwnedError, match="another home reads the slot"
    ):  # a copy of the home, which has the same identity and writes its markers here
        config.settle(Lsn.ZERO)
    assert meta_tables(database) == ["heartbeats", "watermarks"]
    database.execute(f"COMMENT ON PUBLICATION {config.publication} IS 'of another source'")
    removed = config.settle(Lsn.ZERO)
    assert removed == ["table dblog_meta.watermarks", "table dblog_meta.heartbeats", "schema dblog_meta"]
    with pytest.raises(NotOwnedError, match="its comment differs") as caught:
        config.cleanup()
    database.execute(caught.value.hint.partition("in Postgres: ")[2])
    assert sorted(config.cleanup()) == [f"publication {config.publication}", f"slot {config.slot}"]
