"""Sinks in the catalog: their records, states and errors."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.catalog.sinks import SinkRecord, Sinks
from penstock.catalog.states import SinkState
from penstock.catalog.store import Catalog
from penstock.errors import TransientError

ORDERS = SinkRecord("orders_out", "shop", "KAFKA", '{"a": 1}')


@pytest.fixture
def sinks(tmp_path: Path) -> Sinks:
    sinks = Catalog(tmp_path / "home" / "penstock.db").sinks
    sinks.add(ORDERS)
    return sinks


def stored(sinks: Sinks, name: str = "orders_out") -> SinkRecord:
    """Return a sink without the time of its creation."""
    found = sinks.get(name)
    assert found is not None
    assert found.created_at
    return replace(found, created_at="")


def test_a_sink_is_stored_and_removed(sinks: Sinks) -> None:
    assert stored(sinks) == ORDERS
    sinks.add(SinkRecord("everything", "bank", "KAFKA", "{}"))
    assert [record.name for record in sinks.all()] == ["everything", "orders_out"]
    assert [record.name for record in sinks.all("shop")] == ["orders_out"]
    with pytest.raises(sqlite3.IntegrityError):
        sinks.add(ORDERS)
    sinks.remove("orders_out")
    assert sinks.get("orders_out") is None


def test_errors_and_states(sinks: Sinks) -> None:
    sinks.note_error("orders_out", "broker down", "Start it.")
    assert stored(sinks) == replace(ORDERS, error="broker down", hint="Start it.")
    sinks.note_error("orders_out")
    sinks.mark_started("orders_out", "shop")
    sinks.mark_started("orders_out", "other")
    assert stored(sinks) == replace(ORDERS, started=frozenset({"shop", "other"}))
    sinks.set_state("orders_out", SinkState.FAILED, error="message too large", hint="Increase the limit.")
    failed = stored(sinks)
    assert (failed.state, failed.error, failed.hint) == (SinkState.FAILED, "message too large", "Increase the limit.")
    sinks.note_error("orders_out")  # by the thread of another shard, which works
    assert stored(sinks) == failed


def test_altered_options_start_a_failed_sink_again(sinks: Sinks) -> None:
    sinks.set_state("orders_out", SinkState.FAILED, error="broken", hint="Fix it.")
    sinks.alter("orders_out", ORDERS.spec, '{"a": 2}')
    assert stored(sinks) == replace(ORDERS, spec='{"a": 2}')
    with pytest.raises(TransientError, match="changed concurrently"):
        sinks.alter("orders_out", ORDERS.spec, '{"a": 3}')


def test_a_dropped_sink_does_not_come_back(sinks: Sinks) -> None:
    sinks.set_state("orders_out", SinkState.DROPPING)
    sinks.set_state("orders_out", SinkState.RUNNING)
    sinks.set_state("orders_out", SinkState.FAILED, error="late")
    assert stored(sinks) == replace(ORDERS, state=SinkState.DROPPING)
    with pytest.raises(TransientError):
        sinks.alter("orders_out", ORDERS.spec, "{}")


def test_a_catalog_without_sinks_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "penstock.db"
    Catalog(path)
    with closing(sqlite3.connect(path)) as db:
        dropped = "".join(f"ALTER TABLE source_table DROP COLUMN {name};" for name in ("code", "reason"))
        db.executescript(
            f"DROP TABLE sink; DROP TABLE kept_base; DROP TABLE row_count; {dropped} PRAGMA user_version = 11"
        )
    assert Catalog(path).sinks.all() == []
