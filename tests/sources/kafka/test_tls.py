"""Certificates and keys: formats that Java supports are accepted, others are rejected with a hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DefiniteError, UsageError
from penstock.kafka_client.spark_options import write_private_settings
from penstock.kafka_client.tls import read_certificates, read_private_key
from penstock.sources.kafka.client_settings import spark_options
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.with_options import KafkaWithOptions

WHAT = KafkaSqlOptions.given(broker="k1:9092", topic="clicks", value_format="json")


def block(kind: str, body: str = "AAAA") -> str:
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n"


def test_certificates_are_found_among_other_blocks(tmp_path: Path) -> None:
    path = tmp_path / "chain.pem"
    path.write_text(
        f"Subject: x\n{block('CERTIFICATE', 'one')}\n{block('PRIVATE KEY', 'key')}{block('CERTIFICATE', 'two')}",
        encoding="utf-8",
    )
    assert read_certificates(str(path), "o") == block("CERTIFICATE", "one") + block("CERTIFICATE", "two")
    key = read_private_key(str(path), "o")
    assert (key.pem, key.is_locked) == (block("PRIVATE KEY", "key"), False)
    assert "key" not in repr(key).replace("PrivateKey", "")


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"", "contains no PEM private key", "PEM"),
        (block("CERTIFICATE").encode(), "contains no PEM private key", "PEM"),
        (block("RSA PRIVATE KEY").encode(), r"Java does not support \(RSA PRIVATE KEY\)", "openssl pkcs8"),
        (block("EC PRIVATE KEY").encode(), "Java does not support", "openssl pkcs8"),
        (b"\xfe\xed\xfe\xed\x00", "Java keystore", "keytool"),
        (b"\x30\x82\x01\xff", "PKCS#12", "keytool"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n", "contains no PEM private key", "PEM"),
        (None, "could not read", "readable by this user"),
    ],
)
def test_keys_that_java_does_not_support_are_rejected(
    tmp_path: Path, content: bytes | None, message: str, hint: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DefiniteError, match=f"ssl_key_location: .*{message}") as caught:
        read_private_key(str(path), "ssl_key_location")
    assert hint in caught.value.hint


def test_file_without_certificates_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(block("PRIVATE KEY"), encoding="utf-8")
    with pytest.raises(DefiniteError, match=r"ssl_ca_location: .* contains no PEM certificate") as caught:
        read_certificates(str(tmp_path / "key"), "ssl_ca_location")
    assert "PEM" in caught.value.hint


def mutual(folder: Path, key: str, **options: Any) -> dict[str, str]:
    (folder / "c.pem").write_text(block("CERTIFICATE"), encoding="utf-8")
    (folder / "k.pem").write_text(key, encoding="utf-8")
    locations = {"ssl_certificate_location": str(folder / "c.pem"), "ssl_key_location": str(folder / "k.pem")}
    return spark_options(WHAT, KafkaWithOptions.given(**locations, **options), "shop", folder / "private")


def test_encrypted_key_requires_its_password(tmp_path: Path) -> None:
    with pytest.raises(DefiniteError, match="is encrypted") as caught:
        mutual(tmp_path, block("ENCRYPTED PRIVATE KEY"))
    assert "ssl_key_password" in caught.value.hint


def test_unencrypted_key_gets_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KO_PASSWORD", "not needed")
    options = mutual(tmp_path, block("PRIVATE KEY"), ssl_key_password="env:KO_PASSWORD")
    assert "kafka.ssl.key.password" not in options
    assert "not needed" not in (tmp_path / "private" / "shop.properties").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["a:b", "a,b", "a}b", "a\nb"])
def test_folder_that_cannot_be_referenced_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be used in Kafka settings") as caught:
        write_private_settings({"x": "y"}, tmp_path / name / "file")
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []
