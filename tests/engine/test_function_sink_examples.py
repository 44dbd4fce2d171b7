"""The examples of sinks into a function: each target equals the upstream table, although each call is repeated."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.engine.shop import Shop
from tests.engine.test_sink_examples import EXAMPLES
from tests.test_docs import DOCS, blocks

from penstock.positions import Lsn
from penstock.sinks.function.registration import SinkFunction
from penstock.testing.waiting import until

PROGRAMS = ("to_postgres", "to_delta", "to_http")
TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(10,2))"
Table = dict[int, tuple[str | None, Decimal | None]]


class Server:
    """An HTTP server that stores each batch once, by its key, and fails after the first request of each."""

    def __init__(self) -> None:
        self.batches: dict[str, list[dict[str, Any]]] = {}
        stored = self.batches

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                key, lines = self.headers["Idempotency-Key"], [json.loads(line) for line in body.splitlines()]
                is_new = key not in stored
                assert stored.setdefault(key, lines) == lines, "a batch that is sent again is the same"
                self.send_response(503 if is_new else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def table(self) -> Table:
        """Apply all changes in the order in which they arrived."""
        found: Table = {}
        for change in (change for batch in list(self.batches.values()) for change in batch):
            if change["_op"] == "truncate":
                found.clear()
            if change["before"] is not None:
                found.pop(change["before"]["id"], None)
            if change["after"] is not None:
                row = change["after"]
                found[row["id"]] = row["customer"], None if row["amount"] is None else Decimal(str(row["amount"]))
        return found


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


def repeated(function: SinkFunction) -> SinkFunction:
    """Return a function whose first call of each range fails after it has done everything."""
    seen = set[tuple[Lsn | None, Lsn]]()

    def call(df: DataFrame, first: Lsn | None, last: Lsn) -> None:
        function(df, first, last)
        if (first, last) not in seen:
            seen.add((first, last))
            raise ConnectionError("the answer of the server is lost")

    return call


def rows(found: Any) -> Table:
    return {number: (customer, amount) for number, customer, amount in found}


def delta(spark: SparkSession, path: Path) -> Table:
    try:
        return rows(spark.read.format("delta").load(str(path)).select("id", "customer", "amount").collect())
    except Exception:  # no table yet
        return {}


@dataclass
class Targets:
    """A running shop with the table `orders`, and the places that the examples write to."""

    shop: Shop
    database: str
    folder: Path
    server: Server

    def upstream(self) -> Table:
        return rows(self.shop.database.execute("SELECT * FROM orders"))

    def postgres(self) -> Table:
        with psycopg.connect(self.database) as connection:
            return rows(connection.execute("SELECT * FROM orders").fetchall())

    def change(self, *statements: str) -> None:
        """Execute statements in one transaction."""
        with self.shop.database.connect() as session, session.transaction():
            for statement in statements:
                session.execute(statement)


@pytest.fixture
def targets(
    start_spark_shop: Callable[..., Shop], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Targets:
    monkeypatch.setattr("penstock.engine.sink_runner.LONGEST_TRANSIENT_PAUSE", 0.1)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    shop = start_spark_shop(f"{TABLE}; INSERT INTO orders SELECT n, 'c' || n, n FROM generate_series(1, 1200) n")
    shop.database.execute(f"CREATE SCHEMA target; SET search_path = target; {TABLE}")
    other = f"{shop.database.url}{'&' if '?' in shop.database.url else '?'}options=-csearch_path%3Dtarget"
    monkeypatch.setenv("TARGET_DATABASE", other)
    monkeypatch.setenv("TARGET_FOLDER", str(tmp_path))
    monkeypatch.setenv("TARGET_URL", server.url)
    return Targets(shop, other, tmp_path, server)


FIRST = (
    "DELETE FROM orders WHERE id > 3",
    "UPDATE orders SET customer = NULL, amount = 0.5 WHERE id = 1",
    "UPDATE orders SET id = 10 WHERE id = 2",
    "INSERT INTO orders VALUES (2, '', NULL), (4, 'a \"b\", c', 1)",
    "DELETE FROM orders WHERE id = 4",
)
SECOND = (
    "INSERT INTO orders VALUES (20, 'x', 1)",
    "TRUNCATE orders",
    "INSERT INTO orders VALUES (1, 'y', 2), (21, 'z', 3)",
    "DELETE FROM orders WHERE id = 21",
)


@pytest.mark.deep
def test_postgres_and_http(targets: Targets) -> None:
    import to_postgres  # type: ignore[import-not-found]

    targets.shop.home.sink("copy", "shop.orders", repeated(to_postgres.copy_orders))
    targets.shop.home.sink("to_http", "shop.orders", "to_http:send")

    def equal() -> bool:
        return targets.upstream() == targets.postgres() == targets.server.table()

    until(equal, "the rows in both targets")
    assert len(targets.server.batches) == 3, "500 rows in a batch"
    for statements in (FIRST, SECOND):
        targets.change(*statements)
        until(equal, "the changes in both targets")


@pytest.mark.deep
def test_delta(targets: Targets) -> None:
    import to_delta  # type: ignore[import-not-found]

    shop, folder = targets.shop, targets.folder
    shop.home.sink("copy", "shop.orders", repeated(to_delta.merge))
    shop.home.sink("history", "shop.orders", repeated(to_delta.append))

    def equal() -> bool:
        return delta(shop.spark, folder / "orders") == targets.upstream()

    until(equal, "the rows")
    for statements in (FIRST, SECOND):
        targets.change(*statements)
        until(equal, "the changes")

    def history() -> dict[str, int]:
        table = shop.spark.read.format("delta").load(str(folder / "history"))
        return dict(table.groupBy("_op").count().collect())

    until(lambda: "truncate" in history(), "the history")
    assert history() == {"snapshot": 1200, "insert": 5, "update": 2, "delete": 1199, "truncate": 1}


def test_page_shows_the_programs() -> None:
    programs = [(EXAMPLES / f"{name}.py").read_text(encoding="utf-8") for name in PROGRAMS]
    shown = blocks(DOCS / "how-to" / "write-to-your-own-code.md", "python")
    copied = [block for block in shown if "(df: DataFrame, " in block]
    assert len(copied) == 4
    assert [block for block in copied if not any(block in program for program in programs)] == []
