"""Server-sent events of a running home: the history first, then the status as it changes."""

from __future__ import annotations

import pytest
from tests.server.clients import events, no_spark, over_tcp

from penstock.home import Home
from penstock.server import events as events_module
from penstock.server.address import Address
from penstock.server.serving import serve
from penstock.testing.memory_tables import MemoryTables

BANK = "CREATE SOURCE bank FROM LOAD GENERATOR BANK WITH (rate = 100, accounts = 50)"


@pytest.mark.usefixtures("in_process")
def test_numbers_change_while_a_source_runs(home: Home) -> None:
    home.sql(BANK)
    with home.run(MemoryTables()) as running, serve(home, no_spark, "127.0.0.1:0") as serving:
        running.wait_live()
        with over_tcp(serving.address) as client, client.stream("GET", "/api/events") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["x-accel-buffering"] == "no"
            stream = events(response)
            name, history = next(stream)
            assert name == "history"
            assert "source:bank" in history["series"]
            assert len(history["series"]["source:bank"]["lag_ms"]) == len(history["at"])
            durable, times = set[str](), [history["at"][-1]]
            while len(durable) < 3:
                name, data = next(stream)
                assert name == "status"
                (source,) = data["status"]["sources"]
                durable.add(source["durable"])
                assert {table["name"] for table in source["tables"]} == {"bank.accounts", "bank.transfers"}
                assert data["history"]["series"].keys() == {
                    "source:bank",
                    "table:bank.accounts",
                    "table:bank.transfers",
                }
                assert data["history"]["at"] >= times[-1]
                times.append(data["history"]["at"])


def test_later_client_gets_the_history_of_earlier_samples(server: Address) -> None:
    with over_tcp(server) as client:
        with client.stream("GET", "/api/events") as response:
            stream = events(response)
            seen = [data["history"]["at"] for name, data in (next(stream) for _ in range(3)) if name == "status"]
        with client.stream("GET", "/api/events") as response:
            name, history = next(events(response))
        assert name == "history"
        assert set(seen) <= set(history["at"])


def test_number_of_event_streams_is_limited(server: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "_CLIENTS", 1)
    with over_tcp(server) as client, client.stream("GET", "/api/events") as response:
        stream = events(response)
        next(stream)
        refused = client.get("/api/events")
        assert refused.status_code == 503
        assert refused.json()["error"]["hint"]
        next(stream)


def test_heartbeat_while_no_sample_arrives(server: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "_HEARTBEAT_SECONDS", 0.01)
    with over_tcp(server) as client, client.stream("GET", "/api/events") as response:
        assert next(line for line in response.iter_lines() if line.startswith(":"))
