"""Certificates and keys: what Java reads is taken, what it does not is refused with the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DefiniteError, UsageError
from penstock.sources.kafka.client_settings import point_to, spark_options
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.tls import read_certificates, read_private_key
from penstock.sources.kafka.with_options import KafkaWithOptions

WHAT = KafkaSqlOptions.given(broker="k1:9092", topic="clicks", value_format="json")


def block(kind: str, body: str = "AAAA") -> str:
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n"


def test_certificates_are_found_among_other_things(tmp_path: Path) -> None:
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
    ("content", "said", "hint"),
    [
        (b"", "holds no private key", "PEM"),
        (block("CERTIFICATE").encode(), "holds no private key", "PEM"),
        (block("RSA PRIVATE KEY").encode(), r"older kind \(RSA PRIVATE KEY\)", "openssl pkcs8"),
        (block("EC PRIVATE KEY").encode(), "older kind", "openssl pkcs8"),
        (b"\xfe\xed\xfe\xed\x00", "Java keystore", "keytool"),
        (b"\x30\x82\x01\xff", "PKCS#12", "keytool"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n", "holds no private key", "PEM"),
        (None, "cannot be read", "Put it there"),
    ],
)
def test_keys_that_java_does_not_read(tmp_path: Path, content: bytes | None, said: str, hint: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DefiniteError, match=f"ssl_key_location: .*{said}") as caught:
        read_private_key(str(path), "ssl_key_location")
    assert hint in caught.value.hint


def test_a_file_without_certificates(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(block("PRIVATE KEY"), encoding="utf-8")
    with pytest.raises(DefiniteError, match=r"ssl_ca_location: .* holds no certificate") as caught:
        read_certificates(str(tmp_path / "key"), "ssl_ca_location")
    assert "PEM" in caught.value.hint


def mutual(folder: Path, key: str, **options: Any) -> dict[str, str]:
    (folder / "c.pem").write_text(block("CERTIFICATE"), encoding="utf-8")
    (folder / "k.pem").write_text(key, encoding="utf-8")
    places = {"ssl_certificate_location": str(folder / "c.pem"), "ssl_key_location": str(folder / "k.pem")}
    return spark_options(WHAT, KafkaWithOptions.given(**places, **options), "shop", folder / "private")


def test_a_locked_key_needs_its_password(tmp_path: Path) -> None:
    with pytest.raises(DefiniteError, match="locked by a password") as caught:
        mutual(tmp_path, block("ENCRYPTED PRIVATE KEY"))
    assert "ssl_key_password" in caught.value.hint


def test_an_open_key_gets_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KO_PASSWORD", "not needed")
    options = mutual(tmp_path, block("PRIVATE KEY"), ssl_key_password="env:KO_PASSWORD")
    assert "kafka.ssl.key.password" not in options
    assert "not needed" not in (tmp_path / "private" / "shop.properties").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["a:b", "a,b", "a}b", "a\nb"])
def test_a_folder_that_cannot_be_pointed_to(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be pointed to") as caught:
        point_to({"x": "y"}, tmp_path / name / "file")
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []
