"""Columns that are renamed upstream, against a real server: they keep their names downstream, or their table stops."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.sources.postgres.capturing import Capture

from penstock.errors import SchemaChangeError
from penstock.positions import Lsn
from penstock.testing.waiting import until

Start = Callable[..., Capture]
Now = Callable[[], Lsn]

AUDIT = "CREATE TABLE audit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text)"


@pytest.mark.parametrize("down", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_renamed_columns_keep_their_names_downstream(
    database: Any, capture: Start, now: Now, down: bool, identity: str
) -> None:
    """Also the key, columns that get each other's name, and columns that are added or dropped later."""
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, a text, b text, c int); ALTER TABLE t REPLICA IDENTITY {identity}"
    )
    running = capture()
    database.execute(
        "INSERT INTO t SELECT n, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i), n, n"
        " FROM generate_series(1, 2) n"
    )
    if down:
        running.wait(now())
        running.stop()
    database.execute("ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME x TO b")
    database.execute("INSERT INTO t (id, a, b) VALUES (3, 'in b', 'in a'); UPDATE t SET a = 'new' WHERE id = 1")
    if down:
        running.start()
    running.wait(now())
    database.execute("ALTER TABLE t RENAME id TO number; UPDATE t SET number = 20 WHERE number = 2")
    database.execute("DELETE FROM t WHERE number = 1; ALTER TABLE t ADD COLUMN d text DEFAULT 'old'")
    database.execute("INSERT INTO t (number, a, d) VALUES (4, 'added', 'd')")
    running.wait(now())
    database.execute("ALTER TABLE t RENAME d TO e; INSERT INTO t (number, a, e) VALUES (5, 'renamed', 'e')")
    running.wait(now())
    database.execute("ALTER TABLE t DROP COLUMN c; INSERT INTO t (number, a, e) VALUES (6, 'dropped', 'f')")
    running.wait(now())
    assert running.error("t") is None
    running.stop()
    running.start()
    database.execute("INSERT INTO t (number, a, e) VALUES (7, 'again', 'g')")
    running.wait(now())
    assert running.error("t") is None
    changes = running.changes("t")
    assert list(changes[-1]["after"]) == ["id", "a", "b", "c", "d"]
    rows = [c["after"] for c in changes]
    short = [None if row is None else (row["id"], row["b"], row.get("d")) for row in rows]
    assert short == [
        (1, "1", None),
        (2, "2", None),
        (3, "in b", None),
        (1, "new", None),
        (20, "2", None),
        None,
        (4, "added", "d"),
        (5, "renamed", "e"),
        (6, "dropped", "f"),
        (7, "again", "g"),
    ]
    assert rows[2]["a"] == "in a"
    assert [c["before"]["id"] for c in changes if c["after"] is None] == [1]


@pytest.mark.parametrize("down", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize(
    ("setup", "ddl", "row", "expected"),
    [
        ("", "RENAME a TO c; ALTER TABLE t ADD COLUMN a text", "(3, 'x', 'y', 'z')", "renamed|added again|added: "),
        ("", "RENAME a TO c; ALTER TABLE t DROP COLUMN b", "(3, 'x')", ""),
        ("", "DROP COLUMN b; ALTER TABLE t ADD COLUMN c text", "(3, 'x', 'y')", "dropped or renamed: b"),
        ("", "RENAME a TO c; ALTER TABLE t ALTER b TYPE varchar USING upper(b)", "(3, 'x', 'y')", "altered|in type"),
        ("", "DROP COLUMN b; ALTER TABLE t RENAME a TO b", "(3, 'x')", ""),
    ],
    ids=["name added again", "another dropped", "dropped and added", "another computed", "name of a dropped one"],
)
def test_renamed_column_stops_the_table_unless_it_is_proven(
    database: Any, capture: Start, now: Now, setup: str, ddl: str, row: str, expected: str, down: bool
) -> None:
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, a text, b text); {AUDIT}; {setup}")
    running = capture()
    database.execute("INSERT INTO t VALUES (1, 'a', 'b')")
    running.wait(now())
    if down:
        running.stop()
    database.execute(f"ALTER TABLE t {ddl}; INSERT INTO t VALUES {row}")
    if down:
        running.start()
    database.execute("INSERT INTO audit (what) VALUES ('one')")
    running.wait(now())
    assert running.error("audit") is None
    if not expected:
        assert running.error("t") is None
        assert running.changes("t")[-1]["after"] == {"id": 3, "a": "x", "b": None}
        return
    until(lambda: running.error("t") is not None, "the error")
    assert re.search(expected, str(running.error("t")))
    assert isinstance(running.error("t"), SchemaChangeError)
    assert [change["after"]["id"] for change in running.changes("t")] == [1]


