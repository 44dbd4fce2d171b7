"""A value per query: which analyses share one, and how long it is kept. These tests need no Spark."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark import query_identity
from penstock.spark.query_identity import ByQuery


class Reference:
    """A weak reference of the JVM; the test decides when its object is collected."""

    def __init__(self, to: object) -> None:
        self.to: object = to

    def get(self) -> object:
        return self.to


class Driver:
    """A Spark driver that is analyzing a query."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.tracker: object = object()
        self.tags: str | None = None
        self.references: list[Reference] = []
        monkeypatch.setattr(query_identity, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.executed: list[str] = []
        sql = SimpleNamespace(
            catalyst=SimpleNamespace(QueryPlanningTracker=SimpleNamespace(get=self._option)),
            connect=SimpleNamespace(
                service=SimpleNamespace(SparkConnectService=SimpleNamespace(listActiveExecutions=self._executions))
            ),
        )
        jvm = SimpleNamespace(
            org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(sql=sql))),
            java=SimpleNamespace(
                lang=SimpleNamespace(
                    System=SimpleNamespace(identityHashCode=lambda _: 7),  # hash codes are not unique
                    ref=SimpleNamespace(WeakReference=self._reference),
                )
            ),
        )
        context = SimpleNamespace(_jvm=jvm, getLocalProperty=lambda _: self.tags)
        numbers = itertools.count(1)
        spark: Any = SimpleNamespace(sparkContext=context)
        self.values: ByQuery[int] = ByQuery(spark, lambda: next(numbers))

    def _option(self) -> SimpleNamespace:
        return SimpleNamespace(isDefined=lambda: True, get=lambda: self.tracker)

    def _executions(self) -> SimpleNamespace:
        """The operations, as a `Right`, or the time since which there is none, as a `Left`."""
        tags = [SimpleNamespace(jobTag=lambda tag=tag: f"SparkConnect_OperationTag_{tag}") for tag in self.executed]
        listed = SimpleNamespace(size=lambda: len(tags), apply=lambda at: tags[at])
        option = SimpleNamespace(get=lambda: listed)
        return SimpleNamespace(isLeft=lambda: not tags, toOption=lambda: option)

    def _reference(self, to: object) -> Reference:
        self.references.append(Reference(to))
        return self.references[-1]

    def analyze(self, tracker: object, operation: str | None = None) -> int:
        self.tracker = tracker
        self.tags = f"mine,SparkConnect_OperationTag_{operation}" if operation else "mine"
        return self.values.current()


def test_names_of_one_analysis_share_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, one, other = Driver(monkeypatch), object(), object()
    assert [driver.analyze(one), driver.analyze(other), driver.analyze(one)] == [1, 2, 1]


def test_all_analyses_of_a_connect_operation_share_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, part, whole = Driver(monkeypatch), object(), object()
    assert driver.analyze(part, "a") == driver.analyze(whole, "a") == 1
    assert driver.analyze(part, "b") == 2, "the same plan in another operation"
    assert driver.analyze(part) == 3, "a plan that is analyzed outside of an operation"


def test_a_value_is_kept_while_its_query_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, one = Driver(monkeypatch), object()
    driver.analyze(one)
    driver.now = 3000.0
    assert driver.analyze(one) == 1
    driver.references[0].to = None
    driver.now += 59.0
    assert driver.analyze(object()) == 2
    assert len(driver.values._kept) == 2, "Connect analyzes an operation in several steps"
    driver.now += 2.0
    driver.analyze(object())
    assert len(driver.values._kept) == 2, "the query has ended"


def test_a_value_is_not_kept_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, one = Driver(monkeypatch), object()
    driver.analyze(one)
    driver.now = 3601.0
    assert driver.analyze(one) == 2


def test_a_value_is_kept_while_spark_connect_executes_its_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM may keep what belongs to an operation long after it has ended, until it collects garbage."""
    driver = Driver(monkeypatch)
    driver.analyze(object(), "a")
    driver.analyze(object(), "b")
    driver.executed = ["a"]
    driver.now = 59.0
    driver.values.forget_ended()
    assert len(driver.values._kept) == 2, "Connect analyzes an operation in several steps"
    driver.now = 7200.0
    driver.values.forget_ended()
    assert [kept.value for kept in driver.values._kept] == [1]
    driver.executed = []
    driver.values.forget_ended()
    assert not driver.values._kept
