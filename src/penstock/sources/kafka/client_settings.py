"""Options of a Kafka source as settings of the two clients that read Kafka.

librdkafka (in Python) looks at topics; Spark's reader, which uses Kafka's Java client, reads them. `TRANSLATIONS` says
what each option is called by either, or why one of them lacks it; the reference page shows this table, and a test
checks both translations against it.

Secrets are never in Spark's options, but in a private file that the options point to::

    sasl.jaas.config=…"hunter2"; ─▶ FOLDER/NAME.properties (mode 600)
                                       ▲ read by the client, on the driver and on executors (Kafka's FileConfigProvider)
    option("kafka.sasl.jaas.config", "${file:FOLDER/NAME.properties:sasl.jaas.config}") ─▶ plans, UI, event log, logs

The plan of a stream prints all options. Spark redacts those whose name or value looks like a secret to it
(``spark.redaction.regex``: secret, password, token, access key); a private key does not, nor does a password in a
session with another expression. On a cluster the folder is a shared one, at the same path everywhere, like the home.
The file is readable by this user alone, and complete at any moment.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from penstock.errors import DefiniteError, UsageError
from penstock.sources.kafka.option_syntax import Word
from penstock.sources.kafka.sql_options import KafkaSqlOptions, Metadata
from penstock.sources.kafka.tls import Mechanism, read_certificates, read_private_key
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = [
    "TRANSLATIONS",
    "Names",
    "kerberos_login",
    "librdkafka_settings",
    "password_login",
    "point_to",
    "quoted",
    "spark_options",
    "spelled",
    "word_for_word",
    "write_private",
]

_LOCATIONS = ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location")
_KERBEROS = ("sasl_kerberos_principal", "sasl_kerberos_keytab", "sasl_kerberos_kinit_cmd")
_SECRETS = ("ssl_key_password", "sasl_password")
_FIXED = {"enable.auto.commit": "false", "enable.auto.offset.store": "false", "auto.offset.reset": "error"}
"""Positions are ours: nothing is committed, and an offset that is gone is an error instead of another one."""


def librdkafka_settings(what: KafkaSqlOptions, how: KafkaWithOptions, source: str) -> dict[str, str]:
    """Return the settings of a consumer, secrets in clear: for a client alone, right before it is made."""
    how.require_secrets()
    as_they_are = ("sasl_username", *_LOCATIONS, *_KERBEROS)
    settings = {_name(option): getattr(how, option) for option in as_they_are}
    settings |= {_name(option): how.secrets()[option].resolved() for option in _SECRETS if option in how.secrets()}
    return {
        "bootstrap.servers": what.broker,
        "security.protocol": how.protocol().value,
        "group.id": f"{how.group_id_prefix}{source}",
        **dict(word_for_word(how, "librdkafka")),
        **_kerberos_service(how),
        **{name: value for name, value in settings.items() if value is not None},
        **_FIXED,
    }


def _kerberos_service(how: KafkaWithOptions) -> dict[str, str]:
    if how.sasl_mechanisms is not Mechanism.GSSAPI:
        return {}
    return {_name("sasl_kerberos_service_name"): how.kerberos_service()}


def _name(option: str) -> str:
    name = TRANSLATIONS[option].librdkafka
    assert name is not None
    return name


@dataclass(frozen=True)
class Names:
    """An option's name to librdkafka and to Spark; whether its value is the same there; why a name is missing."""

    librdkafka: str | None = None
    spark: str | None = None
    verbatim: bool = False
    reason: str = ""


_SOURCE = "Read by the source itself."
_REGISTRY = "Read where schemas are fetched."
_OWN_STATISTICS = "Spark's client tells its statistics through JMX, and the query's progress."
_OWN_LOGIN = "Spark's client logs in by itself, with the keytab or with a ticket that is there."
_JAAS = "kafka.sasl.jaas.config"

