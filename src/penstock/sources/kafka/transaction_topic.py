"""The topic in which Debezium says which changes are one transaction: where reading it begins, and how.

Its messages are written as values of the other topics are, with a schema of their own. Of JSON they need none: what
Debezium writes there is known (`penstock.sources.kafka.transactions.narrowing`).
"""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.errors import UsageError
from penstock.formats import AvroFormat, Format, JsonFormat, ProtobufFormat, RegistryAddress, ResolvedFormat, resolve
from penstock.sources.kafka.beginning import beginning
from penstock.sources.kafka.message_formats import FormatOptions, JsonOptions, RegisteredOptions
from penstock.sources.kafka.registry_address import registry_address
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.start import Start, start_of
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["transaction_metadata"]

_KNOWN = "status STRING, id STRING"
_FORMATS: dict[str, type[AvroFormat | ProtobufFormat]] = {"AVRO": AvroFormat, "PROTOBUF": ProtobufFormat}


def transaction_metadata(source: str, what: KafkaSqlOptions, how: KafkaWithOptions, topic: str) -> TransactionMetadata:
    """Look at the topic. Do so before the others are: what they have at their start is told there later."""
    start = start_of(how, datetime.now(UTC))
    begun = beginning(what, how, source, topic, Start() if start.offsets else start)
    address = registry_address(what, how)
    return TransactionMetadata(topic=begun, format=_resolved(what.values(), address, topic))


def _resolved(given: FormatOptions, address: RegistryAddress | None, topic: str) -> ResolvedFormat:
    registered = isinstance(given, RegisteredOptions) and not given.without_registry
    address = address if registered else None
    described: Format
    if isinstance(given, JsonOptions):
        described = JsonFormat(registry=address, columns=_KNOWN)
    elif address is not None and given.NAME in _FORMATS:
        described = _FORMATS[given.NAME](registry=address)
    else:
        message = (
            f"how the transactions in {topic} are written is not known: values are {given.NAME}, without a registry"
        )
        raise UsageError(
            message, "Let Debezium write with a schema registry, or JSON; or leave TRANSACTION METADATA out."
        )
    return resolve(described, subject=f"{topic}-value")
