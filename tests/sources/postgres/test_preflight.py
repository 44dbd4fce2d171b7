"""Preflight on a real server: every condition that prevents capture, and the hint that fixes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import DefiniteError
from penstock.sources.findings import Level, errors_among
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.preflight import Finding, Preflight, run_preflight
from penstock.sources.postgres.preflight.server import check_version
from penstock.sources.postgres.replication.slot import export_snapshot
from penstock.sources.postgres.spec import PostgresSource, source_name
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import until


def preflight_of(url: str, name: str = "penstock_test") -> Preflight:
    with connect(url) as connection:
        return run_preflight(connection, name, name)


def rejection(url: str, table: str = "t") -> Finding:
    found = {name.name: finding for name, finding in preflight_of(url).refused().items()}
    return found[table]


def is_clean_upstream(database: Any) -> bool:
    slots = "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
    return not database.execute(f"{slots} UNION ALL SELECT 1 FROM pg_publication")


@pytest.fixture
def role(database: Any) -> Iterator[str]:
    """The URL of the database for a role that can only log in."""
    name = f"{database.name}_role"
    database.execute(f"CREATE ROLE {name} LOGIN; GRANT ALL ON SCHEMA public TO {name}")
    yield database.server.url_for(database.name, name)
    database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_database_that_can_be_captured(database: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TEMP TABLE passing (id int PRIMARY KEY)")
    found = preflight_of(database.url)
    assert (errors_among(found.server), found.refused()) == ([], {})
    assert [str(table.name) for table in found.capturable()] == ["public.t"]
    found.require()
    assert is_clean_upstream(database)


def test_database_without_tables(database: Any) -> None:
    with pytest.raises(DefiniteError, match="no table to capture"):
        preflight_of(database.url).require()


TABLES = [
    ("CREATE TABLE t (id int)", "no primary key", 'ALTER TABLE "public"."t" ADD PRIMARY KEY'),
    ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", "unlogged", 'ALTER TABLE "public"."t" SET LOGGED'),
    (
        "CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING",
        "replica identity",
        "REPLICA IDENTITY DEFAULT",
    ),
    ('CREATE TABLE t (id int PRIMARY KEY, "ID" int)', "differ only in case", "Rename"),
    ('CREATE TABLE t (id int PRIMARY KEY, "_Penstock_x" int)', 'column name "_penstock_x" is reserved', "Rename"),
    ("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)", "deferrable", "NOT DEFERRABLE"),
    (
        "CREATE TABLE t (); ALTER TABLE t REPLICA IDENTITY FULL",
        "no columns that can be captured",
        'ALTER TABLE "public"."t" ADD COLUMN',
    ),
    (
        "CREATE TABLE t (id int, k int GENERATED ALWAYS AS (id) STORED PRIMARY KEY)",
        "generated column k",
        "ADD PRIMARY KEY",
    ),
    (
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED);"
        " ALTER TABLE t REPLICA IDENTITY FULL",
        "generated column g",
        "REPLICA IDENTITY DEFAULT",
    ),
    (
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) VIRTUAL);"
        " ALTER TABLE t REPLICA IDENTITY FULL",
        "generated column g",
        "REPLICA IDENTITY DEFAULT",
    ),
]


@pytest.mark.parametrize(("ddl", "why", "hint"), TABLES)
def test_table_that_cannot_be_captured_does_not_affect_others(database: Any, ddl: str, why: str, hint: str) -> None:
    if "VIRTUAL" in ddl:
        database.needs(18, "virtual columns")
    if "FULL" in ddl and "GENERATED" in ddl and database.version() < 18:
        pytest.skip("before Postgres 18, writes succeed with a FULL identity and a generated column")
    database.execute(ddl)
    with pytest.raises(DefiniteError, match=why):  # there is no other table to capture
        PostgresSource.from_url(database.url, "x").create_instances(1)
    database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    finding = rejection(database.url)
    assert finding.object == "public.t"
    assert hint in finding.hint
    (instance,) = PostgresSource.from_url(database.url, "x").create_instances(1)
    assert [table.name.name for table in instance.tables] == ["other"]
    assert instance.refused == {"public.t": (finding.why, finding.hint)}
    assert is_clean_upstream(database)


def test_columns_of_other_types_are_captured_as_text(database: Any) -> None:
    """They are listed in one finding for each table."""
    database.execute(
        'CREATE EXTENSION isn; CREATE EXTENSION ltree; CREATE TYPE c AS (a int, "A" int);'
        "CREATE TABLE t (id isbn PRIMARY KEY, p c, path ltree, several isbn[], money money);"
        "CREATE TABLE plain (id int PRIMARY KEY, path ltree)"
    )
    found = preflight_of(database.url)
    assert found.refused() == {}
    (finding,) = [finding for finding in found.findings() if "decode" in finding.why]
    assert (finding.object, finding.level) == ("public.t", Level.INFO)
    assert finding.why.endswith("columns id (isbn), p (c), several (isbn[])")
    (instance,) = PostgresSource.from_url(database.url, "x").create_instances(1)
    (table,) = [table for table in instance.tables if table.name.name == "t"]
    assert {column.name for column in table.columns if column.as_text} == {"id", "p", "several"}
    assert {str(field.type) for field in table.table_schema().columns} == {"string"}


KEYLESS = "CREATE TABLE t (id int NOT NULL, v text, g int GENERATED ALWAYS AS (id) {})"
CONFLICTS = {
    "keyless, stored": (KEYLESS.format("STORED"), "g is not published", "publish_generated_columns = stored"),
    "keyless, virtual": (KEYLESS.format("VIRTUAL"), "g is not published", "ADD PRIMARY KEY"),
    "deferrable": (
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v text, g int GENERATED ALWAYS AS (id) STORED)",
        "REPLICA IDENTITY FULL is no alternative",
        "NOT DEFERRABLE",
    ),
}


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "NOTHING"])
@pytest.mark.parametrize("conflict", CONFLICTS)
def test_hint_of_a_finding_is_not_rejected_by_the_next_check(database: Any, conflict: str, identity: str) -> None:
    """On Postgres 18, an unpublished generated column conflicts with FULL, which a table without a key needs."""
    database.needs(18, "check of generated columns in replica identities")
    ddl, why, hint = CONFLICTS[conflict]
    database.execute(f"{ddl}; ALTER TABLE t REPLICA IDENTITY {identity}; CREATE TABLE other (id int PRIMARY KEY)")
    findings = [finding for finding in preflight_of(database.url).findings() if finding.object == "public.t"]
    (finding,) = errors_among(findings)
    assert why in finding.why
    assert hint in finding.hint
    assert "REPLICA IDENTITY DEFAULT" not in finding.hint
    assert finding.sql == ()
    database.execute("CREATE PUBLICATION p FOR TABLE t; INSERT INTO t (id) VALUES (1)")
    for tried in (identity, "FULL", "DEFAULT"):  # the finding is right: updates fail
        database.execute(f"ALTER TABLE t REPLICA IDENTITY {tried}")
        with pytest.raises(psycopg.Error, match="cannot update table"):
            database.execute("UPDATE t SET v = 'x'")
    database.execute("DROP PUBLICATION p")
    if hint.startswith("publish"):  # the hint is right: updates succeed
        database.execute(f"CREATE PUBLICATION p FOR TABLE t WITH ({hint}); ALTER TABLE t REPLICA IDENTITY FULL")
        database.execute("UPDATE t SET v = 'x'")
        user_source = PostgresSource.from_url(database.url, "x", publication="p", publication_ownership="user")
        assert errors_among(user_source.preflight().findings()) == []
        database.execute("DROP PUBLICATION p; ALTER TABLE t REPLICA IDENTITY DEFAULT")
    database.execute("ALTER TABLE t DROP CONSTRAINT IF EXISTS t_pkey; ALTER TABLE t ADD PRIMARY KEY (id)")
    if identity == "DEFAULT":
        assert errors_among(preflight_of(database.url).findings()) == []


def test_generated_column_does_not_conflict_with_full_identity_before_18(database: Any) -> None:
    if database.version() > 17:
        pytest.skip("generated columns conflict with FULL since Postgres 18")
    database.execute(f"{KEYLESS.format('STORED')}; INSERT INTO t (id) VALUES (1)")
    (finding,) = errors_among(preflight_of(database.url).findings())
    database.execute(finding.sql[0])
    assert errors_among(preflight_of(database.url).findings()) == []
    database.execute("CREATE PUBLICATION p FOR TABLE t; UPDATE t SET v = 'x'; DELETE FROM t")


def test_excluded_column_of_a_keyless_table(database: Any) -> None:
    database.needs(15, "column lists")
    database.execute("CREATE TABLE t (id int NOT NULL, v text); CREATE TABLE other (id int PRIMARY KEY)")
    for identity in ("DEFAULT", "FULL"):
        database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
        found = PostgresSource.from_url(database.url, "x", exclude_columns=("public.t.v",)).preflight()
        (finding,) = errors_among(found.findings())
        assert "no primary key, and the column v is not published" in finding.why
        assert "do not exclude columns" in finding.hint


def test_schema_with_a_dot_in_its_name(database: Any) -> None:
    database.execute('CREATE SCHEMA "a.b"; CREATE TABLE "a.b".t (id int PRIMARY KEY)')
    (table,) = preflight_of(database.url).capturable()
    assert str(table.name) == '"a.b".t'


def test_included_columns_are_not_part_of_the_key(database: Any) -> None:
    database.execute("CREATE TABLE t (id int, v int, PRIMARY KEY (id) INCLUDE (v))")
    (table,) = preflight_of(database.url).capturable()
    assert table.key == ("id",)


@pytest.mark.parametrize("ddl", [case[0] for case in TABLES if "GENERATED" in case[0] or "DEFERRABLE" in case[0]])
def test_rejected_tables_would_block_writes_when_published(database: Any, ddl: str) -> None:
    if "GENERATED" in ddl:
        database.needs(18, "check of generated columns in replica identities")
    database.execute(f"{ddl}; INSERT INTO t (id) VALUES (1); CREATE PUBLICATION p FOR TABLE t")
    with pytest.raises(psycopg.Error, match="cannot update table"):
        database.execute("UPDATE t SET id = 2")


@pytest.mark.parametrize(
    "key",
    [
        "PRIMARY KEY",
        "PRIMARY KEY, g int GENERATED ALWAYS AS (1) STORED",
        "PRIMARY KEY, v int); ALTER TABLE t REPLICA IDENTITY FULL; CREATE TABLE u (id int PRIMARY KEY",
        "PRIMARY KEY DEFERRABLE); ALTER TABLE t REPLICA IDENTITY FULL; CREATE TABLE u (id int PRIMARY KEY",
    ],
)
def test_publishing_never_blocks_writes_upstream(database: Any, key: str) -> None:
    """Rows of tables that preflight accepts can still be updated and deleted upstream when they are published."""
    database.execute(f"CREATE TABLE t (id int {key}); INSERT INTO t (id) VALUES (1)")
    config = PostgresSource.from_url(database.url, database.name).create_instances(1)[0].prepare()
    database.execute("UPDATE t SET id = 2; DELETE FROM t; TRUNCATE t")
    config.cleanup()


def test_role_without_privileges(database: Any, role: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    found = preflight_of(role)
    name = f'"{database.name}_role"'
    assert [finding.object for finding in errors_among(found.server)] == ["role", "role"]
    replication, create = errors_among(found.server)
    assert f"ALTER ROLE {name} REPLICATION" in replication.hint
    assert f'GRANT CREATE ON DATABASE "{database.name}" TO {name}' in create.hint
    assert "no SELECT privilege" in rejection(role).why
    with pytest.raises(DefiniteError, match="REPLICATION") as caught:
        PostgresSource.from_url(role, "x").create_instances(1)
    assert "GRANT CREATE" in caught.value.hint
    assert is_clean_upstream(database)


def test_hints_are_sufficient(database: Any, role: str) -> None:
    """Execute the hints of preflight one by one as an administrator: then capture can start."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    name = f'"{database.name}_role"'
    for finding in errors_among(preflight_of(role).server):
        database.execute(" ".join(finding.sql))
    assert errors_among(preflight_of(role).server) == []
    database.execute(f"GRANT SELECT ON t TO {name}")
    assert "only the owner" in rejection(role).why
    database.execute(f"ALTER TABLE t OWNER TO {name}")
    config = PostgresSource.from_url(role, database.name).create_instances(1)[0].prepare()
    assert sorted(config.cleanup()) == [f"publication penstock_{database.name}", f"slot penstock_{database.name}"]
    assert config.cleanup() == []
    assert is_clean_upstream(database)


