"""Sinks that are restarted, fenced, cut off from their brokers, or too far behind: every change once, in order."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.engine import test_shards
from tests.engine.shop import Shop
from tests.engine.sink_topics import committed
from tests.engine.test_shards import Shards
from tests.servers import SharedBroker, unique

from penstock.catalog.states import SinkState
from penstock.catalog.store import Catalog
from penstock.engine import sink_runner
from penstock.engine.sink_runner import SinkRunner
from penstock.engine.sinks import sink_reader
from penstock.engine.status_document import SinkStatus
from penstock.layout import catalog_path
from penstock.model import SHARD
from penstock.positions import Lsn
from penstock.sinks import delivery
from penstock.testing.kafka import start_kafka
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until

SETUP = """
CREATE TABLE public.accounts (id int PRIMARY KEY, balance int NOT NULL, counter int NOT NULL);
CREATE TABLE public.transfers (id serial PRIMARY KEY, xid bigint);
INSERT INTO public.accounts SELECT n, 100, 0 FROM generate_series(1, 5) n
"""
TRANSFER = """
WITH one AS (UPDATE accounts SET balance = balance - 1, counter = counter + 1 WHERE id = {one}),
    other AS (UPDATE accounts SET balance = balance + 1, counter = counter + 1 WHERE id = {other})
INSERT INTO transfers (xid) VALUES (pg_current_xact_id()::text::bigint)
"""
second_database, shards = test_shards.second_database, test_shards.shards


class Bank:
    """Accounts and transfers, with a sink of ENVELOPE CHANGES."""

    def __init__(self, shop: Shop, broker: str) -> None:
        self.shop, self.broker, self.prefix = shop, broker, f"{unique('bank')}."
        create(shop, broker, self.prefix)

    @contextmanager
    def load(self) -> Iterator[None]:
        """Transfer in a thread, until the end of the block."""
        stop = threading.Event()

        def write() -> None:
            number = 0
            with self.shop.database.connect() as connection:
                while not stop.wait(0.005):
                    number += 1
                    connection.execute(TRANSFER.format(one=number % 5 + 1, other=(number + 2) % 5 + 1))

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def values(self, table: str) -> list[Any]:
        found = committed(self.broker, f"{self.prefix}public.{table}")
        return [json.loads(message.value) for message in found if message.value]

    def check(self) -> None:
        """Check that the topics have every change once, each account in order, and whole transactions."""
        until(lambda: delivered(self.shop), "the sink to deliver everything")
        counters = dict(self.shop.database.execute("SELECT id, counter FROM accounts WHERE counter > 0"))
        accounts, transfers = self.values("accounts"), self.values("transfers")
        seen: defaultdict[int, list[int]] = defaultdict(list)
        for change in accounts:
            seen[change["after"]["id"]].append(change["after"]["counter"])
        assert seen == {number: list(range(1, last + 1)) for number, last in counters.items()}
        xids = {xid for (xid,) in self.shop.database.execute("SELECT xid FROM transfers")}
        assert sorted(change["xid"] for change in transfers) == sorted(xids)
        positions = {change["xid"]: change["position"] for change in transfers}
        assert sorted(change["xid"] for change in accounts) == sorted([*xids, *xids])
        assert all(change["position"] == positions[change["xid"]] for change in accounts)


def create(shop: Shop, broker: str, prefix: str, **options: Any) -> None:
    fixed = {"envelope": "changes", "format": "json", "snapshot": False, "partitions": 2}
    shop.home.create_sink("out", "shop", broker=broker, topic_prefix=prefix, **{**fixed, **options})
    until(lambda: (found := shop.catalog.sinks.get("out")) and found.started, "the sink to start")


def status(shop: Shop) -> SinkStatus:
    return next(sink for sink in shop.home.status().sinks if sink.name == "out")


def delivered(shop: Shop, source: str = "shop") -> bool:
    lsn = Lsn.parse(shop.database.execute("SELECT pg_current_wal_lsn()::text")[0][0])
    until(lambda: shop.home.frontiers(source).durable >= lsn, "capture")
    return status(shop).behind == 0


def test_sink_that_is_restarted_under_load(start_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    bank = Bank(start_shop(SETUP), broker.bootstrap)
    with bank.load():
        for number in range(5):
            before = status(bank.shop).position
            bank.shop.home.alter_sink("out", client_id=f"restart-{number}")
            until(lambda before=before: status(bank.shop).position != before, "progress")  # type: ignore[misc]
    bank.check()


def fenced(sink: SinkStatus) -> bool:
    """Return whether a sink reports another writer, with a hint."""
    if "another process writes sink" not in (sink.error or ""):
        return False
    assert "Run one process for each home" in (sink.hint or "")
    return True


def test_second_process_fences_the_first(start_shop: Callable[..., Shop], broker: SharedBroker) -> None:
    bank = Bank(start_shop(SETUP), broker.bootstrap)
    shop, reported = bank.shop, list[str]()
    record = shop.catalog.sinks.get("out")
    assert record is not None
    with bank.load():
        other = SinkRunner(shop.home.path, Catalog(catalog_path(shop.home.path)), record, "shop", reported.append)
        until(lambda: fenced(status(shop)), "a sink to be fenced")
        before = status(shop).position
        until(lambda: status(shop).position != before, "progress of one of them")
        other.stop()
        until(lambda: status(shop).error is None, "the sink to continue alone")
    bank.check()
    assert reported == []


@pytest.mark.deep
def test_broker_that_is_stopped(
    start_shop: Callable[..., Shop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_WRITE_SECONDS", 3.0)  # until then, the client waits for the brokers
    with start_kafka(tmp_path / "broker") as own:
        bank = Bank(start_shop(SETUP), own.bootstrap)
        with bank.load():
            until(lambda: status(bank.shop).messages, "messages")
            own.stop()
            captured = bank.shop.home.frontiers("shop").durable
            until(lambda: status(bank.shop).error, "the error of the sink", 60)
            assert "brokers" in (status(bank.shop).hint or "")
            assert status(bank.shop).state == SinkState.RUNNING
            until(lambda: bank.shop.home.frontiers("shop").durable > captured, "capture to continue")
            own.start()
            until(lambda: status(bank.shop).error is None, "the sink to recover")
        bank.check()


# -- shards ------------------------------------------------------------------------------------------------------------


def test_shards_in_one_topic(shards: Shards, broker: SharedBroker, in_process: None) -> None:
    shards.both("CREATE TABLE orders (id int PRIMARY KEY, body text)")
    shards.create()
    prefix, store = f"{unique('shards')}.", MemoryTables()
    fixed: dict[str, Any] = {"envelope": "upsert", "format": "json", "snapshot": False, "partitions": 1}
    shards.home.create_sink("out", "shards", broker=broker.bootstrap, topic_prefix=prefix, **fixed)
    topic = f"{prefix}public.orders"

    def has_messages(count: int) -> bool:
        return len(committed(broker.bootstrap, topic)) >= count

    for count in range(3):  # the home is restarted
        with shards.home.run(store, print) as running:
            running.wait_live(PATIENCE)
            until(lambda: len(_sink(shards).started) == 2, "the sink to start")
            for database in (shards.one, shards.two):
                database.execute(f"INSERT INTO orders VALUES ({count}, 'of {database.name}')")
            until(partial(has_messages, 2 * count + 2), "messages")
    found = [(json.loads(m.key or b""), json.loads(m.value or b"")) for m in committed(broker.bootstrap, topic)]
    for database in (shards.one, shards.two):
        name = database.name
        assert [pair for pair in found if pair[0][SHARD] == name] == [
            ({SHARD: name, "id": number}, {"id": number, "body": f"of {name}", SHARD: name}) for number in range(3)
        ]
    assert len(found) == 6


def _sink(shards: Shards) -> Any:
    found = shards.catalog.sinks.get("out")
    assert found is not None
    assert found.error is None, found.error
    return found


# -- retain limit ------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that is ahead."""

    ahead = timedelta()

    @classmethod
    def now(cls, zone: Any) -> datetime:
        return datetime.now(zone) + cls.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(Clock, "ahead", timedelta())
    monkeypatch.setattr(sink_runner, "datetime", Clock)
    return Clock


