"""Certificates and keys as Kafka's Java client takes them: PEM, the private key in PKCS#8.

librdkafka takes more (OpenSSL's older kinds of keys), so what would fail only in Spark is refused here, with the
command that mends it. Java keystores are refused too: one kind of file serves both clients.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import DefiniteError

__all__ = ["PrivateKey", "read_certificates", "read_private_key"]

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s.*?-----END \1-----", re.DOTALL)
_LOCKED = "ENCRYPTED PRIVATE KEY"
_PKCS8 = ("PRIVATE KEY", _LOCKED)


@dataclass(frozen=True, repr=False)
class PrivateKey:
    """A private key in PEM, and whether it needs a password."""

    pem: str
    is_locked: bool

    def __repr__(self) -> str:
        return f"PrivateKey(is_locked={self.is_locked})"


def read_certificates(path: str, option: str) -> str:
    """Return the certificates of a file, without what else is in it."""
    found = [block for kind, block in _blocks(path, option) if kind == "CERTIFICATE"]
    if not found:
        message = f"{option}: the file {path} holds no certificate in PEM"
        raise DefiniteError(message, "Name a file in PEM, with lines like -----BEGIN CERTIFICATE-----.")
    return "\n".join(found) + "\n"


def read_private_key(path: str, option: str) -> PrivateKey:
    """Return the private key of a file, without what else is in it."""
    keys = [(kind, block) for kind, block in _blocks(path, option) if kind.endswith("PRIVATE KEY")]
    for kind, block in keys:
        if kind in _PKCS8:
            return PrivateKey(f"{block}\n", kind == _LOCKED)
    if keys:
        message = f"{option}: the private key in {path} is of an older kind ({keys[0][0]}), which Java does not read"
        raise DefiniteError(message, f"Run: openssl pkcs8 -topk8 -in {path} -out new.key; and name the new file.")
    message = f"{option}: the file {path} holds no private key in PEM"
    raise DefiniteError(message, "Name a file in PEM, with a line like -----BEGIN PRIVATE KEY-----.")


def _blocks(path: str, option: str) -> list[tuple[str, str]]:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        message = f"{option}: the file {path} cannot be read: {error.strerror}"
        raise DefiniteError(message, "Put it there, readable for this user, or name another.") from None
    if content.startswith((b"\xfe\xed\xfe\xed", b"\x30\x82")):
        message = f"{option}: the file {path} is binary (a Java keystore, PKCS#12 or DER), not PEM"
        raise DefiniteError(
            message, "Convert it: keytool -importkeystore … -deststoretype pkcs12, then openssl pkcs12."
        )
    text = content.decode("utf-8", errors="replace")
    return [(found[1], found[0]) for found in _BLOCK.finditer(text)]
