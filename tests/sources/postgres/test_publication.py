"""The contract of publications, and that snapshots read exactly the published rows, against a real server."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.sources.postgres.capturing import Capture

from penstock.errors import DefiniteError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.findings import Finding, Level, errors_among
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.options import Ownership, Rules
from penstock.sources.postgres.replication.publication import (
    Publication,
    alter_publication,
    check_publication,
    create_publication,
    read_publication,
)
from penstock.sources.postgres.replication.slot import export_snapshot
from penstock.sources.postgres.snapshot.copy import copy_range, page_ranges
from penstock.sources.postgres.spec import PostgresSource

A, B, C = (TableName("public", name) for name in "abc")
TABLES = "CREATE TABLE a (id int PRIMARY KEY, v text, w int); CREATE TABLE b (id int PRIMARY KEY); "
PARTITIONED = """
CREATE TABLE c (id int, day int, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE c1 PARTITION OF c FOR VALUES FROM (0) TO (10);
CREATE TABLE c2 PARTITION OF c FOR VALUES FROM (10) TO (20) PARTITION BY LIST (day);
CREATE TABLE c21 PARTITION OF c2 DEFAULT;
"""


def read(database: Any, name: str = "p") -> Publication:
    with connect(database.url) as connection:
        found = read_publication(connection, name)
    assert found is not None
    return found


def checked(database: Any, rules: Rules, *tables: TableName, ownership: Ownership = Ownership.USER) -> list[Finding]:
    return check_publication(read(database), tables, rules, ownership)


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level.value for finding in findings]


def source(database: Any, **options: Any) -> PostgresSource:
    return PostgresSource.from_url(database.url, database.name, **options)


def user_source(database: Any, **options: Any) -> PostgresSource:
    return source(database, publication="p", publication_ownership="user", **options)


def captured(source: PostgresSource) -> dict[str, CapturedTable]:
    found = source.preflight()
    found.require()
    return {table.name.name: table.captured() for table in found.capturable()}


def copied(database: Any, table: CapturedTable, pieces: int = 3) -> list[dict[str, Any]]:
    """The rows that the initial snapshot reads."""
    with connect(database.url) as connection, export_snapshot(database.url) as snapshot:
        ranges = page_ranges(connection, table.name, pieces)
        batches = [b for pages in ranges for b in copy_range(database.url, snapshot.name, table, pages, snapshot.lsn)]
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["id"])


# -- reading ---------------------------------------------------------------------------------------------------------


def test_missing_publication(database: Any) -> None:
    with connect(database.url) as connection:
        assert read_publication(connection, "p") is None


def test_publication_is_read(database: Any) -> None:
    database.needs(18, "generated columns in publications")
    database.execute(TABLES + PARTITIONED)
    database.execute("CREATE PUBLICATION p FOR TABLE a (id, v) WHERE (id > 1), c WITH (publish = 'insert, delete')")
    found = read(database)
    assert (found.owner, found.owned, found.all_tables, found.schemas) == ("postgres", True, False, ())
    assert (found.operations, found.via_root, found.generated) == (frozenset({"insert", "delete"}), False, False)
    assert [str(table.name) for table in found.tables] == ["public.a", "public.c1", "public.c21"]
    first = found.tables[0]
    assert (first.columns, first.row_filter, first.column_list) == (("id", "v"), "(id > 1)", True)
    database.execute("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLES IN SCHEMA public"
                     " WITH (publish_via_partition_root, publish_generated_columns = stored)")  # fmt: skip
    found = read(database)
    assert (found.schemas, found.via_root, found.generated) == (("public",), True, True)
    assert [str(table.name) for table in found.tables] == ["public.a", "public.b", "public.c"]


# -- the rules -------------------------------------------------------------------------------------------------------


def test_publication_that_satisfies_the_strict_rules(database: Any) -> None:
    database.execute(TABLES + "CREATE PUBLICATION p FOR TABLE a, b")
    assert checked(database, Rules.STRICT, A, B) == []


@pytest.mark.parametrize(
    ("publication", "why"),
    [
        ("FOR ALL TABLES", "FOR ALL TABLES"),
        ("FOR TABLES IN SCHEMA public", "FOR TABLES IN SCHEMA"),
        ("FOR TABLE a", "not in publication"),
        ("FOR TABLE a, b, c", "publishes public.c, which is not a captured table"),
        ("FOR TABLE a WHERE (id > 1), b", "a row filter on public.a"),
        ("FOR TABLE a (id), b", "a column list on public.a"),
    ],
)
def test_publication_that_violates_the_strict_rules(database: Any, publication: str, why: str) -> None:
    if "SCHEMA" in publication or "(id" in publication:
        database.needs(15, "publications of schemas, rows and columns")
    database.execute(TABLES + PARTITIONED)
    database.execute(f"CREATE PUBLICATION p {publication}")
    found = checked(database, Rules.STRICT, A, B)
    assert any(why in finding.why for finding in found), found
    found = errors_among(found)
    for finding in found:  # execute the SQL of the findings that have some
        for statement in finding.sql:
            database.execute(statement)
    if all(finding.sql for finding in found):
        assert errors_among(checked(database, Rules.STRICT, A, B)) == []


def test_strict_rules_for_operations_and_partition_roots(database: Any) -> None:
    without = "(publish = 'insert, update, delete', publish_via_partition_root)"
    database.execute(TABLES + f"CREATE PUBLICATION p FOR TABLE a, b WITH {without}")
    found = errors_among(checked(database, Rules.STRICT, A, B))
    assert ["truncate" in found[0].why, "publish_via_partition_root" in found[1].why] == [True, True]
    for finding in found:
        database.execute(finding.sql[0])
    assert errors_among(checked(database, Rules.STRICT, A, B)) == []


@pytest.mark.parametrize("publication", ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public", "FOR TABLE a, b"])
def test_open_rules(database: Any, publication: str) -> None:
    if "SCHEMA" in publication or "(id" in publication:
        database.needs(15, "publications of schemas, rows and columns")
    database.execute(TABLES + f"CREATE PUBLICATION p {publication}")
    assert checked(database, Rules.OPEN, A, B) == []
    assert levels(checked(database, Rules.OPEN, A)) == ["info"]


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ("insert, delete", "old values"),
        ("insert, update", "would remain downstream"),
        ("update, delete", "would not be captured"),
    ],
)
def test_missing_operations_are_an_error(database: Any, operations: str, why: str) -> None:
    database.execute(TABLES + f"CREATE PUBLICATION p FOR ALL TABLES WITH (publish = '{operations}')")
    found = checked(database, Rules.OPEN, A, B)
    assert levels(found) == ["error", "warning"]
    assert why in found[0].why
    database.execute(found[0].sql[0])
    assert checked(database, Rules.OPEN, A, B) == []


def test_table_that_is_not_published_is_an_error(database: Any) -> None:
    database.execute(TABLES + "CREATE PUBLICATION p FOR TABLE a")
    (finding,) = checked(database, Rules.OPEN, A, B)
    assert (finding.object, finding.level) == ("public.b", Level.ERROR)
    database.execute(finding.sql[0])
    assert checked(database, Rules.OPEN, A, B) == []
    database.execute("ALTER PUBLICATION p DROP TABLE b")
    (finding,) = checked(database, Rules.OPEN, A, B, ownership=Ownership.MANAGED)
    assert "RETRY TABLE public.b" in finding.hint  # the changes in between are lost


# -- managed publications --------------------------------------------------------------------------------------------


def named(tables: list[CapturedTable]) -> list[TableName]:
    return [table.name for table in tables]


def test_tables_are_added_and_removed(database: Any) -> None:
    database.execute(TABLES + PARTITIONED)
    tables = [*captured(source(database)).values()]
    with connect(database.url) as connection:
        create_publication(connection, "p", tables[:1])
        database.execute("ALTER PUBLICATION p SET (publish = 'insert')")
        assert alter_publication(connection, "p", tables, named(tables)) == {}
        assert {t.name for t in read(database).tables} == {t.name for t in tables}
        assert len(read(database).operations) == 4
        rooted = [*captured(source(database, partitions="root")).values()]
        alter_publication(connection, "p", rooted, named(rooted))
        assert ([str(t.name) for t in read(database).tables][-1], read(database).via_root) == ("public.c", True)
        alter_publication(connection, "p", tables[:1], ())
        assert errors_among(checked(database, Rules.STRICT, A)) == []
        assert not read(database).via_root
        with pytest.raises(DefiniteError, match='publication "q" no longer exists'):
            alter_publication(connection, "q", tables, named(tables))


def test_tables_neither_added_nor_removed_stay_unchanged(database: Any) -> None:
    database.execute(TABLES + "CREATE TABLE c (id int PRIMARY KEY)")
    tables = [*captured(source(database)).values()]
    with connect(database.url) as connection:
        create_publication(connection, "p", tables)
        database.execute("ALTER PUBLICATION p DROP TABLE b; ALTER TABLE c RENAME TO d")
        assert alter_publication(connection, "p", tables, [A]) == {}
        assert [str(t.name) for t in read(database).tables] == ["public.a", "public.d"]
        database.execute("DROP TABLE d")
        found = alter_publication(connection, "p", tables, [B, C])
        assert [str(t.name) for t in read(database).tables] == ["public.a", "public.b"]
        assert list(found) == [C]
        assert 'relation "public.c" does not exist' in found[C].why


def test_column_list_is_updated(database: Any) -> None:
    database.needs(15, "row filters and column lists")
    database.execute(TABLES)
    (before,) = captured(source(database, tables=("public.a",), exclude_columns=("public.a.v",))).values()
    (after,) = captured(source(database, tables=("public.a",), exclude_columns=("public.a.w",))).values()
    with connect(database.url) as connection:
        create_publication(connection, "p", [before])
        alter_publication(connection, "p", [before], [A])
        assert read(database).tables[0].columns == ("id", "w")
        alter_publication(connection, "p", [after], [A])
        assert read(database).tables[0].columns == ("id", "v")
        database.execute("ALTER PUBLICATION p SET TABLE a (id, v) WHERE (id > 3)")
        alter_publication(connection, "p", [after], [A])
        assert read(database).tables[0].row_filter is None


@pytest.mark.parametrize("broad", ["ALL TABLES", "TABLES IN SCHEMA public"])
def test_publication_of_all_tables_or_a_schema_is_never_altered(database: Any, broad: str) -> None:
    if "SCHEMA" in broad:
        database.needs(15, "publications of schemas")
    database.execute(TABLES + f"CREATE PUBLICATION p FOR {broad}")
    tables = [*captured(source(database)).values()]
    with connect(database.url) as connection, pytest.raises(DefiniteError, match="did not create it"):
        alter_publication(connection, "p", tables, named(tables))
    assert checked(database, Rules.OPEN, A, B) == []


def test_excluded_column_never_leaves_postgres(database: Any, tmp_path: Any) -> None:
    database.needs(15, "row filters and column lists")
    database.execute(TABLES + "INSERT INTO a VALUES (1, 'secret', 7)")
    chosen = source(database, exclude_columns=("public.a.v",))
    table = captured(chosen)["a"]
    assert (table.column_list, table.ignored, [c.name for c in table.columns]) == (True, (), ["id", "w"])
    assert copied(database, table) == [{"id": 1, "w": 7}]
    config = chosen.create_instances(1)[0].prepare()
    try:
        published = read(database, config.publication).table(A)
        assert published is not None
        assert (published.columns, published.column_list) == (("id", "w"), True)
        database.execute("UPDATE a SET w = 8; UPDATE a SET id = 2; DELETE FROM a")  # writes are not blocked
    finally:
        config.cleanup()


def test_excluded_column_is_discarded_on_arrival_before_15(database: Any) -> None:
    if database.version() > 14:
        pytest.skip("Postgres has column lists since version 15")
    database.execute(TABLES + "INSERT INTO a VALUES (1, 'secret', 7)")
    table = captured(source(database, exclude_columns=("public.a.v",)))["a"]
    assert (table.column_list, table.ignored) == (False, ("v",))
    assert copied(database, table) == [{"id": 1, "w": 7}]


def test_excluded_column_is_discarded_on_arrival_with_strict_rules(database: Any) -> None:
    database.execute(TABLES)
    chosen = source(database, exclude_columns=("public.a.v",), rules="strict")
    table = captured(chosen)["a"]
    assert (table.column_list, table.ignored, [c.name for c in table.columns]) == (False, ("v",), ["id", "w"])
    assert any("that Postgres still sends" in f.why for f in chosen.preflight().findings())


def test_excluded_column_with_full_identity_would_block_writes(database: Any) -> None:
    database.needs(15, "row filters and column lists")
    database.execute(TABLES + "ALTER TABLE a REPLICA IDENTITY FULL; INSERT INTO a VALUES (1, 'x', 1)")
    found = source(database, exclude_columns=("public.a.v",)).preflight()
    assert "replica identity is FULL, but the column v" in found.refused()[A].why
    database.execute("CREATE PUBLICATION p FOR TABLE a (id, w)")
    with pytest.raises(psycopg.Error, match="cannot update table"):
        database.execute("UPDATE a SET w = 2")


# -- user publications: snapshots read what is published ---------------------------------------------------------------


def test_row_filters_and_column_lists_apply_to_the_snapshot(database: Any) -> None:
    database.needs(15, "row filters and column lists")
    database.execute(TABLES + "INSERT INTO a SELECT i, 'v' || i, i FROM generate_series(1, 6) i")
    database.execute("CREATE PUBLICATION p FOR TABLE a (id, v) WHERE (id % 2 = 0 AND id <> 4)")
    table = captured(user_source(database))["a"]
    assert table.row_filter is not None
    assert copied(database, table) == [{"id": 2, "v": "v2"}, {"id": 6, "v": "v6"}]


def test_stream_and_snapshot_see_the_same_rows(database: Any, tmp_path: Any) -> None:
    database.needs(15, "row filters and column lists")
    database.execute(TABLES + "CREATE PUBLICATION p FOR TABLE a (id, v) WHERE (id < 10)")
    capture = Capture(database.url, tmp_path / "log.db", database.name, publication="p", publication_ownership="user")
    capture.start()
    try:
        database.execute("INSERT INTO a VALUES (1, 'x', 1), (20, 'y', 2); UPDATE a SET id = 30 WHERE id = 1")
        database.execute("UPDATE a SET id = 2 WHERE id = 20")
        capture.wait(Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]))
        seen = [(change["_op"], (change["after"] or change["before"])["id"]) for change in capture.changes("a")]
        assert seen == [("insert", 1), ("delete", 1), ("insert", 2)]
        assert copied(database, capture.config.tables[0]) == [{"id": 2, "v": "y"}]
    finally:
        capture.stop()
        capture.config.cleanup()
    assert read(database).name == "p"


@pytest.mark.parametrize("publication", ["FOR ALL TABLES", "FOR TABLE c"])
def test_snapshot_of_a_root_reads_all_its_partitions(database: Any, publication: str) -> None:
    database.execute(PARTITIONED + "INSERT INTO c SELECT i, i % 20, repeat('x', 500) FROM generate_series(1, 5000) i")
    database.execute(f"CREATE PUBLICATION p {publication} WITH (publish_via_partition_root)")
    tables = captured(user_source(database))
    assert list(tables) == ["c"]
    assert tables["c"].partitioned
    with connect(database.url) as connection:
        assert len(page_ranges(connection, C, 3)) > 1
    assert [row["id"] for row in copied(database, tables["c"])] == list(range(1, 5001))


def test_root_without_publish_via_partition_root_is_rejected(database: Any) -> None:
    database.execute(PARTITIONED + "CREATE PUBLICATION p FOR TABLE c")
    for options in ({"tables": ("public.c",)}, {"partitions": "root"}):
        with pytest.raises(DefiniteError) as caught:
            captured(user_source(database, **options))
        assert "publish_via_partition_root = true" in caught.value.hint
    database.execute("ALTER PUBLICATION p SET (publish_via_partition_root = true)")
    for options in ({"tables": ("public.c",)}, {"partitions": "root"}):
        assert list(captured(user_source(database, **options))) == ["c"]


def test_leaf_partitions_are_the_default_and_roots_an_option(database: Any) -> None:
    database.execute(PARTITIONED)
    assert list(captured(source(database))) == ["c1", "c21"]
    chosen = source(database, partitions="root")
    assert list(captured(chosen)) == ["c"]
    config = chosen.create_instances(1)[0].prepare()
    try:
        found = read(database, config.publication)
        assert (found.via_root, [t.name for t in found.tables]) == (True, [C])
        database.execute("INSERT INTO c VALUES (1, 1, 'x'); UPDATE c SET day = 11; DELETE FROM c")
    finally:
        config.cleanup()


def test_stream_of_a_root(database: Any, tmp_path: Any) -> None:
    database.execute(PARTITIONED)
    capture = Capture(database.url, tmp_path / "log.db", database.name, partitions="root")
    capture.start()
    try:
        database.execute("INSERT INTO c VALUES (1, 1, 'x'), (2, 11, 'y'); UPDATE c SET v = 'z' WHERE id = 1")
        database.execute("UPDATE c SET day = 12 WHERE id = 1")  # into another partition
        capture.wait(Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]))
        seen = [(change["_op"], (change["after"] or change["before"])["id"]) for change in capture.changes("c")]
        assert seen == [("insert", 1), ("insert", 2), ("update", 1), ("delete", 1), ("insert", 1)]
        assert [row["v"] for row in copied(database, capture.config.tables[0])] == ["z", "y"]
    finally:
        capture.stop()
        capture.config.cleanup()


def test_stream_without_an_excluded_column(database: Any, tmp_path: Any) -> None:
    database.needs(15, "column lists")
    database.execute(TABLES)
    capture = Capture(database.url, tmp_path / "log.db", database.name, exclude_columns=("public.a.v",))
    capture.start()
    try:
        database.execute("INSERT INTO a VALUES (1, 'secret', 7); UPDATE a SET v = 'other'; DELETE FROM a")
        capture.wait(Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]))
        found = capture.changes("a")
        assert [change["_op"] for change in found] == ["insert", "update", "delete"]
        assert found[0]["after"] == {"id": 1, "w": 7}
    finally:
        capture.stop()
        capture.config.cleanup()


def test_published_generated_columns(database: Any) -> None:
    database.needs(18, "generated columns in publications")
    database.execute("CREATE TABLE a (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED)")
    database.execute("ALTER TABLE a REPLICA IDENTITY FULL; INSERT INTO a VALUES (1)")
    database.execute("CREATE PUBLICATION p FOR TABLE a WITH (publish_generated_columns = stored)")
    assert copied(database, captured(user_source(database))["a"]) == [{"id": 1, "g": 2}]
    database.execute("UPDATE a SET id = 3")
    with pytest.raises(DefiniteError, match="generated column g"):
        captured(source(database))


def test_missing_user_publication_is_rejected(database: Any) -> None:
    database.execute(TABLES)
    with pytest.raises(DefiniteError, match='publication "p" does not exist') as caught:
        user_source(database).create_instances(1)
    database.execute(caught.value.hint.removeprefix("Run: "))
    assert set(captured(user_source(database))) == {"a", "b"}


def test_user_owned_slot_and_publication_are_kept(database: Any) -> None:
    database.execute(TABLES + "CREATE PUBLICATION p FOR TABLE a")
    database.execute(f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')")
    config = user_source(database, slot=database.name, slot_ownership="user").create_instances(1)[0].prepare()
    assert config.start() > 0
    assert [table.name for table in config.tables] == [A]
    assert config.kept() == [f"slot {database.name}", "publication p"]
    assert (config.cleanup(), config.cleanup_statements()) == ([], [])
    assert len(database.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()")) == 1
