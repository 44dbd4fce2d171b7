"""A Kafka sink as a value: which tables it writes to which topics, in which format and envelope, and how to connect.

::

    CREATE SINK name FROM source[.table] INTO KAFKA clause … WITH (option = value, …)
                                              │                    │
                                   KafkaSinkSqlOptions     KafkaSinkOptions ──▶ KafkaSink: both, and name, source, table

Options are validated alone, within their model, and together: a rule is a condition, and the message if it holds. What
depends on the columns of the tables is checked when the sink is created. Code that connects to brokers is elsewhere:
statements are parsed, and sinks displayed, without a Kafka client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from penstock.errors import UsageError
from penstock.fields import with_fields
from penstock.kafka_client.connection import (
    ConnectionOptions,
    RegistryOptions,
    Rule,
    apply_rules,
    checked_brokers,
    checked_topic,
    checked_url,
    validate_registry_options,
)
from penstock.kafka_client.option_values import Word
from penstock.kafka_client.secrets import SecretOption
from penstock.kafka_client.tls import SaslOptions, SslOptions
from penstock.name_suggestions import nearest
from penstock.sinks.kafka.topic_names import positions_topic_name
from penstock.sources.interface import is_name
from penstock.sql.syntax.names import ColumnName, Name
from penstock.sql.syntax.options import Keyword
from penstock.sql.syntax.values import Cursor, Listed, Mapped, Span, Syntax, Text, alternatives
from penstock.units import parse_duration

if TYPE_CHECKING:
    from penstock.formats import RegistryAddress
    from penstock.model import TableName
    from penstock.sinks.columns import ColumnOptions

__all__ = [
    "CleanupPolicy",
    "Delivery",
    "KafkaSink",
    "KafkaSinkOptions",
    "KafkaSinkSqlOptions",
    "KeywordText",
    "SinkEnvelope",
    "SinkFormat",
    "SubjectStrategy",
    "check_sink_name",
]

_FROZEN = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
_REDACTIONS = ("null", "hash", "last four")
_FIXED_TEXT = "fixed:"
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class SinkFormat(Word):
    """The format of keys and values."""

    JSON = "json"
    """JSON; with a schema registry, with a registered JSON Schema."""
    AVRO = "avro"
    """Avro, with a schema registry."""
    PROTOBUF = "protobuf"
    """Protocol Buffers, with a schema registry."""


class SinkEnvelope(Word):
    """The messages of a change."""

    UPSERT = "upsert"
    """The row after the change, by key; a message without a value (a tombstone) for a deleted row."""
    DEBEZIUM = "debezium"
    """The record that Debezium's Postgres connector writes: `before`, `after`, `source`, `op`."""
    CHANGES = "changes"
    """One message for each change: the operation, its position, and the row before and after it."""
    TRANSACTIONS = "transactions"
    """One message for each transaction, with all its changes; a large transaction has several messages."""


class Delivery(Word):
    """What a consumer sees after a failure."""

    EXACTLY_ONCE = "exactly once"
    """Each change once, with `isolation.level=read_committed`: the position is in the Kafka transaction of the
    messages."""
    AT_LEAST_ONCE = "at least once"
    """Some changes again: Spark writes the messages, in parallel tasks, and the home has the position."""


class SubjectStrategy(Word):
    """The subject of a schema in the registry."""

    TOPIC = "topic"
    """The name of the topic, with the suffix `-key` or `-value`."""
    RECORD = "record"
    """The name of the record."""
    TOPIC_RECORD = "topic record"
    """The name of the topic, a dash, and the name of the record."""


class CleanupPolicy(Word):
    """The cleanup policy of the topics that the sink creates."""

    DELETE = "delete"
    """Messages are deleted after the retention time of the topic."""
    COMPACT = "compact"
    """The last message of each key is kept."""
    COMPACT_DELETE = "compact,delete"
    """Both."""


@dataclass(frozen=True)
class KeywordText(Syntax):
    """One of several keywords, without quotes: ``JSON``."""

    words: type[Word]

    @property
    def form(self) -> str:
        """Return the keywords."""
        return alternatives(word.value.upper() for word in self.words)

    def read(self, cursor: Cursor) -> Any:
        """Consume one of the keywords."""
        for word in self.words:
            if cursor.accept(*word.value.upper().split()):
                return word
        near = nearest(" ".join(cursor.words()[:1]), [word.value.upper() for word in self.words])
        raise cursor.expected(hint=near or f"Expected {self.form}.")

    def write(self, value: Any) -> str:
        """Write the keyword."""
        return str(value.value).upper()


class KafkaSinkSqlOptions(BaseModel):
    """Where a Kafka sink writes to, and what its messages look like."""

    model_config = _FROZEN

    NAME: ClassVar[str] = "a Kafka sink"

    broker: str = Field(description="one or more brokers, host:port, separated by commas")
    topic: Annotated[str | None, Keyword("TOPIC", one_of="topics")] = Field(
        default=None, description="the topic for all messages"
    )
    topic_prefix: Annotated[str | None, Keyword("TOPIC PREFIX", one_of="topics")] = Field(
        default=None, description="a topic for each table instead: this prefix, followed by schema.table"
    )
    key: Annotated[tuple[str, ...], Listed(Name("column"))] = Field(
        default=(), description="columns of the message key; by default those of the primary key of the table"
    )
    format: Annotated[SinkFormat, KeywordText(SinkFormat)] = Field(description="format of keys and values")
    schema_registry: Annotated[str | None, Keyword("USING SCHEMA REGISTRY")] = Field(
        default=None, description="URL of the schema registry"
    )
    envelope: Annotated[SinkEnvelope, KeywordText(SinkEnvelope)] = Field(description="messages of a change")

    @field_validator("broker")
    @classmethod
    def _hosts_and_ports(cls, text: str) -> str:
        return checked_brokers(text)

    @field_validator("topic")
    @classmethod
    def _a_topic(cls, name: str | None) -> str | None:
        return None if name is None else checked_topic(name)

    @field_validator("topic_prefix")
    @classmethod
    def _begins_a_topic(cls, prefix: str | None) -> str | None:
        if prefix:
            checked_topic(f"{prefix}t")
        return prefix

    @field_validator("schema_registry")
    @classmethod
    def _a_url(cls, url: str | None) -> str | None:
        return None if url is None else checked_url(url)

    @field_validator("key", mode="before")
    @classmethod
    def _one_column(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @field_validator("key")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _unique(names, "KEY column")

    @model_validator(mode="after")
    def _clauses_together(self) -> Self:
        apply_rules(self, _CLAUSE_RULES)
        return self


class KafkaSinkOptions(ConnectionOptions):
    """Options of a Kafka sink other than brokers, topics, key, format and envelope."""

    model_config = _FROZEN

    snapshot: bool = Field(
        default=True, description="whether the sink begins with the rows of the tables, before their changes"
    )
    delivery: Delivery = Field(
        default=Delivery.EXACTLY_ONCE,
        description="guarantee for consumers; with 'at least once', Spark writes the messages in parallel tasks",
    )
    include_columns: Annotated[tuple[str, ...], Listed(ColumnName())] = Field(
        default=(), description="the columns of values; by default all"
    )
    exclude_columns: Annotated[tuple[str, ...], Listed(ColumnName())] = Field(
        default=(), description="columns that are left out of values"
    )
    where: str | None = Field(
        default=None,
        min_length=1,
        description="a condition in SQL on the columns of a single table; for the sink, rows for which it is not true "
        "do not exist",
    )
    transform: str | None = Field(
        default=None,
        description="a function 'package.module:function', from DataFrame to DataFrame, through which the rows of a "
        "single table pass in Spark; it gets the columns as messages would have them",
    )
    rename_columns: Annotated[Mapping[str, str], Mapped(ColumnName(), Name("name"))] = Field(
        default_factory=dict, description="other names for columns; all other options use the original names"
    )
    redact: Annotated[Mapping[str, str], Mapped(ColumnName(), Text())] = Field(
        default_factory=dict,
        description="columns whose values are replaced: 'null', 'hash' (a keyed hash), 'last four', or 'fixed:text'",
    )
    redact_key: SecretOption = Field(
        default=None, description="key of the hashes of option redact: env:NAME or file:PATH"
    )
    format_timestamp: str | None = Field(
        default=None, min_length=1, description="notation of timestamps, such as iso8601"
    )
    format_date: str | None = Field(default=None, min_length=1, description="notation of dates, such as iso8601")
    format_numeric: str | None = Field(default=None, min_length=1, description="notation of numerics, such as string")
    format_bytes: str | None = Field(default=None, min_length=1, description="notation of bytes, such as base64")
    tombstones: bool = Field(
        default=True,
        description="whether a message without a value follows the record of a deleted row; false requires ENVELOPE "
        "DEBEZIUM",
    )
    json_schemas: bool = Field(
        default=False,
        description="messages are {schema, payload}, as Connect's JSON converter writes them; requires FORMAT JSON and "
        "ENVELOPE DEBEZIUM",
    )
    provide_transaction_metadata: bool = Field(
        default=False,
        description="messages have a transaction block, and a topic has BEGIN and END of each transaction, as with "
        "Debezium's provide.transaction.metadata; requires ENVELOPE DEBEZIUM",
    )
    transaction_topic: str | None = Field(
        default=None,
        description="the topic for BEGIN and END; default: the prefix of topics, or the name of the source, and "
        ".transaction",
    )
    subject_strategy: SubjectStrategy = Field(
        default=SubjectStrategy.TOPIC, description="subjects of schemas in the registry"
    )
    create_topics: bool = Field(default=True, description="whether missing topics are created")
    partitions: int | None = Field(
        default=None, ge=1, le=100_000, description="partitions of created topics; default: that of the brokers"
    )
    replication: int | None = Field(
        default=None, ge=1, le=1000, description="replication factor of created topics; default: that of the brokers"
    )
    cleanup_policy: CleanupPolicy | None = Field(
        default=None,
        description="cleanup policy of created topics; default: compact with ENVELOPE UPSERT, otherwise delete",
    )
    positions_topic: str | None = Field(
        default=None,
        description="compacted topic with the position of the sink; created if it is missing; default: "
        "penstock-sink-positions- and the name of the sink",
    )
    retain_limit: Annotated[str | None, Span()] = Field(
        default=None,
        description="how long history is retained for a sink that is behind; after that it stops with an error; "
        "default: no limit",
    )

    @field_validator("include_columns", "exclude_columns")
    @classmethod
    def _columns_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _unique(names, "column")

    @field_validator("rename_columns")
    @classmethod
    def _other_names(cls, names: Mapping[str, str]) -> Mapping[str, str]:
        _unique(tuple(names.values()), "new column name")
        return names

    @field_validator("redact")
    @classmethod
    def _known_redactions(cls, methods: Mapping[str, str]) -> Mapping[str, str]:
        return {column: _redaction(column, method) for column, method in methods.items()}

    @field_validator("transform")
    @classmethod
    def _a_function(cls, name: str | None) -> str | None:
        if name is not None and not _FUNCTION.fullmatch(name):
            message = 'invalid value for option "transform"'
            raise UsageError(message, "Use 'package.module:function'.")
        return name

    @field_validator("positions_topic")
    @classmethod
    def _a_positions_topic(cls, name: str | None) -> str | None:
        return None if name is None else checked_topic(name)

    @field_validator("transaction_topic")
    @classmethod
    def _a_transaction_topic(cls, name: str | None) -> str | None:
        return None if name is None else checked_topic(name)

    @field_validator("retain_limit")
    @classmethod
    def _is_a_duration(cls, text: str | None) -> str | None:
        if text is not None:
            parse_duration(text)
        return text

    @model_validator(mode="after")
    def _settings_together(self) -> Self:
        apply_rules(self, _SETTING_RULES)
        return self

    def require_secrets(self) -> None:
        """Raise `UsageError` for a login without a password, or hashes without a key."""
        super().require_secrets()
        apply_rules(self, _SECRET_RULES)

    def retain_limit_span(self) -> timedelta | None:
        """Return how long history is retained for a sink that is behind; None without a limit."""
        return None if self.retain_limit is None else parse_duration(self.retain_limit)


class KafkaSink(KafkaSinkSqlOptions, KafkaSinkOptions):
    """Changes of one table, or of all tables of a source, written to Kafka topics."""

    model_config = _FROZEN

    NAME: ClassVar[str] = "KAFKA"
    SqlOptions: ClassVar[type[KafkaSinkSqlOptions]] = KafkaSinkSqlOptions
    WithOptions: ClassVar[type[KafkaSinkOptions]] = KafkaSinkOptions
    ALTERABLE: ClassVar[frozenset[str]] = frozenset(
        {
            *("security_protocol", "client_id", "retain_limit"),
            *(option for group in (SslOptions, SaslOptions, RegistryOptions) for option in group.model_fields),
        }
    )
    """Options that ``ALTER SINK … SET`` can change."""

    name: str
    source: str = Field(description="the name of the source, as the user gave it")
    table: str | None = Field(default=None, description="the local name of the table; None for all tables")

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        return check_sink_name(name)

    @model_validator(mode="after")
    def _halves_together(self) -> Self:
        validate_registry_options(self.schema_registry, self)
        apply_rules(self, _SINK_RULES)
        return self

    @classmethod
    def of(cls, name: str, source: str, table: str | None, **options: Any) -> Self:
        """Return a sink with this name and the options of both types; raise `UsageError` for an invalid one."""
        known = {*cls.SqlOptions.model_fields, *cls.WithOptions.model_fields}
        for option in options:
            if option not in known:
                message = f'unrecognized option "{option}" for a {cls.NAME} sink'
                raise UsageError(message, nearest(option, known, '"') or "See the sinks reference.")
        try:
            return cls.model_validate({**options, "name": name, "source": source, "table": table})
        except ValidationError as invalid:
            first = invalid.errors(include_input=False, include_url=False)[0]
            option = str(first["loc"][0]) if first["loc"] else name
            if first["type"] == "missing":
                message = f'missing option "{option}" for a {cls.NAME} sink'
                raise UsageError(message, f'Set option "{option}".') from None
            message = f'invalid value for option "{option}": {first["msg"][:1].lower()}{first["msg"][1:]}'
            raise UsageError(message, "See the sinks reference.") from None

    @classmethod
    def from_options(cls, name: str, source: str, table: str | None, sql: BaseModel, with_: BaseModel) -> Self:
        """Return the sink that a statement's options describe."""
        given = {field: getattr(half, field) for half in (sql, with_) for field in half.model_fields_set}
        return cls.of(name, source, table, **given)

    @classmethod
    def why_fixed(cls, option: str) -> str:
        """Return why an option cannot be altered."""
        return _FIXED.get(option, "consumers may depend on the messages that were already written")

    def sql_options(self) -> KafkaSinkSqlOptions:
        """Return the options that are written as clauses."""
        fields = {field: getattr(self, field) for field in KafkaSinkSqlOptions.model_fields}
        return KafkaSinkSqlOptions.model_construct(None, **fields)

    def with_options(self) -> KafkaSinkOptions:
        """Return the options that are written in ``WITH (…)``; literal secrets were already stored."""
        fields = {field: getattr(self, field) for field in KafkaSinkOptions.model_fields}
        return with_fields(KafkaSinkOptions.model_construct(None, **fields), allow_literal_secrets=False)

    def server_name(self) -> str:
        """Return Debezium's logical name of the server: the prefix of topics, or the name of the source."""
        return (self.topic_prefix or "").rstrip(".-_") or self.source

    def topic_of_positions(self) -> str:
        """Return the topic that has the position of the sink."""
        return self.positions_topic or positions_topic_name(self.name)

    @property
    def metadata_topic(self) -> str | None:
        """The topic with BEGIN and END of each transaction; None without one."""
        if not self.provide_transaction_metadata:
            return None
        return self.transaction_topic or f"{self.server_name()}.transaction"

    def record_names(self, upstream: TableName) -> tuple[str, str]:
        """Return the names of the records of keys and values of a table, by its upstream name, as Debezium has them."""
        table = f"{self.server_name()}.{upstream.schema}.{upstream.name}"
        return f"{table}.Key", f"{table}.{'Envelope' if self.envelope is SinkEnvelope.DEBEZIUM else 'Value'}"

    def subjects(self, topic: str, upstream: TableName, *, has_key: bool) -> list[str]:
        """Return the subjects of the key, if messages have one, and of the value; none without a schema registry."""
        if self.schema_registry is None:
            return []
        records = dict(zip(("key", "value"), self.record_names(upstream), strict=True))
        return self._subjects(topic, records if has_key else {"value": records["value"]})

    def metadata_subjects(self) -> list[str]:
        """Return the subjects of key and value of the transaction topic; none without it or a schema registry."""
        from penstock.sinks.debezium import TRANSACTION_KEY, TRANSACTION_VALUE

        if self.metadata_topic is None or self.schema_registry is None:
            return []
        return self._subjects(self.metadata_topic, {"key": TRANSACTION_KEY, "value": TRANSACTION_VALUE})

    def _subjects(self, topic: str, records: Mapping[str, str]) -> list[str]:
        match self.subject_strategy:
            case SubjectStrategy.TOPIC:
                return [f"{topic}-{part}" for part in records]
            case SubjectStrategy.RECORD:
                return list(records.values())
            case SubjectStrategy.TOPIC_RECORD:
                return [f"{topic}-{record}" for record in records.values()]

    def place(self) -> str:
        """Return the topics and the brokers, for users."""
        return f"{self.topic if self.topic is not None else f'{self.topic_prefix}*'} at {self.broker}"

    def column_options(self) -> ColumnOptions:
        """Return the options that concern columns."""
        from penstock.sinks.columns import ColumnOptions
        from penstock.sinks.value_formats import ValueFormats

        formats = ValueFormats(self.format_timestamp, self.format_date, self.format_numeric, self.format_bytes)
        return ColumnOptions(self.include_columns, self.exclude_columns, self.rename_columns, self.redact, formats)

    def client_settings(self) -> dict[str, str]:
        """Return settings of librdkafka for producers, consumers and admin clients, with secrets in clear text."""
        from penstock.kafka_client.settings import connection_settings

        return connection_settings(self.broker, self)

    def registry(self) -> RegistryAddress | None:
        """Return the address of the schema registry; None without one."""
        from penstock.kafka_client.settings import registry_address

        return registry_address(self.schema_registry, self)


def check_sink_name(name: str) -> str:
    """Return the name of a sink; raise `UsageError` if it is invalid."""
    if not is_name(name):
        message = f"invalid sink name {name!r}"
        raise UsageError(
            message, "Use a lower-case letter, then lower-case letters, digits and underscores, at most 41 characters."
        )
    return name


def _unique(names: tuple[str, ...], what: str) -> tuple[str, ...]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        message = f'{what} "{twice[0]}" specified more than once'
        raise UsageError(message, "Specify it once.")
    return names


def _redaction(column: str, method: str) -> str:
    """Return a valid redaction, in lower case; the text after ``fixed:`` is unchanged."""
    if method.casefold().startswith(_FIXED_TEXT):
        return f"{_FIXED_TEXT}{method[len(_FIXED_TEXT) :]}"
    if method.casefold() not in _REDACTIONS:
        message = f'unrecognized redaction of column "{column}" in option "redact"'
        forms = alternatives([*(f"'{each}'" for each in _REDACTIONS), "'fixed:text'"])
        raise UsageError(message, nearest(method, _REDACTIONS, "'") or f"Use {forms}.")
    return method.casefold()


# -- rules -------------------------------------------------------------------------------------------------------------

_FIXED = {
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


def _hashes(options: KafkaSinkOptions) -> bool:
    return "hash" in options.redact.values()


def _excluded_and(options: KafkaSinkOptions, names: Mapping[str, str]) -> str:
    """Return the first of these columns that option exclude_columns or include_columns leaves out."""
    return next((name for name in names if _is_left_out(options, name)), "")


def _is_left_out(options: KafkaSinkOptions, name: str) -> bool:
    return name in options.exclude_columns or bool(options.include_columns and name not in options.include_columns)


def _topic_setting(options: KafkaSinkOptions) -> str:
    names = ("partitions", "replication", "cleanup_policy")
    return next((name for name in names if getattr(options, name) is not None), "")


_CLAUSE_RULES: tuple[Rule, ...] = (
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
_SETTING_RULES: tuple[Rule, ...] = (
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
_SECRET_RULES: tuple[Rule, ...] = (
    (
        lambda o: _hashes(o) and o.redact_key is None,
        "redaction 'hash' requires option \"redact_key\"",
        "Set option \"redact_key\" to a reference: 'env:NAME' or 'file:PATH'.",
    ),
)
_SINK_RULES: tuple[Rule, ...] = (
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
