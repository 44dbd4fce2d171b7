"""What may be asked of a Kafka source after WITH, and what is said to what makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.sources.kafka.tls import SecurityProtocol
from penstock.sources.kafka.with_options import Beginning, KafkaWithOptions

SCRAM: dict[str, Any] = {"sasl_mechanisms": "scram-sha-512", "sasl_username": "me", "sasl_password": "env:P"}
KEY = {"ssl_certificate_location": "/c", "ssl_key_location": "/k"}


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        ({**SCRAM, "security_protocol": "ssl"}, "no login", "SASL_SSL"),
        ({**SCRAM, "security_protocol": "plaintext"}, "no login", "SASL_SSL"),
        ({"ssl_ca_location": "/ca", "security_protocol": "PLAINTEXT"}, "without TLS", "SSL"),
        ({**SCRAM, **KEY, "security_protocol": "SASL_PLAINTEXT"}, "without TLS", "SSL"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanisms does not say", "GSSAPI"),
        ({"sasl_username": "me", "sasl_password": "env:P"}, "sasl_mechanisms does not say", "SCRAM-SHA-512"),
        ({"sasl_kerberos_principal": "me"}, "sasl_mechanisms does not say", "GSSAPI"),
        ({**SCRAM, "sasl_username": None}, "the user is missing", "sasl_username"),
        ({**SCRAM, "sasl_password": None}, "the password is missing", "sasl_password"),
        ({"sasl_mechanisms": "PLAIN"}, "the user is missing", "sasl_username"),
        ({**SCRAM, "sasl_mechanisms": "GSSAPI"}, "takes no sasl_username", "sasl_kerberos_principal"),
        ({**SCRAM, "sasl_kerberos_service_name": "k"}, "with another mechanism", "GSSAPI"),
        ({"sasl_mechanisms": "GSSAPI", "sasl_kerberos_keytab": "/k"}, "without the principal", "principal"),
        ({"sasl_mechanisms": "oauthbearer"}, "OAUTHBEARER is not supported", "SCRAM-SHA-512"),
        ({"sasl_mechanisms": "MD5"}, "option sasl_mechanisms: .*'SCRAM-SHA-256'", "reference"),
        ({"ssl_certificate_location": "/c"}, "needs its private key", "ssl_key_location"),
        ({"ssl_key_location": "/k"}, "needs its private key", "ssl_certificate_location"),
        ({"ssl_key_password": "env:P"}, "that it unlocks", "ssl_key_location"),
        ({"schema_registry_username": "me"}, "the password is missing", "schema_registry_password"),
        ({"schema_registry_password": "env:P"}, "the user is missing", "schema_registry_username"),
        ({"schema_registry_ssl_key_location": "/k"}, "needs its private key", "certificate_location"),
        ({"schema_registry_ssl_key_password": "env:P"}, "that it unlocks", "schema_registry_ssl_key_location"),
        ({"start_offset": "latest", "kafka_time_offset": -1}, "more than one option", "start_timestamp"),
        ({"start_offset": (1, -1)}, "negative or too large", "earliest"),
        ({"start_offset": 1 << 63}, "negative or too large", "earliest"),
        ({"start_offset": ()}, "there is none", "earliest"),
        ({"start_offset": "soon"}, "option start_offset", "reference"),
        ({"start_offset": True}, "option start_offset", "reference"),
        ({"start_timestamp": "yesterday"}, "neither an LSN nor a time", "2026"),
        ({"start_timestamp": "2026-11-16 03:00"}, "time zone", "Z for UTC"),
        ({"start_timestamp": "0/16B3748"}, "is not a moment", "2026"),
        ({"quarantine_limit": 5}, "not put aside", "on_error"),
        ({"on_error": "quarantine", "quarantine_limit": 0}, "option quarantine_limit", "reference"),
        ({"client_id": "two words"}, "option client_id", "reference"),
        ({"statistics_interval_ms": -1}, "option statistics_interval_ms", "reference"),
        ({"isolation_level": "serializable"}, "option isolation_level: .*'read_committed'", "reference"),
        ({"cache": True}, "always kept", "Leave it out"),
        ({"enable_auto_commit": False}, "stored with its output", "Leave it out"),
        ({"ssl_ca_locaton": "/ca"}, "no option ssl_ca_locaton", "Did you mean ssl_ca_location?"),
        ({"zzz": 1}, "no option zzz", "reference"),
    ],
)
def test_what_makes_no_sense(options: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        KafkaWithOptions.given(**options)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("options", "protocol"),
    [
        ({}, "PLAINTEXT"),
        ({"ssl_ca_location": "/ca"}, "SSL"),
        (SCRAM, "SASL_SSL"),
        ({**SCRAM, "security_protocol": "sasl_plaintext"}, "SASL_PLAINTEXT"),
        ({"sasl_mechanisms": "gssapi"}, "SASL_SSL"),
        ({"security_protocol": "ssl"}, "SSL"),
    ],
)
def test_the_protocol_follows_from_the_rest(options: dict[str, Any], protocol: str) -> None:
    assert KafkaWithOptions.given(**options).protocol() is SecurityProtocol(protocol)


def test_values_are_read_as_they_may_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = KafkaWithOptions.given(start_offset=7, ssl_ca_location="ca.crt")
    assert options.start_offset == (7,)
    assert options.ssl_ca_location == str(tmp_path / "ca.crt")
    assert KafkaWithOptions.given(start_offset="EARLIEST").start_offset is Beginning.EARLIEST
    assert KafkaWithOptions.given(start_offset=[1, 2]).start_offset == (1, 2)
    moved = KafkaWithOptions.given(start_timestamp="2026-11-16T04:00:00+01:00")
    assert moved.start_timestamp == "2026-11-16T03:00:00+00:00"


def test_all_of_them_survive_the_catalog() -> None:
    options = KafkaWithOptions.given(
        **SCRAM,
        **KEY,
        ssl_key_password="file:/p",
        start_offset=(1, 2, 3),
        isolation_level="read_uncommitted",
        on_error="quarantine",
        quarantine_limit=10,
        timestamp_type="broker",
        ignore_source_keys=True,
    )
    assert KafkaWithOptions.model_validate_json(options.model_dump_json()) == options


def test_every_option_is_described() -> None:
    assert [name for name, field in KafkaWithOptions.model_fields.items() if not field.description] == []
