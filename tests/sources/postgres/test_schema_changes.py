"""DDL upstream, against a real server: it is applied exactly, or stops its table and no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from tests.sources.postgres.capturing import Capture, check_publication_often

from penstock.changelog.sqlite.log import SqliteLogReader
from penstock.errors import SchemaChangeError
from penstock.model import TableName, base_type_name, enum_labels, is_not_null, missing_value, type_name
from penstock.positions import Lsn
from penstock.testing.waiting import until

Start = Callable[..., Capture]
Now = Callable[[], Lsn]

ACCOUNTS = "CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance numeric(12,2))"
AUDIT = "CREATE TABLE audit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text)"


OWNED = (
    "INSERT INTO accounts SELECT n, (SELECT string_agg(md5(n::text || i::text), '') FROM generate_series(1, 300) i), n"
    " FROM generate_series(1, 3) n"
)


def _after(change: Any) -> tuple[Any, ...] | None:
    return None if change["after"] is None else tuple(change["after"].values())


@pytest.mark.parametrize("down", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_dropped_column_is_null_in_later_changes(
    database: Any, capture: Start, now: Now, down: bool, identity: str
) -> None:
    """Also in updates that omit a TOAST value, and when capture begins again after the drop."""
    database.execute(f"{ACCOUNTS}; ALTER TABLE accounts REPLICA IDENTITY {identity}")
    running = capture()
    database.execute(OWNED)
    if down:
        running.wait(now())
        running.stop()
    database.execute("UPDATE accounts SET balance = 10 WHERE id = 1")
    database.execute("ALTER TABLE accounts DROP COLUMN balance")
    database.execute("INSERT INTO accounts VALUES (4, 'd'); UPDATE accounts SET id = 30 WHERE id = 3")
    database.execute("DELETE FROM accounts WHERE id = 2; ALTER TABLE accounts ADD COLUMN note text DEFAULT 'n'")
    if down:
        running.start()
    else:
        running.wait(now())
    database.execute("INSERT INTO accounts VALUES (5, 'e', 'f')")
    running.wait(now())
    found = [_after(change) for change in running.changes("accounts")]
    assert running.error("accounts") is None
    short = [None if row is None else (row[0], len(row[1] or "") < 10, *row[2:]) for row in found]
    assert [None if row is None else row[0] for row in short] == [1, 2, 3, 1, 4, 30, None, 5]
    balances = [None if row is None else row[2] and float(row[2]) for row in short]
    assert balances == [1.0, 2.0, 3.0, 10.0, None, None, None, None]
    assert short[-1] == (5, True, None, "f")
    running.stop()
    running.start()
    database.execute("INSERT INTO accounts VALUES (6, 'g', 'h')")
    running.wait(now())
    assert _after(running.changes("accounts")[-1]) == (6, "g", None, "h")


@pytest.mark.parametrize("down", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize(
    ("setup", "ddl", "row", "expected"),
    [
        ("", "DROP COLUMN balance, ADD COLUMN balance numeric(12,2)", "2, 'a', 7", "added again: balance"),
        ("", "DROP COLUMN balance", "2, 'a'", ""),
        (
            "ALTER TABLE accounts DROP CONSTRAINT accounts_pkey, REPLICA IDENTITY FULL",
            "DROP COLUMN owner",
            "2, 7",
            "owner",
        ),
        ("", "DROP COLUMN id", "'a', 7", "id"),
    ],
    ids=["added again", "dropped", "keyless", "key"],
)
def test_dropped_column_that_matters_stops_the_table(
    database: Any, capture: Start, now: Now, setup: str, ddl: str, row: str, expected: str, down: bool
) -> None:
    database.execute(f"{ACCOUNTS}; {AUDIT}; {setup}")
    running = capture()
    database.execute("INSERT INTO accounts VALUES (1, 'a', 1)")
    running.wait(now())
    if down:
        running.stop()
    database.execute(f"ALTER TABLE accounts {ddl}; INSERT INTO accounts VALUES ({row})")
    if down:
        running.start()
    database.execute("INSERT INTO audit (what) VALUES ('one')")
    running.wait(now())
    if expected:
        until(lambda: running.error("accounts") is not None, "the error")
    error = running.error("accounts")
    assert (error is None) == (not expected)
    assert error is None or (isinstance(error, SchemaChangeError) and expected in error.message)
    assert running.error("audit") is None


@pytest.mark.parametrize("down", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("ALTER code TYPE varchar(20)", ""),
        ("ALTER code TYPE varchar, ALTER note TYPE text", ""),
        ("ALTER code TYPE varchar(20), ADD COLUMN more int", "changed in type"),
        ("ALTER code TYPE varchar(9)", "changed in type|altered: code"),
        ("ALTER note TYPE varchar(20)", "changed in type|altered: note"),
        ("ALTER code TYPE varchar(20) USING upper(code)", "rewritten"),
        ("ALTER code TYPE varchar(20) USING note", "rewritten"),
        ("ALTER code TYPE text COLLATE \"C\" USING code || ''", "rewritten"),
    ],
)
def test_longer_varchar_continues_unless_values_are_computed(
    database: Any, capture: Start, now: Now, ddl: str, expected: str, down: bool
) -> None:
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, code varchar(10) DEFAULT 'd', note varchar); {AUDIT}")
    running = capture()
    database.execute("INSERT INTO t VALUES (1, 'a', 'b')")
    running.wait(now())
    if down:
        running.stop()
    database.execute(f"UPDATE t SET note = 'c'; ALTER TABLE t {ddl}; INSERT INTO t VALUES (2, 'short', 'd')")
    if down:
        running.start()
    database.execute("INSERT INTO audit (what) VALUES ('one')")
    running.wait(now())
    if expected:
        until(lambda: running.error("t") is not None, "the error")
        assert re.search(expected, str(running.error("t")))
        assert isinstance(running.error("t"), SchemaChangeError)
        return
    database.execute("UPDATE t SET code = 'a code of more than ten characters'::varchar(15) WHERE id = 2")
    database.execute("ALTER TABLE t ADD COLUMN more int DEFAULT 7; INSERT INTO t VALUES (3, 'e', 'f', 8)")
    running.wait(now())
    assert running.error("t") is None
    found = [_after(change) for change in running.changes("t")]
    assert [row and row[1:3] for row in found][-3:] == [("short", "d"), ("a code of more ", "d"), ("e", "f")]
    assert found[-1] == (3, "e", "f", 8)
    running.stop()
    running.start()
    database.execute("INSERT INTO t VALUES (4, 'g', 'h', 9)")
    running.wait(now())
    assert _after(running.changes("t")[-1]) == (4, "g", "h", 9)


def test_column_that_comes_back_after_its_drop_was_followed_stops_the_table(
    database: Any, capture: Start, now: Now
) -> None:
    database.execute(ACCOUNTS)
    running = capture()
    database.execute("INSERT INTO accounts VALUES (1, 'a', 1); ALTER TABLE accounts DROP COLUMN balance")
    database.execute("INSERT INTO accounts VALUES (2, 'b')")
    running.wait(now())
    assert running.error("accounts") is None
    running.stop()
    running.start()
    database.execute("ALTER TABLE accounts ADD COLUMN balance numeric(12,2) DEFAULT 5")
    until(lambda: running.error("accounts") is not None, "the check of the catalogs")
    assert "dropped upstream and added again: balance" in str(running.error("accounts"))


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        (
            "ALTER TABLE accounts RENAME TO renamed; ALTER TABLE renamed RENAME owner TO owner2",
            "renamed to public.renamed",
        ),
        ("ALTER TABLE accounts DROP COLUMN owner, ADD COLUMN owners int", "dropped or renamed: owner"),
        ("ALTER TABLE accounts ALTER balance TYPE numeric(14,2)", "changed in type: balance"),
        ("ALTER TABLE accounts REPLICA IDENTITY NOTHING", "replica identity"),
        (
            "ALTER TABLE accounts DROP CONSTRAINT accounts_pkey; ALTER TABLE accounts ALTER owner SET NOT NULL;"
            "ALTER TABLE accounts ADD PRIMARY KEY (owner)",
            "primary key",
        ),
        (
            "ALTER TABLE accounts ALTER owner SET NOT NULL; CREATE UNIQUE INDEX by_owner ON accounts (owner);"
            "ALTER TABLE accounts REPLICA IDENTITY USING INDEX by_owner",
            "replica identity",
        ),
    ],
)
def test_ddl_stops_that_table_only(database: Any, capture: Start, now: Now, ddl: str, expected: str) -> None:
    database.execute(f"{ACCOUNTS}; {AUDIT}")
    running = capture()
    database.execute("INSERT INTO accounts (id, owner) VALUES (1, 'a'); INSERT INTO audit (what) VALUES ('one')")
    database.execute(ddl)
    database.execute("INSERT INTO audit (what) VALUES ('two')")
    table = "renamed" if "renamed" in ddl else "accounts"
    names = {"renamed": "owner2", "owners": "owners"}
    holder = next((name for fragment, name in names.items() if fragment in ddl), "owner")
    database.execute(f"INSERT INTO {table} (id, {holder}) VALUES (2, '7')")
    database.execute("INSERT INTO audit (what) VALUES ('three')")
    running.wait(now())
    error = running.error("accounts")
    assert error is not None
    assert expected in error.message
    assert error.hint
    assert [c["after"]["id"] for c in running.changes("accounts")] == [1]
    assert [c["after"]["what"] for c in running.changes("audit")] == ["one", "two", "three"]
    assert running.error("audit") is None
    running.stop()
    running.start()
    database.execute("INSERT INTO audit (what) VALUES ('four')")
    running.wait(now())
    assert len(running.changes("audit")) == 4
    again = running.error("accounts")
    assert again is not None
    assert again.args == error.args


def widened(running: Capture, table: str = "accounts") -> list[dict[str, Any]]:
    """The rows of all inserts, with the current columns of the table."""
    name = TableName("public", table)
    with closing(SqliteLogReader(running.log)) as reader:
        columns = reader.tables()[name].schema.columns
        reach = reader.frontiers()
        batches = list(reader.read(reader.extent(name, reach.valid, reach.durable), columns))
    return [row for batch in batches for row in batch.column("row").to_pylist()]


ADDITIONS = [
    ("note text", None, "'x'", "x"),
    ("note text DEFAULT 'none, \"so\" {far}'", 'none, "so" {far}', "'x'", "x"),
    ("note int NOT NULL DEFAULT 7", 7, "8", 8),
    ("note numeric(4,1) DEFAULT 1.5", None, "2.5", None),
    ("note timestamptz DEFAULT '2024-02-03 04:05:06+02'", None, "now()", None),
    ("note bytea DEFAULT '\\xff00'", b"\xff\x00", "'\\x01'", b"\x01"),
    ("note text DEFAULT ''", "", "NULL", None),
]


@pytest.mark.parametrize(("column", "old", "given", "new"), ADDITIONS)
@pytest.mark.parametrize("while_stopped", [False, True])
def test_added_column_is_captured(
    database: Any, capture: Start, now: Now, column: str, old: Any, given: str, new: Any, while_stopped: bool
) -> None:
    database.execute(ACCOUNTS)
    running = capture()
    database.execute("INSERT INTO accounts VALUES (1, 'a', 1)")
    running.wait(now())
    if while_stopped:
        running.stop()
    database.execute(f"ALTER TABLE accounts ADD COLUMN {column}; INSERT INTO accounts VALUES (2, 'b', 2, {given})")
    database.execute("ALTER TABLE accounts ALTER note SET DEFAULT NULL")
    if while_stopped:
        running.start()
    running.wait(now())
    assert running.error("accounts") is None
    first, second = widened(running)
    upstream = dict(database.execute("SELECT id, note FROM accounts"))
    assert (first["note"], second["note"]) == (upstream[1], upstream[2])
    if old is not None or new is not None:
        assert (first["note"], second["note"]) == (old, new)
    running.stop()
    database.execute("VACUUM FULL accounts")
    running.start()
    database.execute(f"INSERT INTO accounts VALUES (3, 'c', 3, {given})")
    running.wait(now())
    assert running.error("accounts") is None, "the added column is in the log"
    assert [row["id"] for row in widened(running)] == [1, 2, 3]


@pytest.mark.parametrize("rewrite", ["VACUUM FULL accounts", "TRUNCATE accounts"])
def test_earlier_rewrite_does_not_matter(
    database: Any, capture: Start, now: Now, monkeypatch: pytest.MonkeyPatch, rewrite: str
) -> None:
    wait_for_check = check_publication_often(monkeypatch)
    database.execute(ACCOUNTS)
    running = capture()
    database.execute("INSERT INTO accounts VALUES (1, 'a', 1)")
    wait_for_check()  # if all rows are new, it is unknown what a rewrite did to them
    database.execute(rewrite)
    running.wait(now())
    wait_for_check()
    database.execute("ALTER TABLE accounts ADD COLUMN note text; INSERT INTO accounts VALUES (2, 'b', 2, 'x')")
    running.wait(now())
    assert running.error("accounts") is None
    wait_for_check()
    database.execute(rewrite)
    running.stop()
    running.start()  # there is a check at the start, too
    database.execute("ALTER TABLE accounts ADD COLUMN more text; INSERT INTO accounts VALUES (3, 'c', 3, 'x', 'y')")
    running.wait(now())
    assert running.error("accounts") is None
    assert widened(running)[-1]["more"] == "y"


def test_value_added_to_an_enum_is_captured(database: Any, capture: Start, now: Now) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('so'); CREATE TABLE moods (id int PRIMARY KEY, mood mood)")
    running = capture()
    database.execute("INSERT INTO moods VALUES (1, 'so')")
    database.execute("ALTER TYPE mood ADD VALUE 'better'")
    database.execute("INSERT INTO moods VALUES (2, 'better')")
    running.wait(now())
    assert running.error("moods") is None
    assert [change["after"]["mood"] for change in running.changes("moods")] == ["so", "better"]


def test_column_that_was_added_dropped_and_added_again_stops_the_table(database: Any, capture: Start, now: Now) -> None:
    """The first of the two has another value in the older rows, and the changes between have its values."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    running = capture()
    running.wait(now())
    running.stop()
    database.execute("ALTER TABLE t ADD c int DEFAULT 1; INSERT INTO t VALUES (1, 10)")
    database.execute("ALTER TABLE t DROP c; ALTER TABLE t ADD c int DEFAULT 2; INSERT INTO t VALUES (2, 20)")
    running.start()
    running.wait(now())
    error = running.error("t")
    assert error is not None
    assert "another column was added and dropped before it" in error.message
    assert running.changes("t") == []


