"""kafka-options.md, from `KafkaWithOptions` and what it is translated to."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import get_args

from docs.generate.markdown import code, table
from docs.generate.option_tables import choices, option_table

from penstock.sources.kafka.client_settings import TRANSLATIONS
from penstock.sources.kafka.message_formats import FormatOptions
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions, Metadata
from penstock.sources.kafka.tls import KerberosOptions, Mechanism, SaslOptions, SecurityProtocol, SslOptions
from penstock.sources.kafka.validation import REFUSED
from penstock.sources.kafka.with_options import (
    Beginning,
    IsolationLevel,
    KafkaWithOptions,
    OnError,
    RegistryOptions,
    TimestampType,
)

__all__ = ["page"]

_OF_CLIENTS = (
    "Penstock looks at topics with librdkafka, and Spark reads them with Kafka's Java client. This is what an "
    "option is called there; what begins with `kafka.` is a setting of the Java client."
)
_ON_SECRETS = (
    "A password is a reference: `env:NAME` is an environment variable, `file:PATH` the first line of a file. It is "
    "read when a client is made. In clear it is refused, unless `allow_literal_secrets` is set: then it is put into"
    " a file of mode 600, and the option becomes a reference to that. Neither errors nor `repr` show it.",
    "Spark prints the options of a reader, in the plan of a stream for one, and hides those whose name or value "
    "looks like a secret to it (`spark.redaction.regex`). A private key does not. So Spark is given none of it: "
    "passwords, the private key and certificates are in a file of mode 600, and the options point to it "
    "(`${file:PATH:NAME}`, by Kafka's `FileConfigProvider`, which may read this file alone). On a cluster, "
    "executors need it at the same path. A test plants passwords and looks for them in plans, the UI, the event "
    "log, the checkpoint and logs.",
)
_ON_KEYS = (
    "Certificates and keys are PEM files, for both clients. Brokers are always held to their names. The Java client"
    " wants the private key in PKCS#8; `openssl pkcs8 -topk8` makes one of an older kind. Java 17 cannot unlock a "
    "key that was locked in openssl's present way (PBES2), and says `PBES2 SecretKeyFactory not available`; Java 25"
    " can. Lock it with `openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES` there, or use a newer Java.",
    "`GSSAPI` needs a librdkafka that is built with libsasl2, which the wheel of `confluent-kafka` is not; an error"
    " says so. It has not been tried with a Kerberos server. `OAUTHBEARER` is refused.",
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
        "These are the options, how they are checked, and what they mean to Kafka's clients. In SQL a name is written "
        "with spaces: `ssl ca location`. [How to read topics](../how-to/read-topics.md) shows them at work.",
        "## Before WITH",
        option_table(KafkaSqlOptions),
    ]
    for title, names in sections:
        parts += [f"## {title}", option_table(KafkaWithOptions, names)]
    parts += ["## Secrets", *_ON_SECRETS, "## Certificates, keys and Kerberos", *_ON_KEYS]
    parts += ["## Names to clients", _OF_CLIENTS, table(["option", "librdkafka", "Spark", ""], _translated())]
    parts += [
        "## Refused",
        table(["option", "why"], [[code(o), f"{why[0].upper()}{why[1:]}."] for o, (why, _) in REFUSED.items()]),
    ]
    parts += [
        *choices("Protocols", SecurityProtocol),
        *choices("Mechanisms", Mechanism),
        *choices("Beginnings", Beginning),
        *choices("Isolation levels", IsolationLevel),
        *choices("Timestamp types", TimestampType),
        *choices("On error", OnError),
        *_formats(),
        *choices("Columns of INCLUDE", Metadata),
        *choices("Envelopes", EnvelopeKind),
    ]
    return "\n\n".join(parts)


def _formats() -> list[str]:
    parts = ["## Formats", "Behind `KEY FORMAT`, `VALUE FORMAT` or `FORMAT`: its name, then its options, as keywords."]
    for each in get_args(FormatOptions):
        parts += [f"### {each.NAME}", inspect.getdoc(each) or ""]
        parts += [option_table(each)] if each.model_fields else []
    return parts


def _translated() -> list[list[str]]:
    return [[code(o), *(n if not n or " " in n else code(n) for n in (t.librdkafka or "", t.spark or "")), t.reason]
            for o, t in TRANSLATIONS.items()]  # fmt: skip
