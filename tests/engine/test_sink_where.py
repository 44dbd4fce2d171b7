"""Option where of sinks: created, shown and rejected in SQL and in Python, and what consumers see in real topics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.shop import Shop
from tests.engine.sink_topics import committed, wait_sink
from tests.servers import SharedBroker, unique

from penstock.errors import UsageError
from penstock.home import Home
from penstock.sql.show_statements import Answer
from penstock.testing.waiting import until

KAFKA = "INTO KAFKA BROKER 'k1:9092'"
BIDS = f"CREATE SINK bids_out FROM shop.bids {KAFKA} TOPIC 'bids' FORMAT JSON ENVELOPE UPSERT"
COLUMNS = "id int PRIMARY KEY, status text, amount numeric, notes text"
ROWS = "(1, 'draft', 1, repeat('long', 2000)), (2, 'paid', 2.50, repeat('long', 2000)), (3, NULL, 3, 'c')"
SETUP = f"""
CREATE TABLE public.orders ({COLUMNS});
ALTER TABLE orders ALTER notes SET STORAGE EXTERNAL; -- an UPDATE omits them, if they do not change
INSERT INTO orders VALUES {ROWS};
CREATE TABLE public.items ({COLUMNS});
ALTER TABLE items ALTER notes SET STORAGE EXTERNAL;
ALTER TABLE items REPLICA IDENTITY FULL
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.sql("CREATE SOURCE shop FROM LOAD GENERATOR AUCTION")
    return home


def shown(home: Home, sink: str) -> str:
    answer = home.sql(f"SHOW CREATE SINK {sink}")
    assert isinstance(answer, Answer)
    return str(answer.rows[0][-1])


def test_condition_is_part_of_the_statement(home: Home) -> None:
    home.sql(f"{BIDS} WITH (where = 'amount > 10 AND id <> 7')")
    statement = shown(home, "bids_out")
    assert "where = 'amount > 10 AND id <> 7'" in statement
    spec = home.sink_spec("bids_out")
    home.drop_sink("bids_out")
    home.sql(statement)
    assert home.sink_spec("bids_out") == spec
    home.drop_sink("bids_out")
    options: dict[str, Any] = {"broker": "k1:9092", "topic": "bids", "format": "json", "envelope": "upsert"}
    home.create_sink("bids_out", "shop.bids", where="amount > 10 AND id <> 7", **options)
    assert home.sink_spec("bids_out") == spec


@pytest.mark.parametrize("statement", ["{0}", "EXPLAIN SINK {1}"])
@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("amoun > 10", 'column "amoun" in option "where" does not exist'),
        ("amount > ''a''", 'is not a valid value for column "amount"'),
        ("amount >", 'syntax error in option "where"'),
        ("abs(amount) > 10", 'option "where" does not support ABS'),
        ("", "where"),
    ],
)
def test_invalid_condition_is_rejected(home: Home, statement: str, condition: str, message: str) -> None:
    text = f"{BIDS} WITH (where = '{condition}')"
    with pytest.raises(UsageError, match=message):
        home.sql(statement.format(text, text.removeprefix("CREATE SINK ")))
    assert home.status().sinks == []


def test_condition_requires_a_single_table_and_is_fixed(home: Home) -> None:
    with pytest.raises(UsageError, match='option "where" requires a single table'):
        home.sql(
            f"CREATE SINK o FROM shop {KAFKA} TOPIC PREFIX 's.' FORMAT JSON ENVELOPE UPSERT WITH (where = 'id > 1')"
        )
    home.sql(BIDS)
    with pytest.raises(UsageError, match="where of sink bids_out cannot be changed: rows that were left out"):
        home.sql("ALTER SINK bids_out SET (where = 'amount > 1')")


class Filtered:
    """A sink of one table with a condition."""

    def __init__(self, shop: Shop, broker: SharedBroker, table: str, envelope: str, **options: Any) -> None:
        self._shop, self._broker, self._topic = shop, broker.bootstrap, unique(envelope)
        self._name = f"{table}_{envelope}"
        options = {"format": "json", "partitions": 1, "where": WHERE, **options}
        shop.home.create_sink(
            self._name, f"shop.{table}", broker=self._broker, topic=self._topic, envelope=envelope, **options
        )
        wait_sink(shop.catalog, self._name)

    def messages(self, count: int) -> list[tuple[Any, Any]]:
        """Return all messages: so many, in one partition."""

        def are_there() -> bool:
            (error,) = [sink.error for sink in self._shop.home.status().sinks if sink.name == self._name]
            assert error is None
            return len(committed(self._broker, self._topic)) >= count

        until(are_there, f"{count} messages")
        found = committed(self._broker, self._topic)
        assert len(found) == count
        decode = bytes.decode if self._topic.startswith("transactions") else json.loads
        return [(each.key and decode(each.key), each.value and json.loads(each.value)) for each in found]


