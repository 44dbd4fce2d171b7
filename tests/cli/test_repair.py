"""`penstock repair`: invalid arguments are rejected before Spark starts."""

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
    home = open_home(tmp_path / "home")
    home.create(database.url, "shop")
    Catalog(catalog_path(home.path)).set_table("shop", TableName("public", "orders"), TableState.LIVE)
    return home.path


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("shop", "orders", "--keys", "[1"), 2, "invalid JSON in --keys"),
        (("shop", "orders", "--keys", "[[1, 2]]"), 2, "value for each of: id"),
        (("shop", "orders"), 2, "exactly one of"),
        (("shop", "orders", "--all", "--where", "true"), 2, "exactly one of"),
        (("shop", "order", "--all"), 2, "no table order"),
        (("shops", "orders", "--all"), 2, "source shops does not exist"),
        (("shop", "items", "--all"), 2, "is pending"),
    ],
)
def test_invalid_arguments_are_rejected_before_spark_starts(
    home: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    answer = penstock("repair", *arguments, "--home", str(home))
    assert answer.code == code
    assert message in answer.err
    assert open_home(home).repairs() == []