def test_row_security(database: Any, role: str) -> None:
    name = f'"{database.name}_role"'
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO {name}")
    database.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    assert preflight_of(role).refused() == {}  # the owner sees all rows
    database.execute("ALTER TABLE t FORCE ROW LEVEL SECURITY")
    finding = rejection(role)
    assert "row-level security" in finding.why
    assert "BYPASSRLS" in finding.hint
    assert preflight_of(database.url).refused() == {}
    database.execute(f"ALTER ROLE {name} BYPASSRLS")
    assert preflight_of(role).refused() == {}


def test_existing_slot_and_publication_names_are_rejected(database: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    name = database.name
    database.execute(f"SELECT pg_create_logical_replication_slot('penstock_{name}', 'pgoutput')")
    database.execute(f"CREATE PUBLICATION penstock_{name} FOR TABLE t")
    with pytest.raises(DefiniteError, match=f'slot "penstock_{name}" already exists') as caught:
        PostgresSource.from_url(database.url, name).create_instances(1)
    assert f'publication "penstock_{name}" already exists' in caught.value.message
    for statement in (f"pg_drop_replication_slot('penstock_{name}')", f'DROP PUBLICATION "penstock_{name}";', "--name"):
        assert statement in caught.value.hint
    assert len(database.execute("SELECT 1 FROM pg_publication")) == 1


@pytest.fixture(scope="module")
def small_server() -> Iterator[EmbeddedPostgres]:
    """A server with the default ``wal_level`` and a single slot."""
    settings = {"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1"}
    with start_postgres(fsync=False, settings=settings) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        yield server


def test_server_without_logical_replication_settings(small_server: EmbeddedPostgres) -> None:
    found = {finding.object: finding for finding in errors_among(preflight_of(small_server.url).server)}
    assert set(found) == {"wal_level", "max_replication_slots", "max_wal_senders"}
    assert 'set to "replica"' in found["wal_level"].why
    assert "ALTER SYSTEM SET wal_level = 'logical'" in found["wal_level"].hint
    assert "1 of max_replication_slots free" in found["max_replication_slots"].why
    assert "max_wal_senders" in found["max_wal_senders"].hint
    with pytest.raises(DefiniteError, match="wal_level"):
        PostgresSource.from_url(small_server.url, "x").create_instances(1)
    assert small_server.execute("SELECT 1 FROM pg_publication") == []


def test_failed_prepare_drops_its_publication(small_server: EmbeddedPostgres) -> None:
    """Creating the slot fails after the publication was created."""
    small_server.restart(wal_level="logical")
    small_server.execute("SELECT pg_create_physical_replication_slot('other')")
    source = PostgresSource.from_url(small_server.url, "x")
    with connect(small_server.url) as connection:
        tables = run_preflight(connection, "x", "x").capturable()
    config = PostgresInstanceConfig(
        source="x",
        connection=source.connection,
        publication=source.publication,
        slot=source.slot,
        tables=tuple(table.captured() for table in tables),
    )
    with pytest.raises(DefiniteError, match="replication slots are in use"):
        config.prepare()
    assert small_server.execute("SELECT 1 FROM pg_publication") == []


def test_exported_snapshot_leaves_no_slot(database: Any) -> None:
    with export_snapshot(database.url) as snapshot:
        assert snapshot.lsn > 0
        assert len(database.execute("SELECT 1 FROM pg_replication_slots WHERE temporary")) >= 1
    until(lambda: is_clean_upstream(database), "the server to end the session")


@pytest.mark.parametrize(
    ("database_name", "name"),
    [("shop", "shop"), ("My-Shop.2", "my_shop_2"), ("2fast", "db_2fast"), ("é", "db_"), ("x" * 63, "x" * 40)],
)
def test_source_is_named_after_its_database(database_name: str, name: str) -> None:
    url = f"postgresql://me@h/{quote(database_name)}"
    assert source_name(url) == name
    assert PostgresSource.from_url(url).name == name


def test_long_name_that_begins_with_a_digit() -> None:
    assert PostgresSource.from_url("postgresql://me@h/" + "9" * 60).name == "db_" + "9" * 38


# -- roles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cloud", ["rds_replication", "rds_superuser", "cloudsqlsuperuser", "cloudsqlreplica", "azure_pg_admin"]
)
def test_replication_roles_of_cloud_providers(database: Any, role: str, cloud: str) -> None:
    """The role implies the privilege on that cloud; on this server, trying shows that it does not."""
    name = f"{database.name}_role"
    database.execute(
        f"CREATE ROLE {cloud}; GRANT {cloud} TO {name}; GRANT CREATE ON DATABASE {database.name} TO {name}"
    )
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO {name}")
    try:
        assert errors_among(preflight_of(role).server) == []
        with pytest.raises(DefiniteError, match="refused replication"):
            PostgresSource.from_url(role, "x").create_instances(1)
    finally:
        database.execute(f"DROP ROLE {cloud}")