WHERE = "status <> 'draft' AND notes IS NOT NULL AND amount > 1e-10"
WORKLOAD = [
    "UPDATE {0} SET status = 'paid' WHERE id = 1",  # enters
    "UPDATE {0} SET amount = 20 WHERE id = 2",  # stays
    "UPDATE {0} SET amount = 30 WHERE id = 3",  # was out, is out
    "UPDATE {0} SET status = 'draft' WHERE id = 1",  # leaves
    "UPDATE {0} SET id = 4 WHERE id = 2",  # stays, with another key
    "DELETE FROM {0} WHERE id IN (1, 3)",  # was out
    "DELETE FROM {0} WHERE id = 4",
]


@pytest.mark.deep
def test_messages_with_the_key_of_old_rows(start_spark_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    """Without old rows, a row that does not pass is deleted, whether consumers have it or not."""
    shop = start_spark_shop(SETUP)
    upsert, debezium = (Filtered(shop, broker, "orders", name) for name in ("upsert", "debezium"))
    assert [(key["id"], value["status"]) for key, value in upsert.messages(1)] == [(2, "paid")]
    for statement in WORKLOAD:
        shop.database.execute(statement.format("orders"))
    shop.database.execute("INSERT INTO orders VALUES (5, 'draft', 5, ''), (6, 'paid', 6, '')")
    shop.database.execute("TRUNCATE orders")
    (notes,) = {value["notes"] for _, value in upsert.messages(1 + 9 + 2)[:1]}
    assert len(notes) > 2000
    rows = [
        (2, {"id": 2, "status": "paid", "amount": "2.50", "notes": notes}),
        (1, {"id": 1, "status": "paid", "amount": "1", "notes": notes}),
        (2, {"id": 2, "status": "paid", "amount": "20", "notes": notes}),
        (3, None),
        (1, None),
        (2, None),
        (4, {"id": 4, "status": "paid", "amount": "20", "notes": notes}),
        (1, None),
        (3, None),
        (4, None),
        (6, {"id": 6, "status": "paid", "amount": "6", "notes": ""}),
        (6, None),
    ]
    assert [(key["id"], value) for key, value in upsert.messages(len(rows))] == rows
    # Each DELETE is followed by a tombstone; an UPDATE of the key is a DELETE and an INSERT; TRUNCATE has no record.
    records = [(key["id"], value) for key, value in debezium.messages(11 + 6) if value is not None]
    assert [(key, value["op"]) for key, value in records] == [
        *[(2, "r"), (1, "u"), (2, "u"), (3, "d"), (1, "d"), (2, "d"), (4, "c"), (1, "d"), (3, "d"), (4, "d"), (6, "c")]
    ]
    assert [value["after"]["notes"] for _, value in records[:3]] == [notes] * 3
    assert all(value["before"] is None or value["before"]["notes"] is None for _, value in records)


def test_messages_with_whole_old_rows(start_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    """With old rows, consumers see a history of the rows that pass, and nothing else."""
    shop = start_shop(SETUP)
    names = ("changes", "debezium", "transactions")
    sinks = {name: Filtered(shop, broker, "items", name, snapshot=False) for name in names}
    shop.database.execute(f"INSERT INTO items VALUES {ROWS}".replace("(1,", "(10,").replace("(2,", "(20,"))
    for statement in ["UPDATE items SET id = id / 10 WHERE id >= 10", *WORKLOAD]:
        shop.database.execute(statement.format("items"))
    changes = [value for _, value in sinks["changes"].messages(7)]
    assert [(one["op"], (one["before"] or {}).get("id"), (one["after"] or {}).get("id")) for one in changes] == [
        ("insert", None, 20),
        ("update", 20, 2),
        ("insert", None, 1),
        ("update", 2, 2),
        ("delete", 1, None),
        ("update", 2, 4),
        ("delete", 4, None),
    ]
    assert changes[3]["before"]["amount"] == "2.50"
    assert {one["status"] for change in changes for one in (change["before"], change["after"]) if one} == {"paid"}
    records = [(key["id"], value["op"]) for key, value in sinks["debezium"].messages(13) if value is not None]
    expected = [(20, "c"), (20, "d"), (2, "c"), (1, "c"), (2, "u"), (1, "d"), (2, "d"), (4, "c"), (4, "d")]
    assert records == expected
    transactions = [value for _, value in sinks["transactions"].messages(7)]
    assert [[change["op"] for change in one["changes"]] for one in transactions] == [[one["op"]] for one in changes]