def test_columns_added_one_after_the_other(database: Any, capture: Start, now: Now) -> None:
    database.execute(ACCOUNTS)
    running = capture()
    for n in range(3):
        database.execute(f"INSERT INTO accounts (id) VALUES ({n})")
        database.execute(f"ALTER TABLE accounts ADD COLUMN extra_{n} int DEFAULT {n * 10}")
    database.execute("INSERT INTO accounts (id, extra_1) VALUES (3, NULL)")
    database.execute("BEGIN; INSERT INTO accounts (id) VALUES (4); ALTER TABLE accounts ADD extra_3 int; COMMIT")
    database.execute("INSERT INTO accounts (id, extra_3) VALUES (5, 1)")
    running.wait(now())
    assert running.error("accounts") is None
    rows = {row["id"]: tuple(row[f"extra_{n}"] for n in range(4)) for row in widened(running)}
    assert rows == {
        row[0]: row[1:] for row in database.execute("SELECT id, extra_0, extra_1, extra_2, extra_3 FROM accounts")
    }


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE accounts ADD COLUMN note double precision DEFAULT random()",
        "ALTER TABLE accounts ADD COLUMN note int GENERATED ALWAYS AS IDENTITY",
        "ALTER TABLE accounts ADD COLUMN note int; VACUUM FULL accounts",
        "ALTER TABLE accounts ADD COLUMN note int DEFAULT 5; ALTER TABLE accounts ALTER note TYPE bigint",
    ],
)
def test_added_column_with_unknown_old_values_stops_the_table(
    database: Any, capture: Start, now: Now, ddl: str
) -> None:
    database.execute(f"{ACCOUNTS}; {AUDIT}")
    running = capture()
    database.execute("INSERT INTO accounts VALUES (1, 'a', 1)")
    running.wait(now())
    running.stop()
    for statement in ddl.split("; "):
        database.execute(statement)
    database.execute("INSERT INTO accounts (id) VALUES (2); INSERT INTO audit (what) VALUES ('one')")
    running.start()
    running.wait(now())
    error = running.error("accounts")
    assert error is not None
    assert "column note was added" in error.message
    assert "RETRY TABLE" in error.hint
    assert [c["after"]["what"] for c in running.changes("audit")] == ["one"]


