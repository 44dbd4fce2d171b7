"""The line with which Kafka's Java client logs in: a login module and its options, quoted as its reader unquotes."""

from __future__ import annotations

from penstock.sources.kafka.security import Mechanism

__all__ = ["kerberos_login", "password_login", "quoted"]

_MODULES = {
    Mechanism.PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


def password_login(mechanism: Mechanism, user: str, password: str) -> str:
    """Log in with user and password."""
    return f"{_MODULES[mechanism]} required username={quoted(user)} password={quoted(password)};"


def kerberos_login(principal: str | None, keytab: str | None) -> str:
    """Log in with a keytab, or with the ticket that is there."""
    named = f" principal={quoted(principal)}" if principal else ""
    if keytab is None:
        return f"{_KERBEROS} required useTicketCache=true{named};"
    return f"{_KERBEROS} required useKeyTab=true storeKey=true keyTab={quoted(keytab)}{named};"


def quoted(text: str) -> str:
    """Write a value so that a Java `StreamTokenizer` reads it back: it knows these escapes inside of quotes."""
    return f'"{text.translate(_ESCAPES)}"'