def leases(shop: Shop) -> dict[str, Lsn]:
    with closing(shop.catalog.log("shop").reader()) as reader:
        return {lease.reader: lease.at for lease in reader.leases()}


def test_retain_limit_of_a_failed_sink(
    start_shop: Callable[..., Shop], broker: SharedBroker, clock: type[Clock]
) -> None:
    shop, prefix = start_shop(SETUP), f"{unique('late')}."
    create(shop, broker.bootstrap, prefix, retain_limit="1 hour")
    until(lambda: delivered(shop), "the sink to deliver everything")
    shop.catalog.sinks.set_state("out", SinkState.FAILED, error="topic does not exist", hint="Create it.")
    until(lambda: ("out", "shop") not in shop.running._sinks._running, "the sink to stop")
    shop.database.execute(TRANSFER.format(one=1, other=2))
    until(lambda: (status(shop).behind or 0) > 0, "a change that is not delivered")
    assert sink_reader("out") in leases(shop)
    clock.ahead = timedelta(hours=2)
    until(lambda: "retain limit" in (status(shop).error or ""), "the limit to be enforced")
    found = status(shop)
    assert found.state == SinkState.FAILED
    assert "history after" in (found.error or "") and "is released" in (found.error or "")
    assert "Drop the sink and create it again" in (found.hint or "")
    until(lambda: sink_reader("out") not in leases(shop), "the history to be released")


def test_retain_limit_of_a_sink_that_is_not_behind(
    start_shop: Callable[..., Shop], broker: SharedBroker, clock: type[Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_LEASE_SECONDS", 0.0)
    monkeypatch.setattr(delivery, "_IDLE_SECONDS", 3600.0)  # as just after the position was written
    shop, prefix = start_shop(SETUP), f"{unique('idle')}."
    create(shop, broker.bootstrap, prefix, retain_limit="1 hour")
    shop.database.execute(TRANSFER.format(one=1, other=2))
    until(lambda: delivered(shop), "the sink to deliver everything")
    shop.database.execute("CREATE TABLE other (id int)")
    until(lambda: delivered(shop), "capture")
    rounds = _count_rounds(shop)
    clock.ahead = timedelta(hours=2)
    until(lambda: rounds() > 2, "the limit to be checked")
    assert (status(shop).state, status(shop).error) == (SinkState.RUNNING, None)


def _count_rounds(shop: Shop) -> Callable[[], int]:
    """Count how often the running home has looked at its sinks."""
    counted, runners = list[None](), shop.running._sinks
    settle = runners._settle

    def counting(record: Any) -> None:
        settle(record)
        counted.append(None)

    runners._settle = counting  # type: ignore[method-assign]
    return lambda: len(counted)
