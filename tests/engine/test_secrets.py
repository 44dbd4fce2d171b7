"""Canary passwords are searched for in everything that is stored, shown or logged: they must not appear anywhere."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.servers import SharedBroker, unique

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.source_runner import CaptureSupervisor
from penstock.errors import PenstockError
from penstock.home import Home
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import PATIENCE, until

CANARY, WRONG, KAFKA = "canary-7Yq'r1ght", "canary-wr0ng&Zx", "canary-k4fka+Wv"
SETUP = "CREATE TABLE t (id int PRIMARY KEY, body text); INSERT INTO t SELECT n, 'x' FROM generate_series(1, 100) n"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A server that requires a password."""
    hba = ["host all,replication person 127.0.0.1/32 scram-sha-256"]
    with start_postgres(fsync=False, hba=hba) as server:
        quoted = CANARY.replace("'", "''")
        server.execute(f"CREATE ROLE person LOGIN SUPERUSER PASSWORD '{quoted}'")
        server.execute(SETUP)
        server.create_database("second")
        server.execute(SETUP, "second")
        yield server


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """A file with the password."""
    path = tmp_path / "password"
    path.write_text(CANARY)
    return path


def has_canary(text: str | bytes) -> bool:
    """Whether a text contains a secret: in plaintext, URL-encoded, or in base64."""
    found = text.encode() if isinstance(text, str) else text
    for secret in (CANARY, WRONG, KAFKA):
        forms = [secret.encode(), quote(secret).encode(), json.dumps(secret)[1:-1].encode()]
        forms += [base64.b64encode(b"x" * lead + secret.encode())[4:-4] for lead in range(3)]
        if any(form in found for form in forms):
            return True
    return False


def files_with_canary(folder: Path) -> list[Path]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    assert paths
    return [path for path in paths if has_canary(path.read_bytes())]


def processes_with_canary() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [command.decode("utf-8", "replace")] if has_canary(command) else []
    return found


def printed(home: Home) -> str:
    """Everything that a home reports about itself."""
    return "\n".join([json.dumps(home.status().as_json()), home.metrics(), repr(home.sql("SHOW SOURCES"))])


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


def executed_plans(spark: SparkSession) -> list[str]:
    """The plans of all queries that Spark has executed, including snapshots and merges."""
    kept = spark._jsparkSession.sharedState().statusStore().executionsList()
    runs = [kept.apply(place) for place in range(kept.size())]
    return [f"{run.description()}\n{run.details()}\n{run.physicalPlanDescription()}" for run in runs]


def full_text(error: BaseException | None) -> str:
    """The full text of an error and its causes."""
    return "" if error is None else f"{error!r}\n{error}\n{full_text(error.__cause__)}\n{full_text(error.__context__)}"


def test_canaries_are_detected(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\0password=" + CANARY.encode())
    assert files_with_canary(tmp_path) == [tmp_path / "file"]
    assert all(has_canary(base64.b64encode(b"?" * lead + KAFKA.encode() + b"!!")) for lead in range(5))
    assert has_canary(f"http://person:{quote(WRONG)}@host")
    assert not has_canary("canary")


def test_running_source(
    server: EmbeddedPostgres,
    password: Path,
    tmp_path: Path,
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "py4j")  # py4j logs every call
    monkeypatch.delenv("PGPASSWORD", raising=False)
    home, reported = Home(tmp_path / "home"), list[str]()
    home.create(server.url_for("postgres", "person"), "shop", password=f"file:{password}")
    with home.run(spark, reported.append) as running:
        running.wait_live(PATIENCE)
        server.execute("INSERT INTO t VALUES (101, 'y')")
        assert all(verdict.equal for verdict in home.verify(spark, "shop"))
        live = home.live(spark).table("shop.t")
        reader = spark.read.format("penstock").option("home", str(home.path)).option("source", "shop")
        reader = reader.option("table", "public.t")
        frames = [live, *(reader.option("rows", rows).load() for rows in ("live", "changes"))]
        assert [frame.count() > 0 for frame in frames] == [True] * 3
        assert not any(has_canary(plan(frame)) for frame in frames)
        assert processes_with_canary() == []
        assert not has_canary(printed(home))
        password.write_text(WRONG)
        server.restart()
        until(lambda: "password" in str(home.status().sources[0].error), "the login of capture to fail")
        assert not has_canary(printed(home))
    plans = executed_plans(spark)
    assert any("penstock" in plan for plan in plans)
    assert not any(map(has_canary, plans))
    assert not has_canary("\n".join(reported) + caplog.text)
    assert files_with_canary(home.path) == []
    password.write_text(CANARY)
    home.drop("shop")
    assert files_with_canary(home.path) == []


@pytest.mark.deep
def test_passwords_from_the_environment(
    server: EmbeddedPostgres, broker: SharedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For Postgres, and for the Kafka broker of the change log."""
    monkeypatch.setenv("CANARY_OF_POSTGRES", CANARY)
    monkeypatch.setenv("CANARY_OF_KAFKA", KAFKA)
    home, url = Home(tmp_path / "home"), server.url_for("second", "person")
    log = f"kafka://{broker.bootstrap}/{unique('shop')}?sasl.username=person&sasl.password=env:CANARY_OF_KAFKA"
    home.create(url, "shop", password="env:CANARY_OF_POSTGRES", log=log)
    capture = CaptureSupervisor(home.path, "shop")
    try:
        before = home.frontiers("shop").durable
        server.execute("INSERT INTO t VALUES (101, 'y')", "second")
        until(lambda: home.frontiers("shop").durable > before, "capture")
        assert processes_with_canary() == []
        assert not has_canary(printed(home))
    finally:
        capture.stop()
    wrong = log.replace("?", "?security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN&").replace("/shop", "/other")
    with pytest.raises(PenstockError) as caught:
        home.create(url, "other", password="env:CANARY_OF_POSTGRES", log=wrong)
    assert not has_canary(full_text(caught.value))
    home.drop("shop")
    assert files_with_canary(home.path) == []


REJECTED: list[dict[str, Any]] = [
    {"password": WRONG},
    {"password": "env:CANARY_OF_POSTGRES"},
    {"log": f"kafka://broker:9092?sasl.password={quote(KAFKA)}"},
]


@pytest.mark.parametrize("options", REJECTED, ids=lambda options: ",".join(options))
def test_rejected_options_are_not_repeated_in_the_error(
    server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("CANARY_OF_POSTGRES", WRONG)
    home = Home(tmp_path / "home")
    with pytest.raises(PenstockError) as caught:
        home.create(server.url_for("second", "person"), "shop", **options)
    assert not has_canary(full_text(caught.value))
    assert home.sources() == []
    assert files_with_canary(home.path) == []


def test_password_in_a_url_is_not_repeated_in_the_error(server: EmbeddedPostgres, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    address = server.url_for("second", "person").replace("person", f"person:{quote(WRONG, safe='')}", 1)
    with pytest.raises(PenstockError) as caught:
        home.create(address, "shop")
    assert not has_canary(full_text(caught.value))
