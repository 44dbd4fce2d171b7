"""`penstock repair`: what it refuses before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands import penstock
from tests.conftest import Database

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog
from penstock.home import open_home
from penstock.layout import catalog_path
from penstock.model import TableName


@pytest.fixture
def home(database: Database, tmp_path: Path) -> Path:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE items (a int, b text, PRIMARY KEY (a, b))")
    made = open_home(tmp_path / "home")
    made.create(database.url, "shop")
    Catalog(catalog_path(made.path)).set_table("shop", TableName("public", "orders"), TableState.LIVE)
    return made.path


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("shop", "orders", "--keys", "[1"), 2, "--keys is not JSON"),
        (("shop", "orders", "--keys", "[[1, 2]]"), 2, "value for each of: id"),
        (("shop", "orders"), 2, "not said"),
        (("shop", "orders", "--all", "--where", "true"), 2, "said twice"),
        (("shop", "order", "--all"), 2, "no table order"),
        (("shops", "orders", "--all"), 2, "no source shops"),
        (("shop", "items", "--all"), 2, "is pending"),
    ],
)
def test_what_makes_no_sense_is_told_before_spark_is_started(
    home: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    answer = penstock("repair", *arguments, "--home", str(home))
    assert answer.code == code
    assert said in answer.err
    assert open_home(home).repairs() == []
