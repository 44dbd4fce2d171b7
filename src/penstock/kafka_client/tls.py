"""Options for TLS and logins of a Kafka cluster, in three groups, and the files that they name.

Option names are the SQL words with underscores (``ssl ca location`` is `ssl_ca_location`). Which options belong
together or exclude each other is in `penstock.kafka_client.connection`.

Certificates and keys must be in the form that Kafka's Java client accepts: PEM, the private key in PKCS#8. librdkafka
accepts more (older key formats of OpenSSL), so files that would fail only in Spark are rejected here, with the command
that converts them. Java keystores are rejected too: one kind of file serves both clients.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from penstock.errors import DefiniteError
from penstock.kafka_client.option_values import Word
from penstock.kafka_client.secrets import SecretOption
from penstock.sql.syntax.values import Choice

__all__ = [
    "OAUTHBEARER",
    "KerberosOptions",
    "Mechanism",
    "PathText",
    "PrivateKey",
    "SaslOptions",
    "SecurityProtocol",
    "SslOptions",
    "read_certificates",
    "read_private_key",
]


class SecurityProtocol(Word):
    """How clients connect to brokers."""

    PLAINTEXT = "PLAINTEXT"
    """Neither encrypted nor authenticated."""
    SSL = "SSL"
    """TLS, optionally with a client certificate."""
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    """With a login, not encrypted: with `PLAIN` the password is sent in clear text."""
    SASL_SSL = "SASL_SSL"
    """With a login, over TLS."""

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_login(self) -> bool:
        """Whether the protocol includes a login."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Mechanism(Word):
    """The SASL mechanism of a login."""

    PLAIN = "PLAIN"
    """User and password in clear text."""
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    """User and password; the broker receives only a proof of the password."""
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    """The same with a longer hash."""
    GSSAPI = "GSSAPI"
    """Kerberos."""

    @property
    def has_password(self) -> bool:
        """Whether the mechanism uses a user and password."""
        return self is not Mechanism.GSSAPI


OAUTHBEARER = "OAUTHBEARER"
"""A mechanism that is rejected, with a reason."""


def _absolute(path: str | None) -> str | None:
    """Return an absolute path, independent of the working directory."""
    if path == "":
        message = "the path is empty"
        raise ValueError(message)
    return None if path is None else str(Path(path).expanduser().absolute())


PathText = Annotated[str | None, AfterValidator(_absolute)]
"""The path of a file, stored as an absolute path."""


class SslOptions(BaseModel):
    """TLS: trusted authorities and the client certificate."""

    ssl_ca_location: PathText = Field(
        default=None, description="PEM file of trusted CA certificates; default: those of the system"
    )
    ssl_certificate_location: PathText = Field(
        default=None, description="PEM file of the client certificate, with its chain"
    )
    ssl_key_location: PathText = Field(default=None, description="PEM file of the client's private key")
    ssl_key_password: SecretOption = Field(
        default=None, description="password of the private key: env:NAME or file:PATH"
    )


class KerberosOptions(BaseModel):
    """Kerberos, for the mechanism `GSSAPI`."""

    sasl_kerberos_service_name: str | None = Field(
        default=None, min_length=1, description="Kerberos service name of the brokers; default kafka"
    )
    sasl_kerberos_principal: str | None = Field(default=None, min_length=1, description="principal of the client")
    sasl_kerberos_keytab: PathText = Field(default=None, description="keytab file of the principal")
    sasl_kerberos_kinit_cmd: str | None = Field(
        default=None, min_length=1, description="command that obtains or renews a ticket"
    )
    sasl_kerberos_min_time_before_relogin: int | None = Field(
        default=None, ge=0, le=86_400_000, description="minimum time between two ticket renewals, in milliseconds"
    )


class SaslOptions(KerberosOptions):
    """The login."""

    sasl_mechanisms: Annotated[Mechanism | None, Choice(tuple(map(str, Mechanism)), rejected=(OAUTHBEARER,))] = Field(
        default=None, description="SASL mechanism"
    )
    sasl_username: str | None = Field(default=None, min_length=1, description="user name")
    sasl_password: SecretOption = Field(default=None, description="password: env:NAME or file:PATH")


_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s.*?-----END \1-----", re.DOTALL)
_LOCKED = "ENCRYPTED PRIVATE KEY"
_PKCS8 = ("PRIVATE KEY", _LOCKED)


@dataclass(frozen=True, repr=False)
class PrivateKey:
    """A private key in PEM, and whether it is encrypted."""

    pem: str
    is_locked: bool

    def __repr__(self) -> str:
        return f"PrivateKey(is_locked={self.is_locked})"


def read_certificates(path: str, option: str) -> str:
    """Return the certificates in a file, without other content."""
    found = [block for kind, block in _blocks(path, option) if kind == "CERTIFICATE"]
    if not found:
        message = f"{option}: file {path} contains no PEM certificate"
        raise DefiniteError(message, "Use a PEM file, with lines such as -----BEGIN CERTIFICATE-----.")
    return "\n".join(found) + "\n"


def read_private_key(path: str, option: str) -> PrivateKey:
    """Return the private key in a file, without other content."""
    keys = [(kind, block) for kind, block in _blocks(path, option) if kind.endswith("PRIVATE KEY")]
    for kind, block in keys:
        if kind in _PKCS8:
            return PrivateKey(f"{block}\n", kind == _LOCKED)
    if keys:
        message = f"{option}: private key {path} has a format that Java does not support ({keys[0][0]})"
        raise DefiniteError(message, f"Run: openssl pkcs8 -topk8 -in {path} -out new.key. Then use the new file.")
    message = f"{option}: file {path} contains no PEM private key"
    raise DefiniteError(message, "Use a PEM file, with a line such as -----BEGIN PRIVATE KEY-----.")


def _blocks(path: str, option: str) -> list[tuple[str, str]]:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        message = f"{option}: could not read file {path}: {error.strerror}"
        raise DefiniteError(message, "Make the file readable by this user, or use another path.") from None
    if content.startswith((b"\xfe\xed\xfe\xed", b"\x30\x82")):
        message = f"{option}: file {path} is binary (a Java keystore, PKCS#12 or DER), not PEM"
        raise DefiniteError(
            message, "Convert it with keytool -importkeystore … -deststoretype pkcs12, then openssl pkcs12."
        )
    text = content.decode("utf-8", errors="replace")
    return [(found[1], found[0]) for found in _BLOCK.finditer(text)]
