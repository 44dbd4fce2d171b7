"""The server of the real ``penstock run``: up before Spark, ready with it, and no obstacle to a stop."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from penstock.server.address import Address, running_server
from penstock.testing.waiting import until
from tests.cli.commands import penstock
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock
from tests.server.clients import events, over_tcp, over_unix

pytestmark = pytest.mark.deep


def test_page_of_a_running_home(penstock_run: Penstock, shop_and_bank: Database) -> None:
    penstock_run.options = ("--listen", "127.0.0.1:0")
    penstock_run.home.mkdir(mode=0o755)  # as the administrator of a machine may create it
    penstock_run.start()
    server = until(lambda: found_server(penstock_run), "the server")
    assert server is not None
    with over_tcp(server) as client:
        starting = client.get("/readyz")
        assert starting.status_code == 503
        assert any("Spark" in reason for reason in starting.json()["reasons"])
        assert client.get("/healthz").status_code == 200
        until(lambda: is_ready(penstock_run, client), "Spark and the sources")
        until(lambda: all(state == "live" for state in states(client)), "the initial snapshot")
        assert readable_by_others(penstock_run.home) == []
        shown = json.loads(penstock("status", "--json", "--home", penstock_run.home).out)
        served = client.get("/api/status").json()
        assert shown.keys() == served.keys()
        assert shown["running"] == served["running"] == server.pid
        assert 'penstock_source_up{source="demo"} 1.0' in client.get("/metrics").text
        assert server.url in penstock("run", "--home", penstock_run.home).assert_error(3).hint
        with over_unix(server) as local:
            assert local.get("/readyz").json() == {"status": "ready", "reasons": []}
        follow_until_stopped(penstock_run, client, shop_and_bank)
    assert running_server(penstock_run.home) is None


def follow_until_stopped(penstock_run: Penstock, client: httpx.Client, database: Database) -> None:
    """The events show a new transaction; a stop ends them, and they do not delay it."""
    with client.stream("GET", "/api/events") as response:
        stream = events(response)
        assert next(stream)[0] == "history"
        before = next(stream)[1]["status"]["sources"][0]["durable"]
        with database.connect() as connection:
            connection.execute("UPDATE bank.accounts SET balance = balance")
        while next(stream)[1]["status"]["sources"][0]["durable"] == before:
            penstock_run.require_running()
        assert penstock_run.interrupt() == 0, penstock_run.output.read_text()
        assert all(name == "status" for name, _ in stream)


def readable_by_others(folder: Path) -> list[Path]:
    """Return the files and folders of a folder that other users can read, or enter."""
    found = [path for path in folder.iterdir() if path.stat().st_mode & 0o077]
    return found + [inside for path in found if path.is_dir() for inside in readable_by_others(path)]


def found_server(penstock_run: Penstock) -> Address | None:
    penstock_run.require_running()
    return running_server(penstock_run.home)


def is_ready(penstock_run: Penstock, client: httpx.Client) -> bool:
    penstock_run.require_running()
    return client.get("/readyz").status_code == 200


def states(client: httpx.Client) -> list[str]:
    return [table["state"] for source in client.get("/api/status").json()["sources"] for table in source["tables"]]
