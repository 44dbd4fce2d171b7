"""`/api/sql`: queries and statements in the running process, with Spark and a captured database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.conftest import created_database
from tests.engine.shop import Shop, running_shop

from penstock.cli.sql_sessions import LocalSession, RemoteSession
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import PenstockError
from penstock.positions import Lsn
from penstock.server.address import Address
from penstock.server.serving import serve
from penstock.testing.thread_capture import ThreadCapture
from penstock.testing.waiting import PATIENCE, until

SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, amount numeric(12, 2), note text, at timestamptz);
INSERT INTO orders SELECT n, n * 1.10, 'note ' || n, '2026-01-01T00:00:00.5Z' FROM generate_series(1, 40) n;
"""
ENDLESS = "SELECT java_method('java.lang.Thread', 'sleep', 3600000L) FROM shop.orders WHERE id = 1"


class Served:
    """A running home with its server."""

    def __init__(self, shop: Shop, address: Address) -> None:
        self.shop, self.address = shop, address
        self.local = httpx.Client(
            base_url="http://penstock",
            timeout=PATIENCE,
            transport=httpx.HTTPTransport(uds=address.socket, verify=False),
            trust_env=False,
        )
        self.tcp = httpx.Client(base_url=address.url, timeout=PATIENCE, trust_env=False, verify=False)

    def messages(self, sql: str, client: httpx.Client | None = None, **fields: Any) -> list[dict[str, Any]]:
        """Execute statements; return their messages."""
        response = (client or self.local).post("/api/sql", json={"sql": sql, **fields})
        return [json.loads(line) for line in response.text.splitlines()]

    def rows(self, sql: str, client: httpx.Client | None = None, **fields: Any) -> list[Any]:
        """Execute a query; return its rows."""
        head, *parts, done = self.messages(sql, client, **fields)
        assert "columns" in head, head
        assert "done" in done, done
        return [row for part in parts for row in part["rows"]]

    def error(self, sql: str, client: httpx.Client | None = None, **fields: Any) -> str:
        """Execute a statement that is refused; return the message."""
        response = (client or self.local).post("/api/sql", json={"sql": sql, **fields})
        assert response.status_code == 400, response.text
        document = response.json()["error"]
        assert document["hint"]
        return f"{document['code']}: {document['message']}"