TRANSLATIONS: dict[str, Names] = {
    "security_protocol": Names("security.protocol", "kafka.security.protocol"),
    "ssl_ca_location": Names("ssl.ca.location", "kafka.ssl.truststore.certificates"),
    "ssl_certificate_location": Names("ssl.certificate.location", "kafka.ssl.keystore.certificate.chain"),
    "ssl_key_location": Names("ssl.key.location", "kafka.ssl.keystore.key"),
    "ssl_key_password": Names("ssl.key.password", "kafka.ssl.key.password"),
    "sasl_mechanisms": Names("sasl.mechanisms", "kafka.sasl.mechanism", verbatim=True),
    "sasl_username": Names("sasl.username", _JAAS),
    "sasl_password": Names("sasl.password", _JAAS),
    "sasl_kerberos_service_name": Names("sasl.kerberos.service.name", "kafka.sasl.kerberos.service.name"),
    "sasl_kerberos_principal": Names("sasl.kerberos.principal", _JAAS),
    "sasl_kerberos_keytab": Names("sasl.kerberos.keytab", _JAAS),
    "sasl_kerberos_kinit_cmd": Names("sasl.kerberos.kinit.cmd", reason=_OWN_LOGIN),
    "sasl_kerberos_min_time_before_relogin": Names(
        "sasl.kerberos.min.time.before.relogin", "kafka.sasl.kerberos.min.time.before.relogin", verbatim=True
    ),
    "client_id": Names("client.id", "kafka.client.id", verbatim=True),
    "group_id_prefix": Names("group.id", "groupIdPrefix"),
    "start_offset": Names("the offsets that it is assigned", "startingOffsets"),
    "start_timestamp": Names("the offsets that it is assigned", "startingTimestamp"),
    "kafka_time_offset": Names("the offsets that it is assigned", "startingTimestamp"),
    "isolation_level": Names("isolation.level", "kafka.isolation.level", verbatim=True),
    "statistics_interval_ms": Names("statistics.interval.ms", verbatim=True, reason=_OWN_STATISTICS),
    "topic_metadata_refresh_interval_ms": Names(
        "topic.metadata.refresh.interval.ms", "kafka.metadata.max.age.ms", verbatim=True
    ),
    "timestamp_frequency_ms": Names(reason=_SOURCE),
    "timestamp_type": Names(reason=_SOURCE),
    "ignore_source_keys": Names(reason=_SOURCE),
    "on_error": Names(reason=_SOURCE),
    "quarantine_limit": Names(reason=_SOURCE),
    "allow_literal_secrets": Names(reason="Read where options are checked."),
    "schema_registry_username": Names(reason=_REGISTRY),
    "schema_registry_password": Names(reason=_REGISTRY),
    "schema_registry_ssl_ca_location": Names(reason=_REGISTRY),
    "schema_registry_ssl_certificate_location": Names(reason=_REGISTRY),
    "schema_registry_ssl_key_location": Names(reason=_REGISTRY),
    "schema_registry_ssl_key_password": Names(reason=_REGISTRY),
}


