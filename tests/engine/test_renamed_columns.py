"""A column that is renamed upstream: the table continues; the column keeps its name downstream until a new snapshot."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from tests.engine.shop import Shop

from penstock.errors import DefiniteError
from penstock.sources.postgres.snapshot.database import PostgresSnapshot
from penstock.testing.waiting import until

KEYED = """
CREATE TABLE t (id int PRIMARY KEY, a text, "c.d" text);
INSERT INTO t SELECT n, 'a' || n, 'c' || n FROM generate_series(1, 5) n;
CREATE TABLE audit (id int PRIMARY KEY)
"""
SETUP = f"""
{KEYED};
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, NULL)
"""
SWAP = 'ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME "c.d" TO a; ALTER TABLE t RENAME x TO "c.d"'


def _is_applied(shop: Shop) -> bool:
    (source,) = shop.home.status().sources
    assert {table.error for table in source.tables} == {None}
    return all(table.behind == 0 for table in source.tables)


def _check(shop: Shop) -> None:
    execute = shop.database.execute
    execute(SWAP)
    assert shop.all_equal(), "before any row change"
    execute("ALTER TABLE t RENAME id TO number; UPDATE t SET a = 'new', number = 10 WHERE number = 1")
    execute("INSERT INTO t VALUES (6, 'in a', 'in c'); DELETE FROM t WHERE number = 2")
    execute(
        "ALTER TABLE bag RENAME a TO \"A\"; UPDATE bag SET b = 'y' WHERE \"A\" = 2; INSERT INTO bag VALUES (3, 'z')"
    )
    assert shop.all_equal()
    assert shop.columns("t") == ["id", "a", "c.d"]
    expected = [(3, "a3", "c3"), (4, "a4", "c4"), (5, "a5", "c5"), (6, "in a", "in c"), (10, "a1", "new")]
    assert shop.values("t", "id", "a", "c.d") == expected
    execute('ALTER TABLE t DROP COLUMN "c.d"; UPDATE t SET a = a WHERE number = 5')
    assert shop.all_equal()
    execute("ALTER TABLE t ADD COLUMN e int DEFAULT 7")
    execute("INSERT INTO t (number, a) VALUES (7, 'c7')")
    until(lambda: _is_applied(shop), "all changes to be merged")
    assert shop.all_equal()
    assert shop.values("t", "id", "a", "c.d", "e")[-2:] == [(7, None, "c7", 7), (10, "a1", "new", 7)]


def test_renamed_columns_keep_their_names_until_a_new_snapshot(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    _check(shop)
    shop.home.retry("shop", "t")
    until(lambda: shop.generation("t") == 1 and shop.state("t") == "live", "the new snapshot")
    assert shop.columns("t") == ["number", "a", "e"], "a new snapshot has the present names"
    assert (7, "c7", 7) in shop.values("t", "number", "a", "e")
    assert shop.all_equal()


@pytest.mark.deep
def test_renamed_columns_in_spark(start_spark_shop: Callable[..., Shop]) -> None:
    """A repair reads the columns, the key too, by their present names."""
    shop = start_spark_shop(SETUP)
    _check(shop)
    assert shop.home.repair("shop", "t", everything=True).rows_changed == 0
    shop.plant("t", lambda delta: delta.update("id = 5", {"`c.d`": "'wrong'"}))
    assert not shop.all_equal()
    with pytest.raises(DefiniteError, match=r"renamed upstream: id is number now, c\.d is a now"):
        shop.home.repair("shop", "t", where="e = 7")
    assert shop.home.repair("shop", "t", keys=[5]).rows_changed == 1
    assert shop.all_equal()
    assert (5, "c5") in shop.values("t", "id", "c.d")


def test_columns_are_renamed_during_the_snapshot(start_shop: Callable[..., Shop]) -> None:
    _check_rename_during_the_snapshot(start_shop(KEYED))


@pytest.mark.deep
def test_columns_are_renamed_during_an_incremental_snapshot(start_spark_shop: Callable[..., Shop]) -> None:
    _check_rename_during_the_snapshot(start_spark_shop(KEYED, snapshot="chunked"))


def _check_rename_during_the_snapshot(shop: Shop) -> None:
    """The snapshot waits for a transaction, while capture has begun the table with the earlier names."""
    with shop.database.connect(autocommit=False) as delaying:
        delaying.execute("INSERT INTO audit VALUES (1)")
        shop.home.retry("shop", "t")
        until(lambda: shop.state("t") == "pending", "the request to be executed")
        shop.database.execute(f"INSERT INTO t VALUES (6, 'before', 'c'); {SWAP}; ALTER TABLE t RENAME id TO number")
        shop.database.execute("INSERT INTO t VALUES (7, 'in a', 'in c')")
    until(lambda: shop.state("t") == "live", "the snapshot")
    shop.database.execute("UPDATE t SET a = 'later' WHERE number = 1")
    assert shop.all_equal()
    named = shop.columns("t")
    assert named in (["id", "a", "c.d"], ["number", "c.d", "a"])
    assert shop.values("t", *named)[-2:] == [(6, "before", "c"), (7, "in a", "in c")]
    assert shop.values("t", *named)[0] == (1, "a1", "later")


def test_snapshot_is_repeated_if_columns_are_renamed_while_it_reads(start_shop: Callable[..., Shop]) -> None:
    """Postgres looks up the names of a query when it executes it, whatever the snapshot of the transaction shows."""
    shop = start_shop(SETUP)
    database = shop.database
    copied, copy = list[int](), PostgresSnapshot.copy

    def swap_before(self: PostgresSnapshot, *arguments: Any, **options: Any) -> Any:
        if not copied:
            database.execute(SWAP)
        copied.append(1)
        return copy(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresSnapshot, "copy", swap_before)
        shop.home.retry("shop", "t")
        until(lambda: shop.generation("t") == 1 and shop.state("t") == "live", "the new snapshot")
    assert len(copied) > 1
    assert shop.all_equal()
    assert shop.values("t", *shop.columns("t"))[0] == (1, "a1", "c1")


def test_readers_of_changes_continue(start_shop: Callable[..., Shop]) -> None:
    """The schema of changes is the same before and after."""
    shop = start_shop(SETUP)
    since = shop.home.frontiers("shop").durable
    shop.database.execute("UPDATE t SET a = 'before' WHERE id = 3")
    shop.database.execute(f"{SWAP}; UPDATE t SET \"c.d\" = 'after' WHERE id = 3")
    until(lambda: (3, "after", "c3") in shop.values("t", "id", "a", "c.d"), "both changes")
    with closing(shop.home.tail("shop", ["public.t"], start=since)) as tail:
        changes = [row for each in itertools.islice(tail, 2) for row in each.tables["public.t"].to_pylist()]
    assert [row["after"] for row in changes] == [
        {"id": 3, "a": "before", "c.d": "c3"},
        {"id": 3, "a": "after", "c.d": "c3"},
    ]
