"""How those options of a Kafka source are written in SQL whose types do not say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.sources import syntax
from penstock.sources.cursor import Cursor

__all__ = ["EnvelopeText", "Offsets", "SecretText"]

_BEGINNINGS = syntax.Choice(("earliest", "latest"))
_LIST = syntax.Listed(syntax.Number(whole=True))
_ENVELOPES = ("DEBEZIUM UPSERT", "DEBEZIUM", "UPSERT", "NONE")


@dataclass(frozen=True)
class SecretText(syntax.Secret):
    """``'env:NAME'``: a reference, which the option holds as a `Secret`."""

    def write(self, value: Any) -> str:
        """Write where it is; one that nobody has kept is refused."""
        return syntax.written_text(value.reference)


@dataclass(frozen=True)
class Offsets(syntax.Syntax):
    """``'earliest'``, ``'latest'`` or ``(0, 17)``."""

    form = f"{_BEGINNINGS.form} or {_LIST.form}"

    def read(self, cursor: Cursor) -> Any:
        """Take the word or the list."""
        return (_BEGINNINGS if cursor.is_text() or cursor.words() else _LIST).read(cursor)

    def write(self, value: Any) -> str:
        """Write the word or the list."""
        return _LIST.write(value) if isinstance(value, tuple) else _BEGINNINGS.write(value)


@dataclass(frozen=True)
class EnvelopeText(syntax.Syntax):
    """``DEBEZIUM TRANSACTION METADATA (TOPIC 'name')``, or another envelope."""

    form = "NONE | UPSERT | DEBEZIUM UPSERT | DEBEZIUM [TRANSACTION METADATA (TOPIC 'text')]"

    def read(self, cursor: Cursor) -> dict[str, str | None]:
        """Take the envelope, as the fields of its model."""
        kind = next((words for words in _ENVELOPES if cursor.takes(*words.split())), None)
        if kind is None:
            raise cursor.expected(self.form)
        return {"kind": kind.lower(), "transaction_metadata_topic": _transactions(cursor)}

    def write(self, value: Any) -> str:
        """Write the envelope."""
        topic = value.transaction_metadata_topic
        transactions = f" TRANSACTION METADATA (TOPIC {syntax.written_text(topic)})" if topic else ""
        return f"{value.kind.value.upper()}{transactions}"


def _transactions(cursor: Cursor) -> str | None:
    if not cursor.takes("TRANSACTION", "METADATA"):
        return None
    cursor.expects("(")
    cursor.expects("TOPIC")
    topic = cursor.text()
    cursor.expects(")")
    return topic
