"""`penstock verify`: differences by key and kind; exit code 0, 1 or 3, and the documented JSON format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from tests.cli.commands import penstock
from tests.conftest import Database
from tests.engine.shop import Shop, running_shop
from typer.testing import CliRunner, Result

from penstock import home_operations
from penstock.cli import spark_session
from penstock.cli.main import app
from penstock.cli.sql import answer
from penstock.cli.sql_output import OutputFormat
from penstock.home import Home, open_home
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import until

DONE, DIFFERENT, USAGE, DEFINITE = 0, 1, 2, 3
SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders SELECT n, 'secret ' || n FROM generate_series(1, 40) n;
CREATE TABLE lines (a int, b numeric(6, 2), PRIMARY KEY (a, b)); INSERT INTO lines VALUES (1, 1.50), (1, 2.00);
CREATE TABLE keyless (note text); ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO keyless VALUES ('secret'), ('secret')
"""


@pytest.fixture
def shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: None) -> Iterator[Shop]:
    """A running home with tables in memory, which the commands use too."""
    store = MemoryTables()
    monkeypatch.setattr(home_operations, "start_session", lambda _: store)
    monkeypatch.setattr(spark_session, "stop_spark", lambda _: None)
    with running_shop(tmp_path / "home", database, store, SETUP) as shop:
        yield shop


def verify(home: Home, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", "shop", *arguments, "--home", str(home.path)], catch_exceptions=False)


def damage(shop: Shop) -> None:
    """Remove, change and invent rows of orders; remove a row with a two-column key; empty a keyless table."""

    def orders(rows: pa.Table) -> pa.Table:
        kept = [{**row, "note": "other"} if row["id"] == 5 else row for row in rows.to_pylist() if row["id"] != 3]
        return pa.Table.from_pylist([*kept, {"id": 99, "note": None}], rows.schema)

    shop.tamper("orders", orders)
    shop.tamper("lines", lambda rows: rows.filter(pc.field("b") != Decimal("1.50")))
    shop.tamper("keyless", lambda rows: rows.slice(0, 0))


def test_differences_are_reported_by_key(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    equal = verify(shop.home)
    assert (equal.exit_code, equal.stderr) == (DONE, "")
    assert [line.split()[:3] for line in equal.stdout.splitlines()[1:]] == [
        ["shop.keyless", "2", "equal"],
        ["shop.lines", "2", "equal"],
        ["shop.orders", "40", "equal"],
    ]
    damage(shop)
    result = verify(shop.home, "orders", "public.lines")
    assert result.exit_code == DIFFERENT
    assert [" ".join(line.split()) for line in result.stdout.splitlines()[3:]] == [
        'shop.lines missing {"a": 1, "b": "1.50"}',
        'shop.orders missing {"id": 3}',
        'shop.orders changed {"id": 5}',
        'shop.orders unexpected {"id": 99}',
    ]
    found = json.loads(verify(shop.home, "--json", "--exact").stdout)
    assert list(found) == ["version", "source", "position", "equal", "tables", "repairs", "before"]
    assert (found["version"], found["source"], found["equal"]) == (1, "shop", False)
    keyless, lines, orders = found["tables"]
    assert list(orders) == [
        *("name", "upstream", "result", "rows", "differing", "missing", "unexpected", "changed", "keys"),
        *("error", "hint", "shard", "position"),
    ]
    assert (orders["shard"], orders["position"]) == (None, found["position"])
    assert (orders["result"], orders["rows"], orders["differing"], orders["changed"]) == ("different", 40, 3, 1)
    assert orders["keys"][0] == {"key": {"id": 3}, "how": "missing"}
    assert lines["keys"] == [{"key": {"a": 1, "b": "1.50"}, "how": "missing"}]
    assert (keyless["result"], keyless["missing"], keyless["keys"]) == ("different", 1, [])
    _check_repair(shop, monkeypatch)


def _check_repair(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repair gets the differing keys, then the tables are compared again; a keyless table cannot be repaired by key."""
    requests: list[Any] = []

    def repair(_: Home, source: str, table: str, *, keys: list[dict[str, Any]], **more: Any) -> SimpleNamespace:
        requests.append((source, table, [list(map(str, key.values())) for key in keys]))
        if table == "public.orders":
            shop.tamper("orders", lambda rows: rows.filter(pc.field("id") != 99))
        return SimpleNamespace(rows_changed=1, low="0/1", high="0/2")

    monkeypatch.setattr(Home, "repair", repair, raising=False)
    result = verify(shop.home, "--repair")
    assert requests == [("shop", "public.lines", [["1", "1.50"]]), ("shop", "public.orders", [["3"], ["5"], ["99"]])]
    assert result.exit_code == DIFFERENT
    before, after = result.stdout.split("compared again:")
    assert "repaired shop.orders: 1 rows changed" in before
    assert '{"id": 99}' in before
    assert '{"id": 99}' not in after
    assert '{"id": 5}' in after
    assert "ALTER SOURCES shop RETRY TABLE public.keyless;" in after
    assert "secret" not in result.output


def test_table_that_cannot_be_compared(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.database.execute("ALTER TABLE lines ALTER b TYPE text; INSERT INTO lines VALUES (2, 2)")
    until(lambda: shop.state("lines") == "failed", "the error of lines")
    result = verify(shop.home)
    assert result.exit_code == DEFINITE
    assert "its columns changed upstream" in result.stdout
    assert "RETRY TABLE public.lines" in result.stdout
    assert result.stdout.count("equal") == 2
    answer(shop.home, lambda: shop.store, "VERIFY shop.public.orders;", OutputFormat.JSON)  # type: ignore[arg-type,return-value]
    row = json.loads(capsys.readouterr().out)
    assert (row["table"], row["result"], row["rows"], row["keys"]) == ("shop.orders", "equal", 40, None)


@pytest.mark.deep
def test_idle_home_is_run_during_the_comparison(
    database: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_operations, "start_session", lambda _: spark)
    monkeypatch.setattr(spark_session, "stop_spark", lambda _: None)
    with ExitStack() as stack:
        shop = stack.enter_context(running_shop(tmp_path / "home", database, spark, SETUP))
    database.execute("UPDATE orders SET note = 'later' WHERE id < 10")
    assert shop.home.status().running is None
    assert verify(shop.home).exit_code == DONE
    assert shop.home.status().running is None


def test_unknown_names(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    home = open_home(tmp_path / "home")
    home.create(database.url, "shop")
    try:
        assert (
            "source shops does not exist" in penstock("verify", "shops", "--home", home.path).assert_error(USAGE).error
        )
        wrong = penstock("verify", "shop", "public.order", "--home", home.path).assert_error(USAGE)
        assert wrong.hint == "Did you mean public.orders? Tables of this source: public.orders."
        assert "no table x" in penstock("sql", "VERIFY shop.x", "--home", home.path).assert_error(USAGE).error
    finally:
        home.drop("shop")
