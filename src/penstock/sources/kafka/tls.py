"""Options for TLS and logins of a Kafka cluster, in three groups, and the files that they name.

Option names are the SQL words with underscores (``ssl ca location`` is `ssl_ca_location`). Which options belong
together or exclude each other is in `penstock.sources.kafka.validation`.

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
from penstock.sources.kafka.option_syntax import Word
from penstock.sources.kafka.secrets import SecretOption

__all__ = [
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
    """How brokers are spoken to."""

    PLAINTEXT = "PLAINTEXT"
    """Neither encrypted nor authenticated."""
    SSL = "SSL"
    """Over TLS; the client may have a certificate."""
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    """With a login, not encrypted: with `PLAIN` the password crosses the network in clear."""
    SASL_SSL = "SASL_SSL"
    """With a login, over TLS."""

    @property
    def has_tls(self) -> bool:
        """Whether it is encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_login(self) -> bool:
        """Whether there is a login."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Mechanism(Word):
    """How a login is made."""

    PLAIN = "PLAIN"
    """User and password as they are."""
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    """User and password, of which the broker sees a proof."""
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    """The same with a longer hash."""
    GSSAPI = "GSSAPI"
    """Kerberos."""

    @property
    def has_password(self) -> bool:
        """Whether it is made with user and password."""
        return self is not Mechanism.GSSAPI


def _absolute(path: str | None) -> str | None:
    """Make it mean the same in any folder."""
    if path == "":
        message = "it is empty"
        raise ValueError(message)
    return None if path is None else str(Path(path).expanduser().absolute())


PathText = Annotated[str | None, AfterValidator(_absolute)]
"""The path of a file, as text; stored as an absolute one."""


class SslOptions(BaseModel):
    """TLS: whom we trust, and the certificate that we show."""

    ssl_ca_location: PathText = Field(
        default=None, description="file of certificates (PEM) of authorities to trust, instead of the system's"
    )
    ssl_certificate_location: PathText = Field(
        default=None, description="file of the client's certificate (PEM), with those that lead to its authority"
    )
    ssl_key_location: PathText = Field(default=None, description="file of the client's private key (PEM)")
    ssl_key_password: SecretOption = Field(
        default=None, description="what unlocks the private key: env:NAME or file:PATH"
    )


class KerberosOptions(BaseModel):
    """Kerberos, for the mechanism `GSSAPI`."""

    sasl_kerberos_service_name: str | None = Field(
        default=None, min_length=1, description="the name that brokers run under, kafka where it is not given"
    )
    sasl_kerberos_principal: str | None = Field(default=None, min_length=1, description="the client's principal")
    sasl_kerberos_keytab: PathText = Field(default=None, description="file of keys of the principal")
    sasl_kerberos_kinit_cmd: str | None = Field(
        default=None, min_length=1, description="the command that gets a ticket, or a fresh one"
    )
    sasl_kerberos_min_time_before_relogin: int | None = Field(
        default=None, ge=0, le=86_400_000, description="milliseconds between two refreshes of a ticket, at least"
    )


class SaslOptions(KerberosOptions):
    """The login."""

    sasl_mechanisms: Mechanism | None = Field(default=None, description="how the login is made")
    sasl_username: str | None = Field(default=None, min_length=1, description="the user")
    sasl_password: SecretOption = Field(default=None, description="where the password is: env:NAME or file:PATH")


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