@pytest.mark.parametrize(
    ("name", "why"), [("OWNER", "which Spark does not distinguish"), ("_penstock_note", "is reserved by Penstock")]
)
def test_added_column_with_a_name_that_is_not_possible_downstream_stops_the_table(
    database: Any, capture: Start, now: Now, name: str, why: str
) -> None:
    database.execute(f"{ACCOUNTS}; {AUDIT}")
    running = capture()
    database.execute("INSERT INTO accounts VALUES (1, 'a', 1); INSERT INTO audit (what) VALUES ('one')")
    database.execute(f'ALTER TABLE accounts ADD COLUMN "{name}" text; INSERT INTO accounts (id) VALUES (2)')
    running.wait(now())
    assert f"column {name} was added upstream: " in str(running.error("accounts"))
    assert why in str(running.error("accounts"))
    assert running.error("audit") is None
    assert len(running.changes("accounts")) == 1


PARTITIONED = """
CREATE TABLE events (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE apart (id int, day date NOT NULL, PRIMARY KEY (id, day));
INSERT INTO apart VALUES (9, '2024-03-09')
"""


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')", None),
        ("ALTER TABLE events ATTACH PARTITION apart FOR VALUES FROM ('2024-03-01') TO ('2024-04-01')", "attached"),
        ("ALTER TABLE events DETACH PARTITION events_1", "detached"),
        ("DROP TABLE events_1", "detached or dropped"),
    ],
)
def test_partitions_are_attached_and_detached(
    database: Any, capture: Start, now: Now, monkeypatch: pytest.MonkeyPatch, ddl: str, expected: str | None
) -> None:
    wait_for_check = check_publication_often(monkeypatch)
    database.execute(f"{PARTITIONED}; {AUDIT}")
    running = capture(partitions="root", tables=("public.events", "public.audit"))
    database.execute("INSERT INTO events VALUES (1, '2024-01-01')")
    database.execute(ddl)
    if expected is None:
        database.execute("INSERT INTO events VALUES (2, '2024-02-02')")
        running.wait(now())
        wait_for_check()
        assert running.error("events") is None
        assert [c["after"]["id"] for c in running.changes("events")] == [1, 2]
        return
    until(lambda: running.error("events") is not None, "the check of the partitions")
    error = running.error("events")
    assert error is not None
    assert expected in error.message
    database.execute("INSERT INTO audit (what) VALUES ('one')")
    running.wait(now())
    assert (len(running.changes("audit")), running.error("audit")) == (1, None)


