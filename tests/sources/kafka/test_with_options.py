"""WITH options of a Kafka source, and the errors of invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.kafka_client.tls import SecurityProtocol
from penstock.sources.kafka.with_options import KafkaWithOptions, StartPoint

SCRAM: dict[str, Any] = {"sasl_mechanisms": "scram-sha-512", "sasl_username": "me", "sasl_password": "env:P"}
KEY = {"ssl_certificate_location": "/c", "ssl_key_location": "/k"}


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({**SCRAM, "security_protocol": "ssl"}, "with a login", "SASL_SSL"),
        ({**SCRAM, "security_protocol": "plaintext"}, "with a login", "SASL_SSL"),
        ({"ssl_ca_location": "/ca", "security_protocol": "PLAINTEXT"}, "with TLS", "SSL"),
        ({**SCRAM, **KEY, "security_protocol": "SASL_PLAINTEXT"}, "with TLS", "SSL"),
        ({"security_protocol": "SASL_SSL"}, 'requires option "sasl_mechanisms"', "GSSAPI"),
        ({"sasl_username": "me", "sasl_password": "env:P"}, 'requires option "sasl_mechanisms"', "SCRAM-SHA-512"),
        ({"sasl_kerberos_principal": "me"}, 'requires option "sasl_mechanisms"', "GSSAPI"),
        ({**SCRAM, "sasl_username": None}, 'requires option "sasl_username"', "sasl_username"),
        ({**SCRAM, "sasl_password": None}, 'requires option "sasl_password"', "sasl_password"),
        ({"sasl_mechanisms": "PLAIN"}, 'mechanism "PLAIN" requires option "sasl_username"', "sasl_username"),
        (
            {**SCRAM, "sasl_mechanisms": "GSSAPI"},
            '"sasl_username" is invalid with mechanism "GSSAPI"',
            "sasl_kerberos_principal",
        ),
        ({**SCRAM, "sasl_kerberos_service_name": "k"}, 'requires mechanism "GSSAPI"', "GSSAPI"),
        (
            {"sasl_mechanisms": "GSSAPI", "sasl_kerberos_keytab": "/k"},
            'requires option "sasl_kerberos_principal"',
            "principal",
        ),
        ({"sasl_mechanisms": "oauthbearer"}, '"OAUTHBEARER" is not supported', "SCRAM-SHA-512"),
        ({"sasl_mechanisms": "MD5"}, "option .sasl_mechanisms.: .*'SCRAM-SHA-256'", "reference"),
        ({"ssl_certificate_location": "/c"}, 'requires option "ssl_key_location"', "ssl_key_location"),
        ({"ssl_key_location": "/k"}, 'requires option "ssl_certificate_location"', "ssl_certificate_location"),
        ({"ssl_key_password": "env:P"}, 'requires option "ssl_key_location"', "ssl_key_location"),
        ({"schema_registry_username": "me"}, 'requires option "schema_registry_password"', "schema_registry_password"),
        (
            {"schema_registry_password": "env:P"},
            'requires option "schema_registry_username"',
            "schema_registry_username",
        ),
        (
            {"schema_registry_ssl_key_location": "/k"},
            "requires option .schema_registry_ssl_cert",
            "certificate_location",
        ),
        (
            {"schema_registry_ssl_key_password": "env:P"},
            'requires option "schema_registry_ssl_key_location"',
            "schema_registry_ssl_key_location",
        ),
        ({"start_offset": "latest", "kafka_time_offset": -1}, "mutually exclusive", "only one"),
        ({"start_offset": (1, -1)}, 'value -1 is out of bounds for option "start_offset"', "earliest"),
        ({"start_offset": 1 << 63}, "value 9223372036854775808 is out of bounds", "earliest"),
        ({"start_offset": ()}, '"start_offset" has no offsets', "earliest"),
        ({"start_offset": "soon"}, 'value for option "start_offset"', "reference"),
        ({"start_offset": True}, 'value for option "start_offset"', "reference"),
        ({"start_timestamp": "yesterday"}, 'invalid value for option "start_timestamp": "yesterday"', "2026"),
        ({"start_timestamp": "2026-11-16 03:00"}, '"2026-11-16 03:00" has no time zone', "Z for UTC"),
        ({"start_timestamp": "0/16B3748"}, '"start_timestamp": "0/16B3748"', "with a time zone"),
        ({"start_timestamp": "0001-01-01T00:00+01:00"}, '"0001-01-01T00:00.01:00"', "with a time zone"),
        ({"quarantine_limit": 5}, 'requires option "on_error" to be "quarantine"', "on_error"),
        ({"on_error": "quarantine", "quarantine_limit": 0}, 'value for option "quarantine_limit"', "reference"),
        ({"client_id": "two words"}, 'value for option "client_id"', "reference"),
        ({"statistics_interval_ms": -1}, 'value for option "statistics_interval_ms"', "reference"),
        ({"isolation_level": "serializable"}, "option .isolation_level.: .*'read_committed'", "reference"),
        ({"cache": True}, 'option "cache" is not supported: messages are always stored', "Remove the option"),
        ({"enable_auto_commit": False}, "stored with its output", "Remove the option"),
        ({"ignore_source_keys": True}, "depends on ENVELOPE alone", "ENVELOPE NONE"),
        ({"ignore_source_keys": False}, "depends on ENVELOPE alone", "ENVELOPE NONE"),
        ({"ssl_ca_locaton": "/ca"}, 'unrecognized option "ssl_ca_locaton"', 'Did you mean "ssl_ca_location"?'),
        ({"zzz": 1}, 'unrecognized option "zzz"', "reference"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
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
def test_security_protocol_follows_from_other_options(options: dict[str, Any], protocol: str) -> None:
    assert KafkaWithOptions.given(**options).protocol() is SecurityProtocol(protocol)


def test_values_are_normalized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = KafkaWithOptions.given(start_offset=7, ssl_ca_location="ca.crt")
    assert options.start_offset == (7,)
    assert options.ssl_ca_location == str(tmp_path / "ca.crt")
    assert KafkaWithOptions.given(start_offset="EARLIEST").start_offset is StartPoint.EARLIEST
    assert KafkaWithOptions.given(start_offset=[1, 2]).start_offset == (1, 2)
    moved = KafkaWithOptions.given(start_timestamp="2026-11-16T04:00:00+01:00")
    assert moved.start_timestamp == "2026-11-16T03:00:00+00:00"


def test_options_round_trip_through_the_catalog() -> None:
    options = KafkaWithOptions.given(
        **SCRAM,
        **KEY,
        ssl_key_password="file:/p",
        start_offset=(1, 2, 3),
        isolation_level="read_uncommitted",
        on_error="quarantine",
        quarantine_limit=10,
        timestamp_type="broker",
    )
    assert KafkaWithOptions.model_validate_json(options.model_dump_json()) == options


def test_options_of_an_earlier_home_are_read() -> None:
    assert KafkaWithOptions.model_validate_json('{"client_id": "c", "ignore_source_keys": false}').client_id == "c"


def test_every_option_is_described() -> None:
    assert [name for name, field in KafkaWithOptions.model_fields.items() if not field.description] == []
