"""Every option, including those of the original design, maps to a client setting, or has a reason why not."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DefiniteError, UsageError
from penstock.sources.kafka.client_settings import TRANSLATIONS, librdkafka_settings, spark_options
from penstock.sources.kafka.option_syntax import UNSUPPORTED
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_start import start_of
from penstock.sources.kafka.with_options import KafkaWithOptions

# KafkaWithOptions of the design that this source follows, with its groups ssl, sasl and sasl.kerberos written out.
DESIGNED = {
    *("client_id", "cache", "group_id_prefix", "ignore_source_keys", "isolation_level", "security_protocol"),
    *("kafka_time_offset", "statistics_interval_ms", "start_offset", "timestamp_frequency_ms"),
    *("topic_metadata_refresh_interval_ms", "enable_auto_commit"),
    *("ssl_certificate_location", "ssl_key_location", "ssl_key_password", "ssl_ca_location"),
    *("sasl_mechanisms", "sasl_username", "sasl_password"),
    *("sasl_kerberos_keytab", "sasl_kerberos_kinit_cmd", "sasl_kerberos_min_time_before_relogin"),
    *("sasl_kerberos_principal", "sasl_kerberos_service_name"),
}
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
ENCRYPTED_KEY = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nBBBB\n-----END ENCRYPTED PRIVATE KEY-----\n"
SCRAM: dict[str, Any] = {"sasl_mechanisms": "SCRAM-SHA-256", "sasl_username": "me", "sasl_password": "env:KO_PASSWORD"}
MUTUAL = {"ssl_certificate_location": "c.pem", "ssl_key_location": "k.pem", "ssl_key_password": "env:KO_PASSWORD"}
KERBEROS = {"sasl_mechanisms": "GSSAPI", "sasl_kerberos_principal": "me@R", "sasl_kerberos_keytab": "/kt"}
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule"
KRB5 = "com.sun.security.auth.module.Krb5LoginModule required"
NOW = datetime(2026, 11, 16, tzinfo=UTC)
WHAT = KafkaSqlOptions.given(broker="k1:9092", topic="clicks", value_format="json")

Pairs = tuple[str | None, str | None]
# option: the given options, and its value in librdkafka and in Spark, with references to the private file resolved
EXAMPLES: dict[str, tuple[dict[str, Any], Pairs]] = {
    "security_protocol": ({"security_protocol": "ssl"}, ("SSL", "SSL")),
    "ssl_ca_location": ({"ssl_ca_location": "c.pem"}, ("{folder}/c.pem", CERTIFICATE)),
    "ssl_certificate_location": (MUTUAL, ("{folder}/c.pem", CERTIFICATE)),
    "ssl_key_location": (MUTUAL, ("{folder}/k.pem", ENCRYPTED_KEY)),
    "ssl_key_password": (MUTUAL, ('s=3:c\\r"et', 's=3:c\\r"et')),
    "sasl_mechanisms": (SCRAM, ("SCRAM-SHA-256", "SCRAM-SHA-256")),
    "sasl_username": (SCRAM, ("me", f'{JAAS} required username="me" password="s=3:c\\\\r\\"et";')),
    "sasl_password": (SCRAM, ('s=3:c\\r"et', f'{JAAS} required username="me" password="s=3:c\\\\r\\"et";')),
    "sasl_kerberos_service_name": ({**KERBEROS, "sasl_kerberos_service_name": "bus"}, ("bus", "bus")),
    "sasl_kerberos_principal": (
        {"sasl_mechanisms": "GSSAPI", "sasl_kerberos_principal": "me@R"},
        ("me@R", f'{KRB5} useTicketCache=true principal="me@R";'),
    ),
    "sasl_kerberos_keytab": (
        KERBEROS,
        ("/kt", f'{KRB5} useKeyTab=true storeKey=true keyTab="/kt" principal="me@R";'),
    ),
    "sasl_kerberos_kinit_cmd": ({**KERBEROS, "sasl_kerberos_kinit_cmd": "kinit"}, ("kinit", None)),
    "sasl_kerberos_min_time_before_relogin": (
        {**KERBEROS, "sasl_kerberos_min_time_before_relogin": 5000},
        ("5000", "5000"),
    ),
    "client_id": ({"client_id": "c"}, ("c", "c")),
    "group_id_prefix": ({"group_id_prefix": "g."}, ("g.shop", "g.shop")),
    "start_offset": ({"start_offset": (5,)}, (None, '{"clicks": {"0": 5, "1": -2}}')),
    "start_timestamp": ({"start_timestamp": "1970-01-01T00:00:05Z"}, (None, "5000")),
    "kafka_time_offset": ({"kafka_time_offset": -1000}, (None, str(int(NOW.timestamp()) * 1000 - 1000))),
    "isolation_level": ({"isolation_level": "READ_UNCOMMITTED"}, ("read_uncommitted", "read_uncommitted")),
    "statistics_interval_ms": ({"statistics_interval_ms": 100}, ("100", None)),
    "topic_metadata_refresh_interval_ms": ({"topic_metadata_refresh_interval_ms": 20}, ("20", "20")),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "c.pem").write_text(f"A comment\n{CERTIFICATE}", encoding="utf-8")
    (tmp_path / "k.pem").write_text(f"{CERTIFICATE}{ENCRYPTED_KEY}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KO_PASSWORD", 's=3:c\\r"et')
    return tmp_path


def resolve_pointers(options: dict[str, str]) -> dict[str, str]:
    """Resolve references to the private file, as Kafka's client does."""
    return {name: read_property(value) if value.startswith("${file:") else value for name, value in options.items()}