@pytest.fixture(scope="module")
def served(
    spark: SparkSession, postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("penstock.engine.source_runner.CaptureSupervisor", ThreadCapture)
        patch.setattr("penstock.engine.leases._POLL_SECONDS", 0.1)
        database = stack.enter_context(created_database(postgres_server))
        home = tmp_path_factory.mktemp("sql") / "home"
        shop = stack.enter_context(running_shop(home, database, spark, SETUP))
        serving = stack.enter_context(serve(shop.home, lambda: spark, "127.0.0.1:0"))
        found = Served(shop, serving.address)
        stack.callback(found.local.close)
        stack.callback(found.tcp.close)
        yield found
        serving.check()


def test_query_streams_typed_rows_and_reports_its_position(served: Served) -> None:
    before = served.shop.home.frontiers("shop").durable
    head, *parts, done = served.messages("SELECT id, amount, note, at FROM shop.orders WHERE id < 3 ORDER BY id")
    assert [column["name"] for column in head["columns"]] == ["id", "amount", "note", "at"]
    assert [column["type"] for column in head["columns"]] == ["int", "decimal(12,2)", "string", "timestamp"]
    assert list(head["positions"]) == ["shop"]
    assert before <= Lsn.parse(head["positions"]["shop"]) <= served.shop.home.frontiers("shop").durable
    assert [row for part in parts for row in part["rows"]] == [
        [1, 1.10, "note 1", "2026-01-01T00:00:00.500000Z"],
        [2, 2.20, "note 2", "2026-01-01T00:00:00.500000Z"],
    ]
    assert (done["rows"], done["truncated"]) == (2, False)


def test_rows_up_to_the_limit(served: Served) -> None:
    found = served.messages("SELECT id FROM shop.orders", limit=7)
    assert sum(len(message["rows"]) for message in found[1:-1]) == 7
    assert (found[-1]["rows"], found[-1]["truncated"]) == (7, True)
    assert served.messages("SELECT id FROM shop.orders", limit=40)[-1]["truncated"] is False


def test_commits_are_seen_by_the_next_query(served: Served) -> None:
    served.shop.database.execute("INSERT INTO orders VALUES (1000, 0, 'new', now())")
    until(lambda: served.rows("SELECT note FROM shop.orders WHERE id = 1000") == [["new"]], "the new row")
    served.shop.database.execute("DELETE FROM orders WHERE id = 1000")
    until(lambda: served.rows("SELECT note FROM shop.orders WHERE id = 1000") == [], "its removal")


def test_small_tables_are_read_without_their_files(served: Served) -> None:
    ((plan,),) = served.rows("EXPLAIN SELECT count(*) FROM shop.orders")
    assert "LocalTableScan" in plan
    assert "FileScan" not in plan
    assert "Exchange" not in plan


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_query_releases_its_history_when_its_rows_are_sent(served: Served, form: str) -> None:
    """Otherwise the log of a home that is queried all day would never shrink."""

    def readers() -> list[str]:
        (message,) = served.messages("SHOW READERS LIKE 'live%'")
        return [row[0] for row in message["answer"]["rows"]]

    served.messages("SELECT id FROM shop.orders")
    until(lambda: not readers(), "earlier queries to release theirs")
    view = served.shop.home.live(served.shop.spark)
    assert readers(), "a view retains its history"
    served.local.post("/api/sql", json={"sql": "SELECT id FROM shop.orders", "format": form})
    view.close()
    until(lambda: not readers(), "all to be released")


def test_arrow_stream_has_rows_and_positions(served: Served) -> None:
    query = {"sql": "SELECT id, amount FROM shop.orders ORDER BY id", "format": "arrow", "limit": 3}
    response = served.local.post("/api/sql", json=query)
    assert response.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = pa.ipc.open_stream(response.content).read_all()
    assert table.column("id").to_pylist() == [1, 2, 3]
    assert table.schema.field("amount").type == pa.decimal128(12, 2)
    assert set(json.loads(table.schema.metadata[b"penstock.positions"])) == {"shop"}


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE SOURCE other FROM POSTGRES CONNECTION 'postgresql://x@127.0.0.1:1/x'",
        "EXPLAIN SOURCE other FROM POSTGRES CONNECTION 'postgresql://x@127.0.0.1:1/x'",
        "DROP SOURCE shop",
        "VERIFY shop",
        "SELECT 1; DROP SOURCE shop",
        "SET spark.sql.ansi.enabled = false",
        "ADD JAR '/tmp/x.jar'",
        "CREATE TABLE t AS SELECT 1",
        "INSERT INTO shop.orders SELECT 1",
        "WITH q AS (SELECT 1) INSERT INTO t SELECT * FROM q",
        "FROM shop.orders INSERT INTO a SELECT 1 INSERT INTO b SELECT 2",
        "CACHE TABLE shop.orders",
        "EXECUTE IMMEDIATE 'SET a = b'",
        "BEGIN SELECT 1; END",
        "EXPLAIN CREATE TABLE t AS SELECT 1",
        "SELECT TRANSFORM (id) USING 'cat' AS (a) FROM shop.orders",
        "SELECT * FROM shop.orders WHERE id IN (SELECT TRANSFORM (id) USING 'cat' AS (a) FROM shop.orders)",
        "WITH q AS (MAP id USING 'cat' FROM shop.orders) SELECT * FROM q",
        "SELECT reflect('java.lang.System', 'getProperty', 'user.home')",
        "SELECT java_method('java.lang.System', 'getProperty', 'user.home')",
        "SELECT * FROM text.`/etc/hostname`",
        "SELECT * FROM IDENTIFIER('text.`/etc/hostname`')",
        "SELECT * FROM delta.`{base}`",
        "SELECT * FROM delta.`{base}` VERSION AS OF 0",
        "SELECT * FROM spark_catalog.delta.`{base}`",
        "SELECT * FROM table_changes_by_path('{base}', 0)",
        "DESCRIBE delta.`{base}`",
        "SELECT count(*) FROM range(10)",
    ],
)
def test_read_only_requests_are_queries_of_live_tables(served: Served, statement: str) -> None:
    base = served.shop.home.path.absolute() / "lake" / "shop" / "orders"
    assert base.is_dir()
    text = statement.replace("{base}", str(base))
    for client, fields in ((served.tcp, {}), (served.local, {"read_only": True})):
        assert served.messages(text, client, **fields)[-1]["error"]["code"] == "UsageError"
    assert served.shop.home.names() == ["shop"]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM shop.orders",
        "WITH q AS (SELECT id FROM shop.orders) SELECT (SELECT max(id) FROM q)",
        "VALUES (1)",
        "EXPLAIN SELECT * FROM shop.orders",
        "DESCRIBE shop.orders",
        "SHOW COLUMNS FROM shop.orders",
        "FROM shop.orders |> AGGREGATE count(*)",
    ],
)
def test_read_only_requests_that_are_allowed(served: Served, statement: str) -> None:
    assert served.rows(statement, served.tcp)


