"""Tasks that Spark retries while it writes messages, and what its event log contains, in a session of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.sink_topics import committed
from tests.servers import SharedBroker, unique

from penstock.kafka_client.spark_options import spark_connection_options
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sinks.kafka.topics import TopicSettings, ensure_topics
from penstock.testing.waiting import PATIENCE

PROGRAM = Path(__file__).with_name("retry_program.py")
PASSWORD = "c4nary-passw0rd"


@pytest.mark.deep
def test_messages_after_a_retried_task_wait(
    broker: SharedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, topic = unique("writer"), unique("retries")
    broker.add_user(user, PASSWORD)
    monkeypatch.setenv("SINK_PASSWORD", PASSWORD)
    sink = KafkaSink.of(
        "out",
        "shop",
        "orders",
        broker=f"127.0.0.1:{broker.doors.sasl_port}",
        topic=topic,
        format="json",
        envelope="upsert",
        delivery="at least once",
        security_protocol="SASL_SSL",
        sasl_mechanisms="SCRAM-SHA-256",
        sasl_username=user,
        sasl_password="env:SINK_PASSWORD",
        ssl_ca_location=str(broker.doors.tls / "ca.crt"),
    )
    ensure_topics(sink.client_settings(), {topic: TopicSettings(partitions=1)})
    given = {
        "folder": str(tmp_path),
        "topic": topic,
        "options": spark_connection_options(sink.broker, sink, tmp_path / "private" / "out.properties"),
        "settings": sink.client_settings(),
    }
    ran = subprocess.run(
        [sys.executable, PROGRAM],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "error": "sink out waits until no message of its interrupted write can arrive any more",
        "position": "0/2",
    }
    found = [(each.key, each.value) for each in committed(broker.bootstrap, topic)]
    assert found[0] == (b"key", b"first")
    assert sorted(found[1:]) == [(b"row%d" % number, b"row%d" % number) for number in range(3)]
    events = "".join(file.read_text() for file in (tmp_path / "events").rglob("*") if file.is_file())
    assert "sasl.jaas.config" in events, "the options are logged, as references"
    assert PASSWORD not in events
    assert PASSWORD not in ran.stderr
