"""The topic in which Debezium says which changes are one transaction: where reading it begins, and how.

Its messages are written as values of the other topics are, with a schema of their own. Of JSON they need none: what
Debezium writes there is known (`penstock.sources.kafka.transactions.metadata`).
"""

from __future__ import annotations

from penstock.errors import DefiniteError, UsageError
from penstock.formats import AvroFormat, JsonFormat, RegistryAddress, ResolvedFormat, resolve
from penstock.sources.kafka.first_offsets import beginning
from penstock.sources.kafka.message_formats import AvroOptions, FormatOptions, JsonOptions, RegisteredOptions
from penstock.sources.kafka.registry_address import registry_address
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_start import Start
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["transaction_metadata"]

_KNOWN = "status STRING, id STRING"


def transaction_metadata(
    source: str, what: KafkaSqlOptions, how: KafkaWithOptions, topic: str, start: Start
) -> TransactionMetadata:
    """Look at the topic, before the others are: what they have from their start on is told there from its start on.

    Offsets that are given are of the others: it begins with all that it has.
    """
    begun = beginning(what, how, source, topic, Start() if start.offsets else start)
    if len(begun.offsets) > 1:
        message = f"the topic {topic} of transaction metadata has {len(begun.offsets)} partitions"
        raise DefiniteError(message, "Let it have one: the order of transactions is that of its messages.")
    address = registry_address(what, how)
    return TransactionMetadata(topic=begun, format=_resolved(what.values(), address, topic))


def _resolved(given: FormatOptions, address: RegistryAddress | None, topic: str) -> ResolvedFormat:
    registered = isinstance(given, RegisteredOptions) and not given.without_registry
    address = address if registered else None
    if isinstance(given, JsonOptions):
        return resolve(JsonFormat(registry=address, columns=_KNOWN))
    if isinstance(given, AvroOptions) and address is not None:
        return resolve(AvroFormat(registry=address), subject=f"{topic}-value")
    message = f"transaction metadata is read as JSON, or as AVRO by a registry, and values are {given.NAME} otherwise"
    raise UsageError(message, "Let Debezium write so, or leave TRANSACTION METADATA out.")