def test_statements_need_full_access(served: Served) -> None:
    assert served.messages("SHOW SOURCES", served.tcp)[0]["answer"]["rows"][0][0] == "shop"
    assert "only queries" in served.error("ALTER SOURCE shop RETRY TABLE orders", served.tcp)
    assert served.messages("DROP SOURCE IF EXISTS other")[0]["answer"]["message"].startswith("source other does not")


def test_settings_stay_in_the_session(served: Served) -> None:
    setting = "SELECT current_timezone()"
    served.messages("SET TIME ZONE 'Asia/Tokyo'", session="one")
    assert served.rows(setting, session="one") == [["Asia/Tokyo"]]
    assert served.rows(setting, session="two") == served.rows(setting) == [["UTC"]]
    assert served.shop.spark.sql(setting).first() == ("UTC",)


def test_cancelled_query_ends_with_an_error(served: Served) -> None:
    with served.local.stream("POST", "/api/sql", json={"sql": ENDLESS}) as response:
        lines = response.iter_lines()
        query = json.loads(next(lines))["query"]
        until(lambda: _active_jobs(served), "its job")
        assert served.tcp.delete(f"/api/sql/{query}").status_code == 204
        assert json.loads(next(lines))["error"]["message"] == "the query was cancelled"
    until(lambda: not _active_jobs(served), "the end of its job")
    assert served.tcp.delete(f"/api/sql/{query}").status_code == 404


def test_closed_connection_cancels_the_query(served: Served) -> None:
    messages = RemoteSession(served.address).execute(ENDLESS)
    next(messages)
    until(lambda: _active_jobs(served), "its job")
    messages.close()
    until(lambda: not _active_jobs(served), "the end of its job")


def test_time_limit(served: Served) -> None:
    found = served.messages(ENDLESS, seconds=0.5)
    assert found[-1]["error"]["message"] == "the query exceeded the time limit of 0.5 seconds"
    until(lambda: not _active_jobs(served), "the end of its job")


def _active_jobs(served: Served) -> bool:
    """Whether a job of a query is running."""
    jobs: Any = served.shop.spark.sparkContext.statusTracker()
    context: Any = served.shop.spark.sparkContext
    return any(
        "penstock-query-" in str(context._jsc.sc().statusStore().job(number).jobTags())
        for number in jobs.getActiveJobsIds()
    )