def word_for_word(options: BaseModel, client: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of the options that a client (``librdkafka`` or ``spark``) takes as they are."""
    for option, names in TRANSLATIONS.items():
        name, value = getattr(names, client), getattr(options, option)
        if names.verbatim and name is not None and value is not None:
            yield name, spelled(value)


def spelled(value: object) -> str:
    """Write a value as clients read it."""
    return value.value if isinstance(value, Word) else str(value)


def spark_options(what: KafkaSqlOptions, how: KafkaWithOptions, source: str, private: Path) -> dict[str, str]:
    """Return all options but where to begin, which is for `Start.spark_options` to say.

    Secrets, and certificates with them, are written into a file of the folder `private` that is the source's own. It
    is replaced when they change, and has to be there for as long as the options are used.
    """
    how.require_secrets()
    headers = any(column.what == Metadata.HEADERS for column in what.include)
    return {
        "kafka.bootstrap.servers": what.broker,
        "subscribe": ",".join(what.names()),
        "groupIdPrefix": f"{how.group_id_prefix}{source}",
        "includeHeaders": str(headers).lower(),
        "failOnDataLoss": "true",
        "kafka.security.protocol": how.protocol().value,
        **dict(word_for_word(how, "spark")),
        **_plain_security(how),
        **point_to({**_tls(how), **_login(how)}, private / f"{source}.properties"),
    }


def _plain_security(how: KafkaWithOptions) -> dict[str, str]:
    """Return what says of which kind the secrets are."""
    told = {}
    if how.ssl_ca_location is not None:
        told["kafka.ssl.truststore.type"] = "PEM"
    if how.ssl_key_location is not None:
        told["kafka.ssl.keystore.type"] = "PEM"
    if how.sasl_mechanisms is Mechanism.GSSAPI:
        told["kafka.sasl.kerberos.service.name"] = how.kerberos_service()
    return told


def _tls(how: KafkaWithOptions) -> dict[str, str]:
    settings = {}
    if how.ssl_ca_location is not None:
        settings["ssl.truststore.certificates"] = read_certificates(how.ssl_ca_location, "ssl_ca_location")
    if how.ssl_certificate_location is not None and how.ssl_key_location is not None:
        chain = read_certificates(how.ssl_certificate_location, "ssl_certificate_location")
        settings |= {"ssl.keystore.certificate.chain": chain, **_private_key(how, how.ssl_key_location)}
    return settings


def _private_key(how: KafkaWithOptions, path: str) -> dict[str, str]:
    """Return the key, and its password only where it needs one: Java refuses one that is not needed."""
    key = read_private_key(path, "ssl_key_location")
    if not key.is_locked:
        return {"ssl.keystore.key": key.pem}
    if how.ssl_key_password is None:
        message = f"the private key in {path} is locked by a password, and none was given"
        raise DefiniteError(message, "Set ssl_key_password to where it is: env:NAME or file:PATH.")
    return {"ssl.keystore.key": key.pem, "ssl.key.password": how.ssl_key_password.resolved()}


def _login(how: KafkaWithOptions) -> dict[str, str]:
    if how.sasl_mechanisms is None:
        return {}
    if how.sasl_mechanisms is Mechanism.GSSAPI:
        return {"sasl.jaas.config": kerberos_login(how.sasl_kerberos_principal, how.sasl_kerberos_keytab)}
    assert how.sasl_username is not None
    assert how.sasl_password is not None
    return {"sasl.jaas.config": password_login(how.sasl_mechanisms, how.sasl_username, how.sasl_password.resolved())}


_PROVIDER = "org.apache.kafka.common.config.provider.FileConfigProvider"
_AWKWARD = re.compile(r"[:{},\x00-\x1f]")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})


def point_to(settings: Mapping[str, str], file: Path) -> dict[str, str]:
    """Write settings of the Java client into a private file; return the options of Spark that stand for them."""
    if not settings:
        return {}
    place = file.absolute()
    if _AWKWARD.search(str(place)):
        message = f"the path {place} cannot be pointed to from Kafka's settings: it has a colon, comma or brace"
        raise UsageError(message, "Name a folder whose path has none of them.")
    write_private(place, "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(settings.items())))
    pointers = {f"kafka.{name}": f"${{file:{place}:{name}}}" for name in settings}
    return {
        "kafka.config.providers": "file",
        "kafka.config.providers.file.class": _PROVIDER,
        # Nothing else can be read in this way, whatever another option says.
        "kafka.config.providers.file.param.allowed.paths": str(place),
        **pointers,
    }


def _escaped(value: str) -> str:
    """Write a value so that `java.util.Properties` reads it back."""
    text = value.translate(_ESCAPES)
    return f"\\{text}" if text.startswith(" ") else text


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 600, in a folder that is made with mode 700 where it is missing.

    It is written beside its place and renamed, so that whoever reads it meanwhile sees the old text or the new one. A
    file that has this text already stays as it is.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _holds(path, text):
            _replace(path, text)
    except OSError as error:
        message = f"the private file {path} cannot be written: {error.strerror}"
        raise DefiniteError(message, "Name a folder that this user can write to.") from None


def _holds(path: Path, text: str) -> bool:
    with suppress(FileNotFoundError, UnicodeDecodeError):
        return path.stat().st_mode & 0o777 == 0o600 and path.read_text(encoding="utf-8") == text
    return False


def _replace(path: Path, text: str) -> None:
    number, beside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # of mode 600 from the start
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


_MODULES = {
    Mechanism.PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
_JAAS_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


def password_login(mechanism: Mechanism, user: str, password: str) -> str:
    """Log in with user and password."""
    return f"{_MODULES[mechanism]} required username={quoted(user)} password={quoted(password)};"


def kerberos_login(principal: str | None, keytab: str | None) -> str:
    """Log in with a keytab, or with the ticket that is there."""
    named = f" principal={quoted(principal)}" if principal else ""
    if keytab is None:
        return f"{_KERBEROS_MODULE} required useTicketCache=true{named};"
    return f"{_KERBEROS_MODULE} required useKeyTab=true storeKey=true keyTab={quoted(keytab)}{named};"


def quoted(text: str) -> str:
    """Write a value so that a Java `StreamTokenizer` reads it back: it knows these escapes inside of quotes."""
    return f'"{text.translate(_JAAS_ESCAPES)}"'
