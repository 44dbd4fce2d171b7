"""The options that say who we are to a Kafka cluster, and how we know that it is the right one, in three groups.

Their names are the SQL words with underscores between (``ssl ca location`` is `ssl_ca_location`). What belongs together
and what excludes what is in `penstock.sources.kafka.sense`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from penstock.sources.kafka.secrets import SecretOption
from penstock.sources.kafka.words import Word

__all__ = ["KerberosOptions", "Mechanism", "PathText", "SaslOptions", "SecurityProtocol", "SslOptions"]


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