def test_hint_on_rds_grants_its_replication_role(database: Any, role: str) -> None:
    database.execute("CREATE ROLE rds_replication")
    try:
        (finding, _) = errors_among(preflight_of(role).server)
        assert finding.sql == (f'GRANT rds_replication TO "{database.name}_role";',)
    finally:
        database.execute("DROP ROLE rds_replication")


def test_schema_without_usage_privilege(database: Any, role: str) -> None:
    database.execute("CREATE SCHEMA closed; CREATE TABLE closed.t (id int PRIMARY KEY)")
    found = [f for f in preflight_of(role).findings() if f.object == "closed.t"]
    assert [f.sql for f in found] == [
        (f'GRANT USAGE ON SCHEMA "closed" TO "{database.name}_role";',),
        (f'GRANT SELECT ON "closed"."t" TO "{database.name}_role";',),
        (f'GRANT "postgres" TO "{database.name}_role";',),
    ]


def test_dangerous_settings_are_reported(database: Any) -> None:
    settings = {
        "max_slot_wal_keep_size": "64MB",
        "wal_sender_timeout": "1s",
        "idle_replication_slot_timeout": "1h",
    }
    if database.version() < 18:
        del settings["idle_replication_slot_timeout"]
    with start_postgres(fsync=False, settings=settings) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        found = {f.object: f for f in preflight_of(server.url).server}
        assert {name: f.level.value for name, f in found.items()} == dict.fromkeys(settings, "warning")
        for finding in found.values():
            for statement in finding.sql:
                server.execute(statement)
        assert [f.object for f in preflight_of(server.url).server] == []  # the hints are sufficient
        server.execute("ALTER SYSTEM RESET ALL")
        server.restart(**dict.fromkeys(settings, "0") | {"max_slot_wal_keep_size": "-1"})
        found = {f.object: f for f in preflight_of(server.url).server}
        assert {name: f.level.value for name, f in found.items()} == {
            "max_slot_wal_keep_size": "info",
            "wal_sender_timeout": "warning",
        }


def test_unsupported_server_version() -> None:
    (finding,) = check_version(130012)
    assert (finding.level.value, finding.why) == ("error", "Postgres 13 is not supported")
    assert check_version(140000) == []
