"""ALTER SOURCES … SET (text columns, exclude columns): the table is captured again, alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.shop import Shop
from tests.postgres_records import postgres_spec_of

from penstock.engine.catalog_records import instance_of
from penstock.engine.table_names import named_source
from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.home import Home
from penstock.testing.waiting import until

SETUP = """
CREATE TABLE t (id int PRIMARY KEY, d date, note text);
INSERT INTO t SELECT n, '2026-01-01', 'a' FROM generate_series(1, 9) n;
CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)
"""


@pytest.fixture
def create_home(database: Any, tmp_path: Path) -> Iterator[Callable[[str], Home]]:
    """Creates tables, and captures them as source `shop` of a home that does not run."""
    home = Home(tmp_path / "home")

    def create(setup: str) -> Home:
        database.execute(setup)
        home.create(database.url, "shop")
        return home

    yield create
    home.drop("shop")


def _generations(shop: Shop) -> dict[str, int]:
    return {table.name.name: table.generation for table in instance_of(named_source(shop.catalog, "shop")).produced()}


def _set(shop: Shop, options: str, generation: int) -> None:
    shop.home.sql(f"ALTER SOURCES shop SET ({options})")
    until(lambda: _generations(shop)["t"] == generation and shop.state("t") == "live", "the new snapshot")
    shop.database.execute("INSERT INTO t SELECT max(id) + 1, '2026-02-02', 'b' FROM t")
    assert shop.equal()
    assert _generations(shop)["other"] == 0, "the other table is not copied again"


def test_table_is_captured_again_with_other_columns(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    shop.database.execute("INSERT INTO t VALUES (10, 'infinity', 'c')")
    until(lambda: shop.state("t") == "failed", "the value that a date cannot hold")
    with shop.writing("INSERT INTO other VALUES (%s)"):
        _set(shop, "text columns = (public.t.d)", 1)
        rows = {row["id"]: row["d"] for row in shop.rows("t")}
        assert (rows[9], rows[10], rows[11]) == ("2026-01-01", "infinity", "2026-02-02")
        _set(shop, "exclude columns = (public.t.note)", 2)
        assert shop.columns("t") == ["id", "d"]
        shop.database.execute("DELETE FROM t WHERE id = 10")
        _set(shop, "exclude columns = (), text columns = ()", 3)
        assert shop.columns("t") == ["id", "d", "note"]
    assert shop.equal()


@pytest.mark.parametrize(
    ("options", "error", "message", "hint"),
    [
        (
            "text columns = (public.t.dd)",
            DefiniteError,
            r"public\.t\.dd: the captured tables have no such column",
            "t.d",
        ),
        ("text columns = (public.x.d)", DefiniteError, r"public\.x: table does not exist", ""),
        ("exclude columns = (public.t.id)", DefiniteError, "primary key cannot be excluded", "identifies rows"),
        ("exclude columns = (public.t.d), text columns = (public.t.d)", UsageError, "in both", "one of the two"),
        ("exclude columns = (public.bag.b)", DefiniteError, "public.bag cannot be captured with these options", "KEY"),
    ],
)
def test_invalid_columns_change_nothing(
    create_home: Callable[[str], Home], options: str, error: type[PenstockError], message: str, hint: str
) -> None:
    home = create_home(f"{SETUP}; CREATE TABLE bag (a int, b int); ALTER TABLE bag REPLICA IDENTITY FULL")
    before = home.statement("shop"), [table.state for table in home.status().sources[0].tables]
    with pytest.raises(error, match=message) as caught:
        home.sql(f"ALTER SOURCES shop SET ({options})")
    assert hint in caught.value.hint
    assert before == (home.statement("shop"), [table.state for table in home.status().sources[0].tables])


def test_table_that_is_being_copied_is_rejected(create_home: Callable[[str], Home]) -> None:
    home = create_home(SETUP)
    with pytest.raises(UsageError, match=r"public\.t is pending"):
        home.alter("shop", text_columns=("public.t.d",))
    assert postgres_spec_of(named_source(home._catalog, "shop")).text_columns == ()
