"""URLs of Kafka logs: parsing and formatting, rejected URLs, and that no secret is printed."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.changelog.kafka.clients import resolved_settings
from penstock.changelog.kafka.log import KafkaLog
from penstock.changelog.log_url import check_log_url, log_at
from penstock.errors import DefiniteError, UsageError

SECURE = (
    "kafka://b1:9092,b2:9093/some.prefix?sasl.password=env:KAFKA_PASSWORD"
    "&sasl.username=u%26v&security.protocol=SASL_SSL"
)


def test_a_url_names_a_log() -> None:
    log = KafkaLog.parse(SECURE, "shop")
    assert (log.brokers, log.name) == ("b1:9092,b2:9093", "some.prefix.shop")
    assert dict(log.settings) == {
        "sasl.password": "env:KAFKA_PASSWORD",
        "sasl.username": "u&v",
        "security.protocol": "SASL_SSL",
    }
    assert KafkaLog.parse(log.url(), "shop") == log
    assert pickle.loads(pickle.dumps(log)) == log
    assert hash(log) == hash(KafkaLog.parse(SECURE, "shop"))


def test_the_url_of_a_source_names_its_log(tmp_path: Path) -> None:
    assert log_at(tmp_path, "shop", check_log_url(SECURE)) == KafkaLog.parse(SECURE, "shop")
    assert not isinstance(log_at(tmp_path, "shop", None), KafkaLog)
    with pytest.raises(UsageError):
        check_log_url("kafka://b?sasl.password=hunter2")


@pytest.mark.parametrize("url", ["kafka://localhost", "kafka://localhost/", "kafka://[::1]:9092"])
def test_prefix_is_optional(url: str) -> None:
    log = KafkaLog.parse(url, "shop")
    assert log.name == "penstock.shop"
    assert KafkaLog.parse(log.url(), "shop") == log


def test_order_of_settings_does_not_matter() -> None:
    one = KafkaLog.parse("kafka://b?security.protocol=SSL&ssl.ca.location=/ca", "shop")
    assert one == KafkaLog.parse("kafka://b?ssl.ca.location=/ca&security.protocol=SSL", "shop")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://b:9092", "kafka://"),
        ("kafka://", "kafka://"),
        ("kafka:b:9092", "kafka://"),
        ("kafka://[::1", "kafka://"),
        ("kafka://b1:9092,,b2", "host and port"),
        ("kafka://b:port", "host and port"),
        ("kafka://b/sp ace", "name of a Kafka topic"),
        ("kafka://b/" + "x" * 250, "name of a Kafka topic"),
        ("kafka://b?acks=0", "'acks' is not a setting"),
        ("kafka://b?transactional.id=mine", "'transactional.id' is not a setting"),
        ("kafka://b?isolation.level=read_uncommitted", "is not a setting"),
        ("kafka://b?security.protocol", "cannot be parsed"),
        ("kafka://b?client.id=a&client.id=b", "twice"),
    ],
)
def test_invalid_log_url_is_rejected(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        KafkaLog.parse(url, "shop")
    assert caught.value.hint


@pytest.mark.parametrize(
    "given",
    [
        "?sasl.password=hunter2",
        "?ssl.key.password=hunter2",
        "?ssl.keystore.password=hunter2",
        "?sasl.oauthbearer.client.secret=hunter2",
        "?sasl.oauthbearer.config=hunter2",
        "?ssl.key.pem=hunter2",
        "?password=hunter2",
    ],
)
def test_plaintext_secret_is_rejected_and_not_printed(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        KafkaLog.parse(f"kafka://b{given}", "shop")
    assert caught.value.hint
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.__cause__)


def test_user_info_in_the_url_is_rejected_and_not_printed() -> None:
    with pytest.raises(UsageError, match="before its brokers") as caught:
        KafkaLog.parse("kafka://me:hunter2@b:9092", "shop")
    assert "hunter2" not in str(caught.value)


def test_secrets_are_read_when_a_client_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret_file = tmp_path / "secret"
    log = KafkaLog.parse(f"kafka://b?sasl.password=file:{secret_file}&sasl.username=env:KAFKA_USER", "shop")
    with pytest.raises(DefiniteError, match=str(secret_file)):
        resolved_settings(log.settings)
    secret_file.write_text("hunter2\n", encoding="utf-8")
    monkeypatch.setenv("KAFKA_USER", "me")
    assert resolved_settings(log.settings) == {"sasl.password": "hunter2", "sasl.username": "me"}
    assert "hunter2" not in f"{log!r} {log} {log.url()}"
