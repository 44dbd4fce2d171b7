"""The change log implementations under test: add one to `LOGS`, and the whole suite runs on it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.changelog.chunks import ITEMS, ORDERS
from tests.servers import SharedBroker

from penstock.changelog.interface import ChangeLog, ChangeLogReader, ChangeLogWriter
from penstock.changelog.kafka.log import KafkaLog
from penstock.changelog.sqlite.log import SqliteLog
from penstock.positions import Lsn

START = Lsn(10)


def sqlite_log(folder: Path, request: pytest.FixtureRequest) -> ChangeLog:
    return SqliteLog(folder / "log" / "shop.db")


def kafka_log(folder: Path, request: pytest.FixtureRequest) -> ChangeLog:
    broker: SharedBroker = request.getfixturevalue("broker")
    return KafkaLog(broker.bootstrap, f"penstock.{uuid.uuid4().hex}")


LOGS: dict[str, Callable[[Path, pytest.FixtureRequest], ChangeLog]] = {"sqlite": sqlite_log, "kafka": kafka_log}


@pytest.fixture(params=list(LOGS))
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChangeLog]:
    created = LOGS[request.param](tmp_path, request)
    assert not created.exists()
    created.create(START)
    yield created
    created.remove()
    assert not created.exists()


@pytest.fixture
def writer(log: ChangeLog) -> Iterator[ChangeLogWriter]:
    with closing(log.writer()) as opened:
        opened.define(ORDERS, START)
        opened.define(ITEMS, START)
        yield opened


@pytest.fixture
def reader(log: ChangeLog) -> Iterator[ChangeLogReader]:
    with closing(log.reader()) as opened:
        yield opened