def read_property(pointer: str) -> str:
    _, path, key = pointer.removeprefix("${").removesuffix("}").split(":")
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    (value,) = [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), value)


def test_every_option_of_the_original_design_is_covered() -> None:
    assert DESIGNED - set(KafkaWithOptions.model_fields) == set(UNSUPPORTED)
    for name in UNSUPPORTED:
        with pytest.raises(UsageError, match=name):
            KafkaWithOptions.given(**{name: True})


def test_every_option_has_a_client_setting_or_a_reason() -> None:
    assert set(TRANSLATIONS) == set(KafkaWithOptions.model_fields)
    nameless = [o for o, n in TRANSLATIONS.items() if (n.librdkafka is None or n.spark is None) and not n.reason]
    assert nameless == []
    translated = {option for option, names in TRANSLATIONS.items() if names.librdkafka or names.spark}
    assert set(EXAMPLES) == translated


@pytest.mark.parametrize("option", EXAMPLES)
def test_option_is_passed_to_both_clients(option: str, folder: Path) -> None:
    given, (to_librdkafka, to_spark) = EXAMPLES[option]
    how, names = KafkaWithOptions.given(**given), TRANSLATIONS[option]
    settings = librdkafka_settings(WHAT, how, "shop")
    options = spark_options(WHAT, how, "shop", folder / "private") | start_of(how, NOW).spark_options("clicks", 2)
    assert settings.get(str(names.librdkafka)) == (to_librdkafka and to_librdkafka.format(folder=folder))
    assert resolve_pointers(options).get(str(names.spark)) == to_spark
    assert [name for name, value in options.items() if "s=3" in value or "BBBB" in value] == []


def test_without_secrets_nothing_is_written(tmp_path: Path) -> None:
    options = spark_options(WHAT, KafkaWithOptions(), "shop", tmp_path / "private")
    assert not (tmp_path / "private").exists()
    assert [name for name in options if "providers" in name] == []
    assert options["kafka.security.protocol"] == "PLAINTEXT"


def test_headers_are_requested_only_if_included(tmp_path: Path) -> None:
    with_headers = KafkaSqlOptions.given(broker="k", topic="t", value_format="json", include=({"what": "headers"},))
    assert spark_options(with_headers, KafkaWithOptions(), "shop", tmp_path)["includeHeaders"] == "true"
    assert spark_options(WHAT, KafkaWithOptions(), "shop", tmp_path)["includeHeaders"] == "false"


def test_client_does_not_commit_or_reset_offsets() -> None:
    settings = librdkafka_settings(WHAT, KafkaWithOptions(), "shop")
    assert settings["enable.auto.commit"] == "false"
    assert settings["auto.offset.reset"] == "error"


def test_missing_secret_is_reported_when_needed(tmp_path: Path) -> None:
    how = KafkaWithOptions.given(**SCRAM | {"sasl_password": f"file:{tmp_path / 'nothing'}"})
    with pytest.raises(DefiniteError, match="cannot be read"):
        librdkafka_settings(WHAT, how, "shop")
    with pytest.raises(DefiniteError, match="cannot be read"):
        spark_options(WHAT, how, "shop", tmp_path)
