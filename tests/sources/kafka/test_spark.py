"""Spark reads through the guarded doors of a real broker, and shows none of the secrets, wherever one looks.

One JVM serves all tests. To show that looking finds what is there to be found, one read has its password in an option,
as one would without Penstock: it is in what Spark shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.sources.kafka.conftest import KEY_PASSWORD, MESSAGES, PARTITIONS, PASSWORD, TOPIC, Guarded

from penstock.sources.kafka.spark_options import spark_options
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.start import Start
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.testing.kafka_security import PLAIN_USER

PROGRAM = Path(__file__).with_name("spark_program.py")
CANARY, LEAK, WRONG = "c4nary-", "l3ak-password", "c4nary-hunter2"
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
    start = Start().spark_options(TOPIC, PARTITIONS)
    return spark_options(what, how, name, folder / "private") | start | {"kafka.default.api.timeout.ms": "20000"}


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
    clear = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="{LEAK}";'
    batches["leak"] = {**batches["scram"], "kafka.sasl.jaas.config": clear}
    out = folder / "out"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(out)],
        input=json.dumps({"batches": batches, "streams": {"streamed": batches["scram"]}}),
        env={**os.environ, "PENSTOCK_SPARK_LOG": "info"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    told = json.loads(done.stdout.splitlines()[-1])
    return Seen(told, dict(everything(told, done.stderr, out)))


def everything(told: dict[str, Any], log: str, folder: Path) -> Iterator[tuple[str, str]]:
    yield "log", log
    yield "ui", "\n".join(told["ui"])
    for name, read in told.items():
        if name != "ui":
            yield f"{name}: plans", "\n".join(read["plans"])
            yield f"{name}: error", read.get("error", "")
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.relative_to(folder).parts[0], path.read_bytes().decode("utf-8", errors="replace")


@pytest.mark.parametrize("way", ["scram", "plain", "certificate", "locked", "streamed"])
def test_all_messages_are_read(way: str, seen: Seen) -> None:
    assert seen.told[way].get("error") is None
    assert seen.told[way]["values"] == ALL


def test_a_wrong_password_is_refused(seen: Seen) -> None:
    assert "SaslAuthenticationException" in seen.told["wrong"]["error"]


def test_no_secret_is_to_be_seen(seen: Seen, guarded: Guarded) -> None:
    key = Path(guarded.tls("client.key")).read_text(encoding="utf-8").splitlines()[1]
    assert all(secret.startswith(CANARY) for secret in (PASSWORD, KEY_PASSWORD, WRONG))
    for secret in (CANARY, PLAIN_USER[1], key):
        assert seen.places_of(secret) == set()


def test_looking_finds_what_is_there(seen: Seen) -> None:
    assert seen.places_of("told-openly") >= {"log"}
    assert seen.places_of(LEAK) != set()
    assert {"log", "ui", "events", "checkpoint", "scram: plans", "streamed: plans"} <= set(seen.shown)
    assert seen.places_of("KafkaRelation") >= {"ui", "events", "scram: plans"}
