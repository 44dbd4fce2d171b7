"""``/readyz`` says why the home is not ready."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from tests.server.clients import no_spark, over_tcp

from penstock.engine.status_document import HomeStatus, SourceStatus
from penstock.errors import DefiniteError
from penstock.home import Home
from penstock.server.serving import serve
from penstock.testing.waiting import until


def source(name: str, state: str) -> SourceStatus:
    return SourceStatus(*(name, "POSTGRES", "db", state, None, None, None, None, None, None, None, None), [], [])


def readiness(home: Home, status: Any, spark: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    monkeypatch.setattr(home, "status", lambda watches: status())
    with serve(home, spark, "127.0.0.1:0") as serving, over_tcp(serving.address) as client:
        until(lambda: "not been read yet" not in client.get("/readyz").text, "the first sample")
        answer = client.get("/readyz")
        assert client.get("/healthz").status_code == 200
    return answer.status_code, answer.json()["reasons"]


def spark() -> SparkSession:
    return cast(SparkSession, None)


@pytest.mark.parametrize(
    ("running", "states", "reasons"),
    [
        (None, ["ready"], ["no source runs yet"]),
        (7, [], []),
        (7, ["ready"], []),
        (7, ["ready", "failed"], []),
        (7, ["failed", "creating"], ['source "s0" is failed', 'source "s1" is creating']),
    ],
)
def test_sources(
    home: Home, monkeypatch: pytest.MonkeyPatch, running: int | None, states: list[str], reasons: list[str]
) -> None:
    sources = [source(f"s{number}", state) for number, state in enumerate(states)]
    found = readiness(home, lambda: HomeStatus(1, "home", running, sources), spark, monkeypatch)
    assert found == (503 if reasons else 200, reasons)


def test_spark_and_status(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> HomeStatus:
        raise DefiniteError("the disk is full", "Free some space.")

    assert readiness(home, unreadable, no_spark, monkeypatch) == (503, ["Spark is starting", "the disk is full"])
