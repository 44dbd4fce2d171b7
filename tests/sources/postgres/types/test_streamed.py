"""Types made of others through the stream, in its binary form."""

from __future__ import annotations

from typing import Any

from tests.sources.postgres.types.rendering import render
from tests.sources.postgres.types.test_copied import SETUP, printed, tables


def test_every_kind_of_column(database: Any, capture: Any, now: Any) -> None:
    definitions, rows = SETUP.split("INSERT INTO t (id)", 1)
    database.execute(definitions)
    printed_columns = [c for c in tables(database.url).columns if c.sent_as_text]
    for column in printed_columns:
        database.execute(f"ALTER TABLE t ALTER {column.name} TYPE text")
    running = capture()
    database.execute("INSERT INTO t (id)" + rows)
    database.execute("UPDATE t SET c_array = c_array || 7, c_pair.b = NULL WHERE id = 2")
    running.wait(now())
    table = tables(database.url)
    last = {change["after"]["id"]: change["after"] for change in running.changes("t")}
    again = [
        {c.name: None if row[c.name] is None else render(c.type, row[c.name]) for c in table.columns}
        for _, row in sorted(last.items())
    ]
    assert again == printed(database.url, table)


def test_a_value_that_cannot_be_kept_ends_its_table_with_the_way_out(database: Any, capture: Any, now: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int[])")
    running = capture()
    database.execute("INSERT INTO t VALUES (1, '{1,NULL}'), (2, '{{1},{2}}')")
    running.wait(now())
    error = running.error("t")
    assert error is not None
    assert "no list holds; list the column in `text columns`" in str(error)
    assert running.changes("t") == []
