"""Connection options as options of Spark's Kafka reader and writer, which use Kafka's Java client.

Secrets are never in Spark's options, but in a private file that the options refer to::

    sasl.jaas.config=…"hunter2"; ─▶ FOLDER/NAME.properties (mode 600)
                                       ▲ read by the client, on the driver and on executors (Kafka's FileConfigProvider)
    option("kafka.sasl.jaas.config", "${file:FOLDER/NAME.properties:sasl.jaas.config}") ─▶ plans, UI, event log, logs

The plan of a stream prints all options. Spark redacts those whose name or value looks like a secret
(``spark.redaction.regex``: secret, password, token, access key). A private key does not match, and neither does a
password in a session with another expression. On a cluster the folder must be shared, at the same path on all nodes,
like the home. The file is readable by this user only, and is replaced atomically.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from penstock.errors import DefiniteError, UsageError
from penstock.kafka_client.connection import ConnectionOptions
from penstock.kafka_client.settings import BROKER_NAMES, verbatim_settings
from penstock.kafka_client.tls import Mechanism, read_certificates, read_private_key

__all__ = ["spark_connection_options", "write_private", "write_private_settings"]


def spark_connection_options(broker: str, how: ConnectionOptions, file: Path) -> dict[str, str]:
    """Return the options that connect Spark to brokers.

    Secrets and certificates are written to the private file. It is replaced when they change, and must exist as long
    as the options are used.
    """
    how.require_secrets()
    return {
        "kafka.bootstrap.servers": broker,
        "kafka.security.protocol": how.protocol().value,
        **dict(verbatim_settings(BROKER_NAMES, how, "spark")),
        **_plain_security(how),
        **write_private_settings({**_tls(how), **_login(how)}, file),
    }


def _plain_security(how: ConnectionOptions) -> dict[str, str]:
    """Return the settings that describe the type of the secrets."""
    settings = {}
    if how.ssl_ca_location is not None:
        settings["kafka.ssl.truststore.type"] = "PEM"
    if how.ssl_key_location is not None:
        settings["kafka.ssl.keystore.type"] = "PEM"
    if how.sasl_mechanisms is Mechanism.GSSAPI:
        settings["kafka.sasl.kerberos.service.name"] = how.kerberos_service()
    return settings


def _tls(how: ConnectionOptions) -> dict[str, str]:
    settings = {}
    if how.ssl_ca_location is not None:
        settings["ssl.truststore.certificates"] = read_certificates(how.ssl_ca_location, "ssl_ca_location")
    if how.ssl_certificate_location is not None and how.ssl_key_location is not None:
        chain = read_certificates(how.ssl_certificate_location, "ssl_certificate_location")
        settings |= {"ssl.keystore.certificate.chain": chain, **_private_key(how, how.ssl_key_location)}
    return settings


def _private_key(how: ConnectionOptions, path: str) -> dict[str, str]:
    """Return the key, and its password only if the key is encrypted: Java rejects an unneeded password."""
    key = read_private_key(path, "ssl_key_location")
    if not key.is_locked:
        return {"ssl.keystore.key": key.pem}
    if how.ssl_key_password is None:
        message = f"private key {path} is encrypted, but ssl_key_password is not set"
        raise DefiniteError(message, "Set ssl_key_password to a reference: env:NAME or file:PATH.")
    return {"ssl.keystore.key": key.pem, "ssl.key.password": how.ssl_key_password.resolved()}


def _login(how: ConnectionOptions) -> dict[str, str]:
    if how.sasl_mechanisms is None:
        return {}
    if how.sasl_mechanisms is Mechanism.GSSAPI:
        return {"sasl.jaas.config": _kerberos_login(how.sasl_kerberos_principal, how.sasl_kerberos_keytab)}
    assert how.sasl_username is not None
    assert how.sasl_password is not None
    return {"sasl.jaas.config": _password_login(how.sasl_mechanisms, how.sasl_username, how.sasl_password.resolved())}


# -- private files -----------------------------------------------------------------------------------------------------

_PROVIDER = "org.apache.kafka.common.config.provider.FileConfigProvider"
_AWKWARD = re.compile(r"[:{},\x00-\x1f]")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})


def write_private_settings(settings: Mapping[str, str], file: Path) -> dict[str, str]:
    """Write settings of the Java client to a private file; return the Spark options that refer to them."""
    if not settings:
        return {}
    place = file.absolute()
    if _AWKWARD.search(str(place)):
        message = f"path {place} cannot be used in Kafka settings: it contains a colon, comma or brace"
        raise UsageError(message, "Choose a folder whose path contains none of them.")
    write_private(place, "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(settings.items())))
    pointers = {f"kafka.{name}": f"${{file:{place}:{name}}}" for name in settings}
    return {
        "kafka.config.providers": "file",
        "kafka.config.providers.file.class": _PROVIDER,
        # The provider can read no other file, regardless of other options.
        "kafka.config.providers.file.param.allowed.paths": str(place),
        **pointers,
    }


def _escaped(value: str) -> str:
    """Escape a value for `java.util.Properties`."""
    text = value.translate(_ESCAPES)
    return f"\\{text}" if text.startswith(" ") else text


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 600; create its folder with mode 700 if it is missing.

    The file is written under a temporary name and renamed, so that a concurrent reader sees the old text or the new
    one. A file that already has this text is not replaced.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _holds(path, text):
            _replace(path, text)
    except OSError as error:
        message = f"could not write private file {path}: {error.strerror}"
        raise DefiniteError(message, "Choose a folder that this user can write to.") from None


def _holds(path: Path, text: str) -> bool:
    with suppress(FileNotFoundError, UnicodeDecodeError):
        return path.stat().st_mode & 0o777 == 0o600 and path.read_text(encoding="utf-8") == text
    return False


def _replace(path: Path, text: str) -> None:
    number, beside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # mkstemp creates it with mode 600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(beside).unlink()
        raise


# -- JAAS --------------------------------------------------------------------------------------------------------------

_MODULES = {
    Mechanism.PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
_JAAS_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


def _password_login(mechanism: Mechanism, user: str, password: str) -> str:
    """Return the JAAS configuration for a login with user and password."""
    return f"{_MODULES[mechanism]} required username={_quoted(user)} password={_quoted(password)};"


def _kerberos_login(principal: str | None, keytab: str | None) -> str:
    """Return the JAAS configuration for a login with a keytab, or with an existing ticket."""
    named = f" principal={_quoted(principal)}" if principal else ""
    if keytab is None:
        return f"{_KERBEROS_MODULE} required useTicketCache=true{named};"
    return f"{_KERBEROS_MODULE} required useKeyTab=true storeKey=true keyTab={_quoted(keytab)}{named};"


def _quoted(text: str) -> str:
    """Quote a value for a Java `StreamTokenizer`, which supports these escapes within quotes."""
    return f'"{text.translate(_JAAS_ESCAPES)}"'
