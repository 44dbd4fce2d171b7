"""Lets the Java of the wheel trust the certificates that Python trusts.

An installed Java has a trust store that its administrator looks after. The wheel's has the one it was built with, which
knows nothing of a company's own authority: there, pip would get through and Ivy would not. So for that runtime the
certificates Python knows are written into a trust store, in Java's old and simple JKS format:

::

    magic, version 2, count, { 2, alias, time, "X.509", DER }…, SHA-1(password in UTF-16, "Mighty Aphrodite", all of it)

The digest guards against accidents only; nothing in a trust store is secret.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from pathlib import Path

from penstock.spark.java import Java

__all__ = ["trust_options"]

_PASSWORD = "changeit"  # noqa: S105 - Java's own default, known to everybody
_SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def trust_options(java: Java, folder: Path) -> list[str]:
    """Return the options with which `java` reaches what Python reaches; a trust store is written into `folder`."""
    certificates = _certificates() if java.bundled else []
    if not certificates:
        return []
    store = folder / "trust.jks"
    store.write_bytes(_key_store(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def _certificates() -> list[bytes]:
    """Return what Python trusts, as DER; the system's bundle where Python only knows a folder of certificates."""
    context = ssl.create_default_context()
    if not context.get_ca_certs(binary_form=True):
        for bundle in filter(Path.exists, map(Path, _SYSTEM_BUNDLES)):
            context.load_verify_locations(bundle)
    return context.get_ca_certs(binary_form=True)


def _key_store(certificates: list[bytes]) -> bytes:
    body = struct.pack(">IiI", 0xFEEDFEED, 2, len(certificates))
    body += b"".join(_entry(f"authority-{number}", der) for number, der in enumerate(certificates))
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()  # noqa: S324


def _entry(alias: str, der: bytes) -> bytes:
    return (
        struct.pack(">i", 2) + _text(alias) + struct.pack(">q", 0) + _text("X.509") + struct.pack(">i", len(der)) + der
    )


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")
