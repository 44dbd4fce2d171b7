"""The topic with Debezium's transaction metadata: its start offset and its format.

Its messages have the format of the values of the other topics, with their own schema. JSON needs no schema, because the
fields that Debezium writes are known (`penstock.sources.kafka.transactions.metadata`).
"""

from __future__ import annotations

from penstock.errors import DefiniteError, UsageError
from penstock.formats import AvroFormat, JsonFormat, RegistryAddress, ResolvedFormat, resolve
from penstock.sources.kafka.message_formats import AvroOptions, FormatOptions, JsonOptions, RegisteredOptions
from penstock.sources.kafka.registry_address import registry_address
from penstock.sources.kafka.resolved_start import resolve_start
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_start import Start
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["transaction_metadata"]

_KNOWN = "status STRING, id STRING"


def transaction_metadata(
    source: str, what: KafkaSqlOptions, how: KafkaWithOptions, topic: str, start: Start
) -> TransactionMetadata:
    """Inspect the topic before the data topics, so that it covers all transactions from their start on.

    Explicit start offsets belong to the data topics: the metadata topic then starts with its first message.
    """
    begun = resolve_start(what, how, source, topic, Start() if start.offsets else start)
    if len(begun.offsets) > 1:
        message = f"topic {topic} with transaction metadata has {len(begun.offsets)} partitions, expected one"
        raise DefiniteError(message, "Recreate it with one partition: its messages define the order of transactions.")
    address = registry_address(what, how)
    return TransactionMetadata(topic=begun, format=_resolved(what.values(), address, topic))


def _resolved(given: FormatOptions, address: RegistryAddress | None, topic: str) -> ResolvedFormat:
    registered = isinstance(given, RegisteredOptions) and not given.without_registry
    address = address if registered else None
    if isinstance(given, JsonOptions):
        return resolve(JsonFormat(registry=address, columns=_KNOWN))
    if isinstance(given, AvroOptions) and address is not None:
        return resolve(AvroFormat(registry=address), subject=f"{topic}-value")
    message = f"transaction metadata requires JSON, or AVRO with a schema registry, but values are {given.NAME}"
    raise UsageError(message, "Configure a supported format in Debezium, or remove TRANSACTION METADATA.")
