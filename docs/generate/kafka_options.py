"""kafka-options.md, from `KafkaWithOptions` and its translation to client settings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import get_args

from docs.generate.markdown import code, table
from docs.generate.option_tables import choices, option_table

from penstock.kafka_client.connection import RegistryOptions
from penstock.kafka_client.tls import KerberosOptions, Mechanism, SaslOptions, SecurityProtocol, SslOptions
from penstock.sources.kafka.client_settings import TRANSLATIONS
from penstock.sources.kafka.message_formats import FormatOptions
from penstock.sources.kafka.option_syntax import UNSUPPORTED
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions, Metadata
from penstock.sources.kafka.with_options import (
    IsolationLevel,
    KafkaWithOptions,
    OnError,
    StartPoint,
    TimestampType,
)

__all__ = ["page"]

_OF_CLIENTS = (
    "Penstock inspects topics with librdkafka; Spark reads them with Kafka's Java client. This table lists the name of "
    "each option in both. In Spark, names with the prefix `kafka.` are settings of the Java client."
)
_ON_SECRETS = (
    "A password is a reference: `env:NAME` is an environment variable, `file:PATH` the first line of a file. It is "
    "read when a client is created. A literal password is rejected unless `allow_literal_secrets` is set; then it is "
    "stored in a file of mode 600, and the option becomes a reference to that file. Neither errors nor `repr` contain "
    "the password.",
    "Spark prints the options of a reader, for example in the plan of a stream, and redacts only those whose name or "
    "value looks like a secret (`spark.redaction.regex`). A private key does not. So no secrets are passed as Spark "
    "options: passwords, the private key and certificates are in a file of mode 600, and the options refer to it "
    "(`${file:PATH:NAME}`, resolved by Kafka's `FileConfigProvider`, which may read this file only). On a cluster, "
    "executors need the file at the same path. A test searches plans, the UI, the event log, the checkpoint and logs "
    "for the passwords that it uses.",
)
_ON_KEYS = (
    "Certificates and keys are PEM files, for both clients. The host names of brokers are always verified. The Java "
    "client requires the private key in PKCS#8; `openssl pkcs8 -topk8` converts older formats. Java 17 cannot decrypt "
    "a key that is encrypted with PBES2, OpenSSL's default, and reports `PBES2 SecretKeyFactory not available`; Java "
    "25 can. With Java 17, encrypt the key with `openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES`.",
    "`GSSAPI` requires a librdkafka built with libsasl2. The wheel of `confluent-kafka` is built without it; Penstock "
    "reports this as an error. `GSSAPI` has not been tested with a Kerberos server. `OAUTHBEARER` is rejected.",
)


def page() -> str:
    grouped = [*SslOptions.model_fields, *SaslOptions.model_fields, *RegistryOptions.model_fields]
    protocol = ["security_protocol", "allow_literal_secrets"]
    reading = [name for name in KafkaWithOptions.model_fields if name not in {*grouped, *protocol}]
    sections: list[tuple[str, Iterable[str]]] = [
        ("Security", protocol),
        ("TLS", SslOptions.model_fields),
        ("Login", [name for name in SaslOptions.model_fields if name not in KerberosOptions.model_fields]),
        ("Kerberos", KerberosOptions.model_fields),
        ("Reading", reading),
        ("Schema registry", RegistryOptions.model_fields),
    ]
    parts = [
        "# Options of a Kafka source",
        "The options of a Kafka source, and the settings of Kafka's clients that they correspond to. In SQL, write "
        "names with spaces: `ssl ca location`. The options `log` and `retain history` are [the same as for a Postgres "
        "source](sql.md#create-sources). [Read Kafka topics](../how-to/read-topics.md) has examples.",
        "## Clauses before WITH",
        "In SQL, these are keywords: `KEY FORMAT`, for example. `schema_registry` is written `USING SCHEMA REGISTRY`. "
        "Without `ENVELOPE`, the envelope is `none`.",
        option_table(KafkaSqlOptions),
    ]
    for title, names in sections:
        parts += [f"## {title}", option_table(KafkaWithOptions, names)]
    parts += ["## Secrets", *_ON_SECRETS, "## Certificates, keys and Kerberos", *_ON_KEYS]
    parts += ["## Client settings", _OF_CLIENTS, table(["option", "librdkafka", "Spark", "note"], _translated())]
    parts += [
        "## Unsupported options",
        table(["option", "reason"], [[code(o), _reason(why)] for o, (why, _) in UNSUPPORTED.items()]),
    ]
    parts += [
        *choices("Protocols", SecurityProtocol),
        *choices("Mechanisms", Mechanism),
        *choices("Start offsets", StartPoint),
        *choices("Isolation levels", IsolationLevel),
        *choices("Timestamp types", TimestampType),
        *choices("On error", OnError),
        *_formats(),
        *choices("Columns of INCLUDE", Metadata),
        *choices("Envelopes", EnvelopeKind),
    ]
    return "\n\n".join(parts)


def _formats() -> list[str]:
    intro = (
        "After `KEY FORMAT`, `VALUE FORMAT` or `FORMAT`, write the name of the format, then its options as keywords. "
        "`reader_schema` is written `SCHEMA`, and `descriptor` is written `USING DESCRIPTOR`."
    )
    parts = ["## Formats", intro]
    for each in get_args(FormatOptions):
        parts += [f"### {each.NAME}", inspect.getdoc(each) or ""]
        parts += [option_table(each)] if each.model_fields else []
    return parts


def _reason(why: str) -> str:
    return f"{why[0].upper()}{why[1:]}."


def _translated() -> list[list[str]]:
    return [[code(o), *(n if not n or " " in n else code(n) for n in (t.librdkafka or "", t.spark or "")), t.reason]
            for o, t in TRANSLATIONS.items()]  # fmt: skip
