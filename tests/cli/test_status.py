"""`penstock status`: the documented JSON format, and its text output."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.commands import penstock
from tests.conftest import Database

from penstock.cli.status import render
from penstock.engine.status_document import HomeStatus, ReaderStatus, SinkStatus, SourceStatus, TableStatus
from penstock.home import open_home

TABLE = {
    "name": "shop.orders",
    "upstream": "public.orders",
    "state": "pending",
    "position": None,
    "behind": 0,
    "error": None,
    "hint": None,
    **dict.fromkeys(["copied_rows", "copied_bytes", "estimated_rows", "estimated_bytes", "waiting"]),
    "changes": None,
    "lag_ms": None,
    "reason": None,
    "readable_at": None,
    "rows": None,
}


def test_json_format(tmp_path: Path, database: Database) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE notes (body text)")
    home = open_home(tmp_path / "home")
    home.create(database.url, "shop")
    try:
        answer = penstock("status", "--json", "--home", home.path)
    finally:
        home.drop("shop")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert list(found) == ["version", "home", "running", "sources", "debts", "sinks", "process", "disk", "alarms"]
    assert (found["debts"], found["sinks"]) == ([], [])
    assert (found["version"], found["home"], found["running"]) == (1, str(home.path), None)
    (source,) = found["sources"]
    assert list(source) == [
        *("name", "kind", "at", "state", "valid", "durable", "committed_at", "latency_ms", "lag_bytes"),
        *("error", "hint", "log", "tables", "readers", "part_of", "shard", "waiting", "valid_from"),
        *("complete_until", "log_bytes", "retain_history", "clock_skew_ms", "slot", "capture_errors"),
    ]
    assert source["log"] is None
    assert source["readers"] == [{"name": "tables", "position": source["valid"], "expires": None, "lag_ms": 0.0}]
    assert source["slot"].items() >= {"name": "penstock_shop", "active": False, "wal_status": "reserved"}.items()
    assert source["slot"]["retained_bytes"] >= 0
    assert source["log_bytes"] > 0
    assert found["disk"]["free_bytes"] <= found["disk"]["total_bytes"]
    assert (source["name"], source["kind"], source["state"]) == ("shop", "POSTGRES", "ready")
    assert source["at"] == f"127.0.0.1:{database.server.port}/{database.name}"
    assert source["valid"] == source["durable"]
    assert source["lag_bytes"] >= 0
    notes, orders = source["tables"]
    assert orders == TABLE | {"changes": orders["changes"]}
    assert list(notes) == list(TABLE)
    assert notes["state"] == "failed"
    assert notes["error"].startswith("table has no primary key")
    assert notes["hint"].startswith("Run: ALTER TABLE")


def test_empty_home(tmp_path: Path) -> None:
    open_home(tmp_path)
    assert json.loads(penstock("status", "--json", "--home", tmp_path).out)["sources"] == []
    assert "no sources yet; try: penstock run" in penstock("status", "--home", tmp_path).out


def rendered(status: HomeStatus, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(status))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def home_status() -> HomeStatus:
    """A source with a failed table, whose names look like Rich markup."""
    live = TableStatus("shop.orders", "public.orders", "live", "0/16B3748", 1234, None, None)
    failed = TableStatus("shop.[red]x", "public.[red]x", "failed", None, 0, "it has [no] key", "Run: ALTER TABLE x;")
    source = SourceStatus(
        *("shop", "POSTGRES", "db:5432/shop", "ready", "0/1", "0/16B3800", None, 12.3, 4096, None, None, None),
        [live, failed],
        [ReaderStatus("tables", "0/16B3748", None), ReaderStatus("query 1", "0/1", "2026-11-15T07:15:58.101+00:00")],
    )
    return HomeStatus(1, "home", 4711, [source])


def test_text_output(home_status: HomeStatus) -> None:
    lines = rendered(home_status).splitlines()
    assert lines[0] == "home home (running, pid 4711)"
    assert lines[1] == (
        "shop from POSTGRES db:5432/shop: ready, durable 0/16B3800, lag 4,096 bytes, commit to readable 12 ms"
    )
    assert lines[3].split() == ["shop.orders", "public.orders", "live", "0/16B3748", "1,234"]
    assert lines[4].split() == ["shop.[red]x", "public.[red]x", "failed", "0"]
    assert lines[5] == "history from 0/1; needed by tables at 0/16B3748"
    assert lines[6:] == ["public.[red]x: it has [no] key", "hint: Run: ALTER TABLE x;"]


def test_sinks_are_shown_with_their_errors(home_status: HomeStatus) -> None:
    running = SinkStatus("out", "shop", "orders", "[b] at k:9092", "upsert", "json", "running", "0/16B3748", 1234)
    failed = SinkStatus(
        *("all", "shop", None, "shop.* at k:9092", "changes", "avro", "failed"), error="no [x]", hint="Fix it."
    )
    lines = rendered(replace(home_status, sinks=[running, failed])).splitlines()[8:]
    assert lines[0].split() == ["sink", "from", "into", "envelope", "state", "position", "behind"]
    assert lines[1].split() == [
        *("out", "shop.orders", "[b]", "at", "k:9092", "upsert", "running", "0/16B3748", "1,234")
    ]
    assert lines[2].split() == ["all", "shop", "shop.*", "at", "k:9092", "changes", "failed"]
    assert lines[3:] == ["all: no [x]", "hint: Fix it."]


def test_snapshots_are_shown_with_rows_bytes_and_what_they_wait_for(home_status: HomeStatus) -> None:
    (source,) = home_status.sources
    values = ("pending", None, 0, None, None)
    copying = TableStatus("shop.a", "public.a", *values, 1500, 2_000_000, 6000, 8_000_000)
    waiting = [TableStatus(f"shop.{n}", f"public.{n}", *values, waiting="waiting for pid 7") for n in "bc"]
    text = rendered(replace(home_status, sources=[replace(source, tables=[copying, *waiting])]))
    assert "public.a: copied 1,500 of about 6,000 rows, 2.0 MB of about 8.0 MB" in text
    assert text.count("snapshot: waiting for pid 7") == 1


def test_names_are_not_cut_on_a_narrow_terminal(home_status: HomeStatus) -> None:
    text = rendered(home_status, width=60)
    assert "shop.orders" in text
    assert "public.orders" in text
