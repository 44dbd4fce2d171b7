"""Descriptions of types: built-in types, and those in the catalogs of a server."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.sources.postgres.types import PostgresType, TypeKind, builtin, codec_for, find_types
from penstock.sources.postgres.types.postgres_type import _TYPES, _described, _Row


def test_built_in_arrays_and_ranges() -> None:
    money = (10 << 16 | 2) + 4
    assert builtin(1231, money) == PostgresType(
        1231, money, "_numeric", TypeKind.ARRAY, PostgresType(1700, money, "numeric")
    )
    assert builtin(4451) == PostgresType(
        4451,
        -1,
        "int4multirange",
        TypeKind.MULTIRANGE,
        PostgresType(3904, -1, "int4range", TypeKind.RANGE, builtin(23)),
    )
    assert builtin(16384) is None
    assert str(codec_for(PostgresType(1231, money)).arrow) == "list<item: decimal128(10, 2)>"


def test_all_built_in_types_are_known_without_a_query(database: Any) -> None:
    query = """
        SELECT t.oid::bigint FROM pg_type t LEFT JOIN pg_type e ON e.typarray = t.oid
         WHERE t.oid < 16384 AND t.typtype IN ('b', 'r', 'm') AND coalesce(e.typtype, 'b') IN ('b', 'r', 'm')
           AND t.typname NOT IN ('gtsvector', '_gtsvector')
    """
    with database.connect() as connection:
        oids = [oid for (oid,) in connection.execute(query)]
        rows = {oid: _Row(*rest) for oid, *rest in connection.execute(_TYPES, (oids,))}
    for oid in oids:
        known, row = builtin(oid), rows[oid]
        assert known is not None, row.name
        assert known.name == row.name
        assert (known.of.oid if known.of else None) == (row.element or row.bound or row.member)
        codec_for(known)
    assert len(oids) > 150
    assert _described(rows, 16, -1) == builtin(16)


@pytest.mark.parametrize("schema", ["public", '"Odd name"'])
def test_nested_types(database: Any, schema: str) -> None:
    with database.connect() as connection:
        connection.execute(
            f"""
            CREATE SCHEMA IF NOT EXISTS {schema}; SET search_path = {schema};
            CREATE DOMAIN price AS numeric(10, 2); CREATE DOMAIN dear AS price;
            CREATE TYPE mood AS ENUM ('x');
            CREATE TYPE pricerange AS RANGE (subtype = numeric);
            CREATE TYPE tree AS (gone int, "Kept" varchar(7), prices dear[], fixed numeric(6, 1)[],
                               moods mood, r pricerange);
            ALTER TYPE tree DROP ATTRIBUTE gone;
            CREATE TABLE t (v tree[], m pricemultirange);
            """.encode()
        )
        query = "SELECT atttypid::bigint, atttypmod FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0"
        wanted = connection.execute(query).fetchall()
        found = find_types(connection, wanted)
        assert find_types(connection, []) == {}
        assert find_types(connection, [(4_000_000_000, -1)]) == {(4_000_000_000, -1): PostgresType(4_000_000_000)}
    trees, spans = (found[each] for each in wanted)
    assert trees.kind is TypeKind.ARRAY
    assert trees.of is not None
    tree = dict(trees.of.fields)
    assert list(tree) == ["Kept", "prices", "fixed", "moods", "r"]
    assert tree["Kept"] == PostgresType(1043, 11, "varchar")
    assert tree["fixed"].of == PostgresType(1700, (6 << 16 | 1) + 4, "numeric")
    assert (tree["moods"].kind, tree["moods"].name) == (TypeKind.ENUM, "mood")
    dear = tree["prices"].of
    assert dear is not None
    assert dear.kind is TypeKind.DOMAIN
    assert dear.of is not None
    assert dear.of.of == PostgresType(1700, (10 << 16 | 2) + 4, "numeric")
    assert spans.kind is TypeKind.MULTIRANGE
    assert spans.of == tree["r"]
