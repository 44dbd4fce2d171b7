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
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from penstock.errors import UsageError
from penstock.fields import with_fields
from penstock.kafka_client.connection import (
    ConnectionOptions,
    RegistryOptions,
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
from penstock.sinks.kafka.rules import CLAUSE_RULES, SECRET_RULES, SETTING_RULES, SINK_RULES, WHY_FIXED
from penstock.sinks.kafka.topic_names import positions_topic_name
from penstock.sinks.shared_options import NamedSink, RetainLimit
from penstock.sinks.words import CleanupPolicy, Delivery, SinkEnvelope, SinkFormat, SubjectStrategy
from penstock.sql.syntax.names import ColumnName, Name
from penstock.sql.syntax.options import Keyword
from penstock.sql.syntax.values import Cursor, Listed, Mapped, Syntax, Text, alternatives

if TYPE_CHECKING:
    from penstock.formats import RegistryAddress
    from penstock.model import TableName
    from penstock.sinks.columns import ColumnOptions

__all__ = [
    "KafkaSink",
    "KafkaSinkOptions",
    "KafkaSinkSqlOptions",
    "KeywordText",
]

_FROZEN = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
_REDACTIONS = ("null", "hash", "last four")
_FIXED_TEXT = "fixed:"
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


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
        apply_rules(self, CLAUSE_RULES)
        return self


class KafkaSinkOptions(ConnectionOptions, RetainLimit):
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

    @model_validator(mode="after")
    def _settings_together(self) -> Self:
        apply_rules(self, SETTING_RULES)
        return self

    def require_secrets(self) -> None:
        """Raise `UsageError` for a login without a password, or hashes without a key."""
        super().require_secrets()
        apply_rules(self, SECRET_RULES)


class KafkaSink(KafkaSinkSqlOptions, KafkaSinkOptions, NamedSink):
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

    table: str | None = Field(default=None, description="the local name of the table; None for all tables")

    @model_validator(mode="after")
    def _halves_together(self) -> Self:
        validate_registry_options(self.schema_registry, self)
        apply_rules(self, SINK_RULES)
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
        return WHY_FIXED.get(option, "consumers may depend on the messages that were already written")

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
