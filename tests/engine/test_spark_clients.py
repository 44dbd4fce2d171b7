"""Spark Connect of a running home follows Spark through restarts. These tests need no Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import spark_clients
from penstock.errors import TransientError, UsageError
from penstock.home import Home
from penstock.spark.connect_server import ConnectAddress
from penstock.spark_clients import serve_spark_clients
from penstock.testing.waiting import until

ADDRESS = "127.0.0.1:15902"


class Calls:
    """Records in which session names were defined and declared, and where the server was started and stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, Any]] = []
        self.failure: Exception | None = None
        monkeypatch.setattr(spark_clients, "_POLL_SECONDS", 0.01)
        monkeypatch.setattr(Home, "undated", lambda *_: None)
        monkeypatch.setattr(ConnectAddress, "check", lambda _: None)
        monkeypatch.setattr(spark_clients, "start_connect", lambda spark, *_: self.made.append(("listen", spark)))
        monkeypatch.setattr(spark_clients, "stop_connect", lambda spark: self.made.append(("stop", spark)))
        monkeypatch.setattr(spark_clients, "LiveNames", self.names)

    def names(self, spark: Any, _: Callable[[str | None], Any]) -> Any:
        self.made.append(("names", spark))
        return self

    def declare(self, _: Any) -> None:
        self.made.append(("declare", None))
        if self.failure is not None:
            raise self.failure

    def release_ended(self) -> None:
        self.made.append(("release", None))

    def of(self, session: object) -> list[str]:
        return [what for what, where in self.made if where is session]


def test_names_and_server_follow_a_restarted_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, reported = Calls(monkeypatch), list[str]()
    running: list[Any] = []
    refused = []

    def spark() -> Any:
        if not running:
            refused.append(1)
            message = "Spark is being started"
            raise TransientError(message)
        return running[-1]

    with serve_spark_clients(Home(tmp_path), spark, ADDRESS, reported.append):
        until(lambda: len(refused) > 1, "attempts before Spark has started")
        first, second = object(), object()
        running.append(first)
        until(lambda: calls.made.count(("declare", None)) > 2, "names to be brought up to date repeatedly")
        until(lambda: ("release", None) in calls.made, "the history of ended queries to be released")
        running.clear()
        before = len(refused)
        until(lambda: len(refused) > before + 1, "attempts while Spark restarts")
        running.append(second)
        until(lambda: "listen" in calls.of(second), "the server in the new Spark")
    assert calls.of(first) == ["names", "listen"], "names exist before a client can connect"
    assert calls.of(second) == ["names", "listen", "stop"]
    assert [text.partition(",")[0] for text in reported] == ["Spark Connect: sc://localhost:15902"] * 2


def test_an_error_is_reported_once_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, reported, session = Calls(monkeypatch), list[str](), object()
    calls.failure = UsageError("this Spark application already has another table or view shop.orders")
    with serve_spark_clients(Home(tmp_path), lambda: session, ADDRESS, reported.append):  # type: ignore[arg-type, return-value]
        until(lambda: calls.made.count(("declare", None)) > 2, "the third attempt")
    assert calls.of(session) == ["names", "listen", "stop"]
    assert reported[1:] == [f"Spark Connect: {calls.failure.message}"]


def test_an_invalid_address_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError), serve_spark_clients(Home(tmp_path), pytest.fail, "15002", pytest.fail):
        pass
