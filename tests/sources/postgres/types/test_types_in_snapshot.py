"""All kinds of types in the initial snapshot: printed by the server, sent as binary, and captured as text."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sources.postgres.types.rendering import render

from penstock.errors import TableError
from penstock.positions import Lsn
from penstock.sources.postgres.captured_table import CapturedColumn, CapturedTable
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.preflight.introspect import find_tables
from penstock.sources.postgres.preflight.selection import ChosenTable
from penstock.sources.postgres.replication.slot import export_snapshot
from penstock.sources.postgres.snapshot.copy import PageRange, copy_range

SETUP = """
CREATE EXTENSION hstore;
CREATE TYPE mood AS ENUM ('ok', 'so so');
CREATE TYPE pair AS (a integer, b text);
CREATE TYPE shape AS (centre point, cost money, what regclass);
CREATE DOMAIN pairs AS pair[];
CREATE TABLE t (
    id int PRIMARY KEY, c_array int[], c_mood mood, c_pair pair, c_pairs pairs, c_shape shape, c_shapes shape[],
    c_money money, c_acl aclitem, c_range tstzrange, c_multi nummultirange, c_map hstore, c_point point,
    c_wait interval, c_vector tsvector, c_numeric numeric, c_address inet[]);
INSERT INTO t (id) VALUES (1);
INSERT INTO t VALUES
  (2, '{1,NULL,3}', 'so so', '(1,"a ""b"", c")', ARRAY['(1,x)'::pair, NULL, '(,)'], '("(1,2)",$5.00,pg_class)',
   ARRAY['("(0.1,-0)",,)'::shape], '-1.5', 'postgres=r/postgres', '[2026-01-01,)', '{(,1.50],[3,4)}', 'a=>1, b=>NULL',
   '(1e23,5e-324)', '1 mon -1 day', 'fat:2A cat', 'NaN', '{::1,10.0.0.0/8}'),
  (3, '{}', 'ok', '(,)', '{}', '(,,)', '{}', '0', 'postgres=arw/postgres', 'empty', '{}', '', '(0,0)', '0', '',
   '0.10', '{}');
"""


def captured_table_of(url: str) -> CapturedTable:
    with connect(url) as connection:
        (found,) = find_tables(connection)
    return ChosenTable(found).captured()


def copied(url: str, table: CapturedTable) -> list[dict[str, Any]]:
    with export_snapshot(url) as snapshot:
        batches = list(copy_range(url, snapshot.name, table, PageRange(0, 1000), Lsn(1)))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(table.table_schema().columns.remove_metadata())
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: int(row["id"]))


def printed(url: str, table: CapturedTable) -> list[dict[str, Any]]:
    names = [column.name for column in table.columns]
    listed = ", ".join(f"CASE WHEN {name} IS DISTINCT FROM NULL THEN format('%s', {name}) END" for name in names)
    with connect(url) as connection:
        rows = connection.execute(f"SELECT {listed} FROM t ORDER BY id".encode()).fetchall()
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_every_kind_of_column(database: Any) -> None:
    database.execute(SETUP)
    table = captured_table_of(database.url)
    asked = {column.name for column in table.columns if column.sent_as_text}
    assert asked == {"c_shape", "c_shapes", "c_money", "c_acl", "c_vector"}
    again = [
        {c.name: None if row[c.name] is None else render(c.type, row[c.name]) for c in table.columns}
        for row in copied(database.url, table)
    ]
    assert again == printed(database.url, table)


def test_columns_captured_as_text(database: Any) -> None:
    database.execute(SETUP)
    database.execute("INSERT INTO t (id, c_array, c_range) VALUES (4, '[0:1][3:3]={{1},{2}}', '[-infinity,infinity]')")
    table = captured_table_of(database.url)
    with pytest.raises(TableError, match=r"(?s)c_array.*a list cannot hold.*`text columns`"):
        copied(database.url, table)
    as_text = tuple(CapturedColumn(c.name, c.type, c.identity, as_text=True) for c in table.columns)
    text_table = table.model_copy(update={"columns": as_text})
    assert copied(database.url, text_table) == printed(database.url, table)


PGVECTOR = "pgvector, which only the wheel of this version contains"
EXTENSIONS = """
CREATE EXTENSION ltree; CREATE EXTENSION vector; CREATE EXTENSION isn; CREATE EXTENSION cube; CREATE EXTENSION seg;
CREATE TYPE other AS (a int, "A" int);
CREATE TABLE t (
    id int PRIMARY KEY, path ltree, asked lquery, words ltxtquery, near vector(3), far vector[], book isbn,
    books isbn[], area cube, span seg, half halfvec(2), same other, nested vector(2)[]);
"""
EXTENSION_ROWS = """
INSERT INTO t (id) VALUES (1);
INSERT INTO t VALUES
  (2, 'a.b_c.d', '*.b_c|d{1,2}', 'a & !b', '[1,-2.5,3e-08]', ARRAY['[0.1]'::vector, NULL], '0-306-40615-2',
   ARRAY['978-0-393-04002-9'::isbn, NULL], '(1,2.5),(3,4)', '~0.5 .. 1.50', '[1,65504]', '(1,2)', '{"[1,2]"}'),
  (3, '', '*', 'b', '[3.4028235e+38,1e-45,0]', '{}', '0-306-40615-2', '{}', '()', '<1', '[0,-1]', '(,)', '{}');
"""


def test_types_of_extensions(database: Any) -> None:
    """ltree and vectors have types of their own; all others are the text that Postgres prints."""
    database.needs(18, PGVECTOR)
    database.execute(EXTENSIONS + EXTENSION_ROWS)
    table = captured_table_of(database.url)
    text = {column.name for column in table.columns if column.as_text}
    assert text == {"book", "books", "area", "span", "half", "same"}
    found = copied(database.url, table)
    assert found[1]["near"] == [1.0, -2.5, pytest.approx(3e-08)]
    assert found[1]["far"] == [[pytest.approx(0.1)], None]
    assert [row["path"] for row in found] == [None, "a.b_c.d", ""]
    plain = [c.name for c in table.columns if c.name not in ("near", "far", "nested", "id")]
    assert [{name: row[name] for name in plain} for row in found] == [
        {name: row[name] for name in plain} for row in printed(database.url, table)
    ]