def test_columns_carry_their_declaration(database: Any, capture: Start, now: Now) -> None:
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'so, so');"
        "CREATE DOMAIN money2 AS numeric(10,2); CREATE DOMAIN fee AS money2;"
        "CREATE TABLE accounts (id bigint PRIMARY KEY, name varchar(20) NOT NULL, at timestamp(3), cost fee, of mood[])"
    )
    running = capture()
    database.execute("ALTER TABLE accounts ADD COLUMN span interval day to second(3) NOT NULL DEFAULT '1 day'")
    database.execute("INSERT INTO accounts (id, name) VALUES (1, 'a')")
    running.wait(now())
    with closing(SqliteLogReader(running.log)) as reader:
        table = reader.tables()[TableName("public", "accounts")]
    columns = list(table.schema.columns)
    assert [type_name(field) for field in columns] == [
        "bigint",
        "character varying(20)",
        "timestamp(3) without time zone",
        "fee",
        "mood[]",
        "interval day to second(3)",
    ]
    assert base_type_name(columns[3]) == "numeric(10,2)"
    assert [enum_labels(field) for field in columns[3:5]] == [None, ["sad", "so, so"]]
    assert [is_not_null(field) for field in columns] == [True, True, False, False, False, False], (
        "an added column is optional"
    )
    assert all(field.nullable for field in columns)
    assert missing_value(columns[5])[0].as_py() == {"months": 0, "days": 1, "microseconds": 0}


def test_log_without_declarations_continues_with_the_same_version(database: Any, capture: Start, now: Now) -> None:
    """The schema in a log of an earlier version has no declarations; it is not another schema because of that."""
    database.execute(ACCOUNTS)
    running = capture()
    database.execute("INSERT INTO accounts VALUES (1, 'a', 1)")
    running.wait(now())
    running.stop()
    table = running.config.tables[0]
    bare = tuple(replace(column, declaration=None) for column in table.columns)
    running.config = running.config.model_copy(update={"tables": (table.model_copy(update={"columns": bare}),)})
    running.start()
    database.execute("INSERT INTO accounts VALUES (2, 'b', 2)")
    running.wait(now())
    with closing(SqliteLogReader(running.log)) as reader:
        assert len(reader.tables()[table.name].schemas) == 1
    assert len(running.changes("accounts")) == 2