def test_queries_run_at_the_same_time(served: Served) -> None:
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda n: served.rows(f"SELECT {n}, count(*) FROM shop.orders"), range(6)))
    assert found == [[[n, 40]] for n in range(6)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "the body"),
        ("[]", "the body"),
        ("{}", "sql"),
        ('{"sql": 1}', "sql"),
        ('{"sql": "SELECT 1", "limit": 0}', "limit"),
        ('{"sql": "SELECT 1", "format": "xml"}', "format"),
        ('{"sql": "SELECT 1", "surprise": 1}', "surprise"),
    ],
)
def test_invalid_requests(served: Served, body: str, message: str) -> None:
    response = served.local.post("/api/sql", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id, amount, at, note, ARRAY(id), NULL, true, double(0.1) FROM shop.orders ORDER BY id LIMIT 2",
        "SHOW TABLES;\nSELECT 1 AS a, 2 AS a",
        "SELECT * FROM VALUES (interval 1 day, map('a', 1.50), named_struct('x', binary('y')))",
        "SELECT 1;\nSELECT nothing FROM shop.orders",
        "SELECT 1;\n  SHOW SOURCEZ",
        "SELECT 1;\n  SELEC 2",
        "SELECT id / (id - 1) FROM shop.orders",
        "SELECT * FROM shop.orders AS OF LSN 'x'",
        ";",
    ],
)
def test_the_same_messages_with_and_without_the_running_process(served: Served, text: str) -> None:
    varying = ("query", "seconds", "positions")

    def results(session: LocalSession | RemoteSession) -> tuple[list[Any], str]:
        found: list[Any] = []
        error = ""
        try:
            for message in session.execute(text):
                found.append({key: value for key, value in message.items() if key not in varying})
        except PenstockError as failure:
            error = f"exit code {failure.exit_code}: {re.sub(r'penstock_[0-9a-f]{8}_', 'view_', str(failure))}"
        return found, error

    local = LocalSession(served.shop.home, lambda: served.shop.spark)
    assert results(RemoteSession(served.address)) == results(local)


def test_status_as_tables(served: Served) -> None:
    assert served.rows("SELECT name, kind FROM penstock.sources", served.tcp) == [["shop", "POSTGRES"]]
    joined = "SELECT t.name, o.id FROM penstock.tables t JOIN shop.orders o ON o.id = 7 WHERE t.behind >= 0"
    assert served.rows(joined) == [["shop.orders", 7]]
    assert served.rows("SELECT count(*) FROM penstock.errors") == [[0]]
    assert "has no history" in served.error("SELECT * FROM penstock.tables AS OF LSN '0/1'")


def test_subscription_sends_transactions_until_it_is_closed(served: Served) -> None:
    messages = RemoteSession(served.address).execute("SUBSCRIBE shop.orders")
    assert next(messages)["subscribed"] == "shop.orders"
    served.shop.database.execute("UPDATE orders SET note = 'seen' WHERE id = 1")
    transaction = next(messages)["transaction"]
    (change,) = transaction["tables"]["public.orders"]
    assert (change["op"], change["after"]["note"]) == ("update", "seen")
    readers = "SELECT count(*) FROM penstock.readers WHERE name LIKE 'tail%'"
    assert served.rows(readers) == [[1]]
    messages.close()
    until(lambda: served.rows(readers) == [[0]], "the release of its lease")


def test_subscription_begins_before_it_is_announced(served: Served) -> None:
    messages = LocalSession(served.shop.home, lambda: served.shop.spark).execute("SUBSCRIBE shop.orders")
    assert next(messages)["subscribed"] == "shop.orders"
    for note in ("first", "second"):
        served.shop.database.execute(f"UPDATE orders SET note = '{note}' WHERE id = 2")
    until(lambda: served.rows("SELECT note FROM shop.orders WHERE id = 2") == [["second"]], "the transactions")
    notes = [next(messages)["transaction"]["tables"]["public.orders"][0]["after"]["note"] for _ in range(2)]
    assert notes == ["first", "second"]


def test_completion(served: Served) -> None:
    assert RemoteSession(served.address).complete("SELECT * FROM sh") == ["shop"]
    assert "orders" in RemoteSession(served.address).complete("SELECT * FROM shop.")
