"""Secure listeners of a test broker: SASL over TLS, and TLS with client certificates.

::

    folder/tls/ca.crt ─ signs ─▶ server.crt (127.0.0.1, localhost)     client.crt, client.key
    SASL_SSL://  SCRAM-SHA-256, SCRAM-SHA-512 (users added by tests), PLAIN (one predefined user)
    SSL://       requires a client certificate signed by the authority

The broker's folder contains keys and passwords in plain text: it exists only for a test.
"""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from penstock.testing.ports import free_ports
from penstock.testing.tls import make_authority, make_certificate

__all__ = ["PLAIN_USER", "SecureListeners"]

PLAIN_USER = ("plain", "plain-password")
"""The user of the mechanism PLAIN, and the password."""

_MODULES = "org.apache.kafka.common.security"
_SCRAM = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)


class SecureListeners:
    """The secure listeners with their ports and certificates, in addition to the broker's plaintext listener."""

    def __init__(self, folder: Path) -> None:
        self.tls = folder / "tls"
        self.sasl_port, self.ssl_port = free_ports()

    def make_certificates(self) -> None:
        """Create the certificates of authority, server and client, unless they exist."""
        if (self.tls / "client.crt").exists():
            return
        self.tls.mkdir(parents=True, exist_ok=True)
        make_authority(self.tls)
        make_certificate(self.tls, "server", "broker", alternative="IP:127.0.0.1,DNS:localhost")
        make_certificate(self.tls, "client", "client")
        joined = "".join((self.tls / name).read_text(encoding="utf-8") for name in ("server.key", "server.crt"))
        (self.tls / "server.pem").write_text(joined, encoding="utf-8")

    def listeners(self) -> list[str]:
        """Return the entries of the broker's property ``listeners``."""
        return [f"SASL_SSL://127.0.0.1:{self.sasl_port}", f"SSL://127.0.0.1:{self.ssl_port}"]

    def properties(self) -> dict[str, object]:
        """Return the broker properties of the listeners."""
        sasl = "listener.name.sasl_ssl"
        user, password = PLAIN_USER
        plain = f'{_MODULES}.plain.PlainLoginModule required user_{user}="{password}";'
        return {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
            f"{sasl}.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{sasl}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{sasl}.plain.sasl.jaas.config": plain,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.tls / "server.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.tls / "ca.crt",
            "listener.name.ssl.ssl.client.auth": "required",
        }

    @staticmethod
    def add_user(bootstrap: str, name: str, password: str) -> None:
        """Add a user for both SCRAM mechanisms, through the plaintext listener."""
        client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for mechanism in _SCRAM:  # one request each: a request may contain a user only once
            wanted: list[UserScramCredentialAlteration] = [
                UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), password.encode())
            ]
            client.alter_user_scram_credentials(wanted)[name].result(20)
