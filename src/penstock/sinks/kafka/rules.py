"""Which options of a Kafka sink are allowed together, and which can be changed.

A rule is a condition, and the message and the hint if it holds. A condition may return the option at fault. Rules of
the clauses and of the options in ``WITH (…)`` are checked where each of them is complete, and rules of the whole sink
when both are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.kafka_client.connection import Rule
from penstock.sinks.words import Delivery, SinkEnvelope, SinkFormat, SubjectStrategy

__all__ = ["CLAUSE_RULES", "SECRET_RULES", "SETTING_RULES", "SINK_RULES", "WHY_FIXED"]

WHY_FIXED = {
    "snapshot": "the sink has already started",
    "allow_literal_secrets": "a secret in ALTER must be a reference",
    "where": "rows that were left out before would still be missing",
    "redact_key": "hashes of the same value would differ from those that were already written",
    "positions_topic": "the position of the sink is in that topic",
    "delivery": "the position of the sink would be in another place",
    **dict.fromkeys(
        ("create_topics", "partitions", "replication", "cleanup_policy"), "it applies only when topics are created"
    ),
}
"""Why options cannot be altered."""


def _hashes(options: Any) -> bool:
    return "hash" in options.redact.values()


def _excluded_and(options: Any, names: Mapping[str, str]) -> str:
    """Return the first of these columns that option exclude_columns or include_columns leaves out."""
    return next((name for name in names if _is_left_out(options, name)), "")


def _is_left_out(options: Any, name: str) -> bool:
    return name in options.exclude_columns or bool(options.include_columns and name not in options.include_columns)


def _topic_setting(options: Any) -> str:
    names = ("partitions", "replication", "cleanup_policy")
    return next((name for name in names if getattr(options, name) is not None), "")


CLAUSE_RULES: tuple[Rule, ...] = (
    (
        lambda o: o.topic is not None and o.topic_prefix is not None,
        "TOPIC and TOPIC PREFIX are mutually exclusive",
        "Use TOPIC 'name' for one topic, or TOPIC PREFIX 'prefix' for a topic per table.",
    ),
    (
        lambda o: o.envelope is SinkEnvelope.DEBEZIUM and o.format is SinkFormat.PROTOBUF,
        "ENVELOPE DEBEZIUM is not available in FORMAT PROTOBUF, which would lose the scale of decimals",
        "Use FORMAT AVRO or JSON, or another envelope.",
    ),
    (
        lambda o: o.envelope is SinkEnvelope.TRANSACTIONS and o.format is not SinkFormat.JSON,
        "ENVELOPE TRANSACTIONS requires FORMAT JSON",
        "Use FORMAT JSON, or ENVELOPE CHANGES: a message for each change.",
    ),
    (
        lambda o: o.envelope is SinkEnvelope.TRANSACTIONS and o.topic_prefix is not None,
        "ENVELOPE TRANSACTIONS requires TOPIC, not TOPIC PREFIX: a transaction may change several tables",
        "Use TOPIC 'name', or ENVELOPE CHANGES: a message for each change.",
    ),
    (
        lambda o: o.envelope is SinkEnvelope.TRANSACTIONS and bool(o.key),
        "KEY is invalid with ENVELOPE TRANSACTIONS: its messages contain the changes of many rows",
        "Remove KEY, or use ENVELOPE CHANGES: a message for each change.",
    ),
    (
        lambda o: o.envelope is SinkEnvelope.TRANSACTIONS and o.schema_registry is not None,
        "ENVELOPE TRANSACTIONS has no registered schema: its messages contain rows of several tables",
        "Remove USING SCHEMA REGISTRY.",
    ),
    (
        lambda o: o.format is not SinkFormat.JSON and o.schema_registry is None and o.format.value.upper(),
        "FORMAT {option} requires a schema registry",
        "Add USING SCHEMA REGISTRY 'https://…', or use FORMAT JSON.",
    ),
    (
        lambda o: o.topic is None and o.topic_prefix is None,
        "missing TOPIC clause",
        "Add TOPIC 'name' for one topic, or TOPIC PREFIX 'prefix' for a topic per table.",
    ),
)
SETTING_RULES: tuple[Rule, ...] = (
    (
        lambda o: bool(o.include_columns and o.exclude_columns),
        'options "include_columns" and "exclude_columns" are mutually exclusive',
        "Use only one of them.",
    ),
    (
        lambda o: _excluded_and(o, o.redact),
        'column "{option}" in option "redact" is not among the columns of the sink',
        "Remove the column from that option: a column that is left out needs no redaction.",
    ),
    (
        lambda o: _excluded_and(o, o.rename_columns),
        'column "{option}" in option "rename_columns" is not among the columns of the sink',
        "Remove the column from that option.",
    ),
    (
        lambda o: o.redact_key is not None and not _hashes(o),
        "option \"redact_key\" requires a column with redaction 'hash'",
        "Remove the option, or set option redact = (column = 'hash').",
    ),
    (
        lambda o: "" if o.create_topics else _topic_setting(o),
        'option "{option}" applies only to topics that the sink creates, and option "create_topics" is false',
        "Remove one of the two options.",
    ),
)
SECRET_RULES: tuple[Rule, ...] = (
    (
        lambda o: _hashes(o) and o.redact_key is None,
        "redaction 'hash' requires option \"redact_key\"",
        "Set option \"redact_key\" to a reference: 'env:NAME' or 'file:PATH'.",
    ),
)
SINK_RULES: tuple[Rule, ...] = (
    (
        lambda o: o.table is None and o.topic is not None and o.envelope is SinkEnvelope.UPSERT,
        "ENVELOPE UPSERT requires a topic per table: the keys of several tables would be mixed in one topic",
        "Use TOPIC PREFIX 'prefix', or FROM source.table.",
    ),
    (
        lambda o: o.table is None and bool(o.key),
        "KEY requires a single table",
        "Use FROM source.table; or remove KEY, to use the primary key of each table.",
    ),
    (
        lambda o: o.table is None and o.where is not None,
        'option "where" requires a single table',
        "Use FROM source.table, with a sink for each table.",
    ),
    (
        lambda o: o.table is None and o.transform is not None,
        'option "transform" requires a single table',
        "Use FROM source.table, with a sink for each table.",
    ),
    (
        lambda o: o.transform is not None and o.envelope is SinkEnvelope.DEBEZIUM,
        'option "transform" is invalid with ENVELOPE DEBEZIUM, whose messages describe the table upstream',
        "Use another envelope, or remove the option.",
    ),
    (
        lambda o: next((name for name in o.key if _is_left_out(o, name)), ""),
        'KEY column "{option}" is not among the columns of the sink',
        "Include the column, or use another key.",
    ),
    (
        lambda o: o.json_schemas and (o.format is not SinkFormat.JSON or o.envelope is not SinkEnvelope.DEBEZIUM),
        'option "json_schemas" requires FORMAT JSON and ENVELOPE DEBEZIUM',
        "Remove the option, or use FORMAT JSON and ENVELOPE DEBEZIUM.",
    ),
    (
        lambda o: o.json_schemas and o.schema_registry is not None,
        'option "json_schemas" is invalid with a schema registry, which has the schemas already',
        "Remove the option, or USING SCHEMA REGISTRY.",
    ),
    (
        lambda o: not o.tombstones and o.envelope is SinkEnvelope.UPSERT,
        'option "tombstones" cannot be false with ENVELOPE UPSERT: tombstones are its messages of deleted rows',
        "Remove the option, or use another envelope.",
    ),
    (
        lambda o: not o.tombstones and o.envelope is not SinkEnvelope.DEBEZIUM,
        'option "tombstones" requires ENVELOPE DEBEZIUM; other envelopes than UPSERT have no tombstones',
        "Remove the option.",
    ),
    (
        lambda o: o.provide_transaction_metadata and o.envelope is not SinkEnvelope.DEBEZIUM,
        'option "provide_transaction_metadata" requires ENVELOPE DEBEZIUM',
        "Remove the option, or use ENVELOPE TRANSACTIONS: one message for each transaction.",
    ),
    (
        lambda o: o.transaction_topic is not None and not o.provide_transaction_metadata,
        'option "transaction_topic" requires option "provide_transaction_metadata"',
        "Set provide_transaction_metadata = true, or remove the option.",
    ),
    (
        lambda o: o.metadata_topic if o.metadata_topic in (o.topic, o.topic_of_positions()) else "",
        'the transaction topic "{option}" is already the topic of the messages or of the positions',
        'Set option "transaction_topic" to another topic.',
    ),
    (
        lambda o: o.subject_strategy is not SubjectStrategy.TOPIC and o.schema_registry is None,
        'option "subject_strategy" requires a schema registry',
        "Add USING SCHEMA REGISTRY 'https://…', or remove the option.",
    ),
    (
        lambda o: (
            o.subject_strategy is SubjectStrategy.TOPIC
            and o.schema_registry is not None
            and o.table is None
            and o.topic is not None
        ),
        "tables that share a topic have several schemas, and option \"subject_strategy\" 'topic' allows one per topic",
        "Set option \"subject_strategy\" to 'topic record' or 'record', or use TOPIC PREFIX 'prefix'.",
    ),
    (
        lambda o: o.delivery is Delivery.AT_LEAST_ONCE and o.envelope is SinkEnvelope.TRANSACTIONS,
        "ENVELOPE TRANSACTIONS requires option \"delivery\" 'exactly once': its messages are whole transactions",
        "Use 'exactly once', the default, or another envelope.",
    ),
    (
        lambda o: o.delivery is Delivery.AT_LEAST_ONCE and o.transform is not None,
        'option "transform" requires option "delivery" \'exactly once\'',
        "Remove one of the two options.",
    ),
    (
        lambda o: o.delivery is Delivery.AT_LEAST_ONCE and o.provide_transaction_metadata,
        'option "provide_transaction_metadata" requires option "delivery" \'exactly once\'',
        "Remove one of the two options.",
    ),
    (
        lambda o: o.delivery is Delivery.AT_LEAST_ONCE and o.positions_topic is not None,
        'option "positions_topic" requires option "delivery" \'exactly once\'; otherwise the position is in the home',
        "Remove one of the two options.",
    ),
    (
        lambda o: o.topic == o.topic_of_positions(),
        'option "positions_topic" is the topic of the messages',
        "Use another topic for one of them.",
    ),
)
