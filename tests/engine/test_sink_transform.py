"""Option transform of sinks: in statements, and the example, executed on real Spark and real topics."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from tests.engine.shop import Shop
from tests.engine.sink_topics import committed, wait_sink
from tests.engine.test_sink_examples import EXAMPLES
from tests.servers import SharedBroker, SharedRegistry, unique
from tests.test_docs import DOCS, blocks

from penstock.catalog.states import SinkState
from penstock.errors import UsageError
from penstock.formats.schema_registry import Registry, RegistryAddress
from penstock.home import Home
from penstock.sql.script import split_statements
from penstock.sql.show_statements import Answer
from penstock.testing.waiting import until

KAFKA = "INTO KAFKA BROKER 'k1:9092'"
BIDS = f"CREATE SINK bids_out FROM shop.bids {KAFKA} TOPIC 'bids' FORMAT JSON ENVELOPE UPSERT"
UNCHANGED = "tests.sinks.row_functions:unchanged"
USERS = """
CREATE TABLE public.users (id int PRIMARY KEY, email text, phone text, name text);
INSERT INTO users VALUES (1, 'ann@Example.com', '555-0100', 'Ann'), (2, 'bot@test.example.com', '555-0101', 'Bot')
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.sql("CREATE SOURCE shop FROM LOAD GENERATOR AUCTION")
    return home


def test_function_is_part_of_the_statement(home: Home) -> None:
    home.sql(f"{BIDS} WITH (transform = '{UNCHANGED}')")
    answer = home.sql("SHOW CREATE SINK bids_out")
    assert isinstance(answer, Answer)
    statement = str(answer.rows[0][-1])
    assert f"transform = '{UNCHANGED}'" in statement
    spec = home.sink_spec("bids_out")
    home.drop_sink("bids_out")
    home.sql(statement)
    assert home.sink_spec("bids_out") == spec
    with pytest.raises(UsageError, match="option transform of sink bids_out cannot be changed"):
        home.alter_sink("bids_out", transform="tests.sinks.row_functions:without_drafts")
    home.drop_sink("bids_out")
    options: dict[str, Any] = {"broker": "k1:9092", "topic": "bids", "format": "json", "envelope": "upsert"}
    home.create_sink("bids_out", "shop.bids", transform=UNCHANGED, **options)
    assert home.sink_spec("bids_out") == spec


@pytest.mark.parametrize("statement", ["{0}", "EXPLAIN SINK {1}"])
@pytest.mark.parametrize(
    ("sink", "function", "message"),
    [
        (BIDS, "mask", 'invalid value for option "transform"'),
        (BIDS, "no_such_module:mask", "cannot be imported: No module named 'no_such_module'"),
        (BIDS, "tests.sinks.row_functions:nothing", "has no attribute 'nothing'"),
        (BIDS.replace("UPSERT", "DEBEZIUM"), UNCHANGED, "is invalid with ENVELOPE DEBEZIUM"),
        (BIDS.replace("shop.bids", "shop").replace("TOPIC", "TOPIC PREFIX"), UNCHANGED, "requires a single table"),
    ],
)
def test_invalid_function_is_rejected(home: Home, statement: str, sink: str, function: str, message: str) -> None:
    text = f"{sink} WITH (transform = '{function}')"
    with pytest.raises(UsageError, match=message):
        home.sql(statement.format(text, text.removeprefix("CREATE SINK ")))
    assert home.status().sinks == []


def test_function_on_the_page_is_that_of_the_example() -> None:
    (shown,) = [block for block in blocks(DOCS / "how-to" / "write-to-kafka.md", "python") if "def mask" in block]
    example = (EXAMPLES / "transform" / "masking.py").read_text(encoding="utf-8")
    lines = [line for line in shown.splitlines() if line]
    assert lines == [line for line in example.splitlines() if line in lines and line]


@pytest.mark.deep
def test_example(
    start_spark_shop: Callable[..., Shop],
    broker: SharedBroker,
    registry: SharedRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "transform"))
    shop, topic = start_spark_shop(USERS), unique("masked")
    text = (EXAMPLES / "transform" / "transform.sql").read_text(encoding="utf-8")
    (statement,) = [piece.text for piece in split_statements(text) if "CREATE SINK" in piece.text]
    addresses = {"k1:9092": broker.bootstrap, "http://registry:8081": registry.url, "shop.masked-users": topic}
    for old, new in addresses.items():
        statement = statement.replace(old, new)
    shop.home.sql(statement)
    failing = {"broker": broker.bootstrap, "topic": unique("failing"), "format": "json", "envelope": "changes"}
    name = "tests.sinks.row_functions:with_unknown_column"
    shop.home.create_sink("failing", "shop.users", transform=name, **failing)
    wait_sink(shop.catalog, "masked")
    shop.database.execute("INSERT INTO users VALUES (3, 'eve@example.com', '555-0103', 'Eve')")
    shop.database.execute("UPDATE users SET email = 'ann@example.org' WHERE id = 1")
    shop.database.execute("UPDATE users SET id = 4 WHERE id = 1")
    shop.database.execute("UPDATE users SET email = 'eve@test.example.com' WHERE id = 3")
    shop.database.execute("DELETE FROM users WHERE id = 4")
    schemas = Registry(RegistryAddress(url=registry.url))

    def decoded(framed: bytes | None) -> Any:
        if framed is None:
            return None
        registered = schemas.schema(int.from_bytes(framed[1:5], "big"))
        assert registered is not None
        return fastavro.schemaless_reader(io.BytesIO(framed[5:]), json.loads(registered.text), None)

    def state(name: str) -> SinkState:
        sink = shop.catalog.sinks.get(name)
        assert sink is not None
        return sink.state

    def are_there() -> bool:
        assert state("masked") is not SinkState.FAILED  # a busy machine causes timeouts, which are retried
        return len(committed(broker.bootstrap, topic)) >= 7

    until(are_there, "seven messages")
    found = [(decoded(each.key), decoded(each.value)) for each in committed(broker.bootstrap, topic)]
    ann = {"id": 1, "phone": "****0100", "name": "Ann", "domain": "example.com"}
    assert found == [
        ({"id": 1}, ann),
        ({"id": 3}, {"id": 3, "phone": "****0103", "name": "Eve", "domain": "example.com"}),
        ({"id": 1}, {**ann, "domain": "example.org"}),
        ({"id": 1}, None),
        ({"id": 4}, {**ann, "id": 4, "domain": "example.org"}),
        ({"id": 3}, None),
        ({"id": 4}, None),
    ]
    until(lambda: state("failing") is SinkState.FAILED, "the other sink to fail")
    (failed,) = [sink for sink in shop.home.status().sinks if sink.name == "failing"]
    assert "function tests.sinks.row_functions:with_unknown_column failed: AnalysisException" in (failed.error or "")


def test_without_spark_the_sink_fails(start_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    shop = start_shop(USERS)
    options: dict[str, Any] = {"broker": broker.bootstrap, "topic": unique("users"), "format": "json"}
    shop.home.create_sink("out", "shop.users", transform=UNCHANGED, envelope="upsert", **options)

    def state() -> SinkState:
        found = shop.catalog.sinks.get("out")
        assert found is not None
        return found.state

    until(lambda: state() is SinkState.FAILED, "the sink to fail")
    (sink,) = shop.home.status().sinks
    assert sink.error == "in-memory tables have no Spark session"