def test_column_is_renamed_in_a_transaction_that_is_streamed(database: Any, capture: Start, now: Now) -> None:
    """Before its commit, the catalog does not show whether the column was renamed, or dropped and another one added."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text)")
    database.execute("CREATE TABLE u (id int PRIMARY KEY, a text, b text)")
    running = capture()
    database.execute("INSERT INTO t VALUES (0, 'a', 'b'); INSERT INTO u VALUES (0, 'a', 'b')")
    running.wait(now())
    many = "SELECT n, repeat('a', 1000), 'b' FROM generate_series(1, 2000) n"
    database.execute(
        "BEGIN; ALTER TABLE t RENAME b TO c; ALTER TABLE u DROP COLUMN b; ALTER TABLE u ADD COLUMN c text;"
        f"INSERT INTO t {many}; INSERT INTO u {many}; COMMIT"
    )
    running.wait(now())
    assert running.error("t") is None
    assert len(running.changes("t")) == 2001
    assert {change["after"]["b"] for change in running.changes("t")} == {"b"}
    assert "dropped or renamed: b" in str(running.error("u"))
    assert len(running.changes("u")) == 1


def test_excluded_column_that_is_renamed_is_not_captured(database: Any, capture: Start, now: Now) -> None:
    """On any version, and with a publication of the user, from which the stream has all columns."""
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, b text, secret text); {AUDIT}")
    database.execute("CREATE PUBLICATION p FOR TABLE t, audit")
    running = capture(publication="p", publication_ownership="user", exclude_columns=["public.t.secret"])
    database.execute("INSERT INTO t VALUES (1, 'b', 'hidden')")
    running.wait(now())
    database.execute("ALTER TABLE t RENAME secret TO known; INSERT INTO t VALUES (2, 'b', 'hidden')")
    database.execute("INSERT INTO audit (what) VALUES ('one')")
    running.wait(now())
    assert "column known was added upstream: it was not captured under an earlier name" in str(running.error("t"))
    assert [change["after"] for change in running.changes("t")] == [{"id": 1, "b": "b"}]
    assert running.error("audit") is None


def test_renamed_column_beside_excluded_ones_stops_the_table(database: Any, capture: Start) -> None:
    """Without a row change: the publication's column list, or what capture leaves out, is compared by names."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, b text, secret text)")
    running = capture(exclude_columns=["public.t.secret"])
    database.execute("ALTER TABLE t RENAME b TO c")
    until(lambda: running.error("t") is not None, "the check of the catalogs")
    assert "its columns changed upstream (renamed: b)" in str(running.error("t"))


def test_renamed_column_of_a_row_filter_stops_the_table(database: Any, capture: Start) -> None:
    """Postgres prints the filter with the new name, so that it differs from that of the snapshot."""
    database.needs(15, "publications filter rows since Postgres 15")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, b int); CREATE PUBLICATION p FOR TABLE t WHERE (b > 0)")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    running = capture(publication="p", publication_ownership="user")
    database.execute("ALTER TABLE t RENAME b TO c")
    until(lambda: running.error("t") is not None, "the check of the catalogs")
    assert "row filter" in str(running.error("t"))
