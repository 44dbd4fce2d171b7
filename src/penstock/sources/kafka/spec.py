"""A Kafka source as a value: its topics, the formats of their messages, and the envelope.

Code that connects to brokers is in `penstock.sources.kafka.creation` and is imported on demand: statements are parsed,
and sources displayed, without a Kafka client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator

from penstock.fields import with_fields
from penstock.kafka_client.connection import RegistryOptions
from penstock.kafka_client.option_values import reject_unsupported
from penstock.kafka_client.tls import SaslOptions, SslOptions
from penstock.positions import Lsn
from penstock.sources.interface import Checked, InstanceConfig, Source, SourceOptions
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.option_syntax import UNSUPPORTED
from penstock.sources.kafka.sql_options import KafkaSqlOptions, validate_together
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["KafkaSource", "KafkaSourceOptions"]


class KafkaSourceOptions(SourceOptions, KafkaWithOptions):
    """The options in ``WITH (…)``: those of Kafka, and those that every source has."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class KafkaSource(Source, KafkaSqlOptions, KafkaSourceOptions):
    """Kafka topics, a table for each."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    NAME: ClassVar[str] = "KAFKA"
    SqlOptions: ClassVar[type[KafkaSqlOptions]] = KafkaSqlOptions
    WithOptions: ClassVar[type[KafkaSourceOptions]] = KafkaSourceOptions
    UNSUPPORTED: ClassVar[Mapping[str, tuple[str, str]]] = UNSUPPORTED

    ALTERABLE: ClassVar[frozenset[str]] = frozenset(
        {
            *("retain_history", "on_error", "quarantine_limit", "new_columns", "timestamp_frequency_ms"),
            *("security_protocol", "client_id", "group_id_prefix"),
            *("statistics_interval_ms", "topic_metadata_refresh_interval_ms"),
            *(option for group in (SslOptions, SaslOptions, RegistryOptions) for option in group.model_fields),
        }
    )

    @model_validator(mode="after")
    def _halves_together(self) -> Self:
        validate_together(self, self)
        return self

    @classmethod
    def of(cls, name: str, **options: Any) -> Self:
        """Create a source from its name and options; reject options of other systems with the reason."""
        reject_unsupported(options, cls.UNSUPPORTED)
        return super().of(name, **options)

    @classmethod
    def why_fixed(cls, option: str) -> str:
        """Return why an option cannot be altered."""
        return _FIXED.get(option) or super().why_fixed(option)

    def with_options(self) -> BaseModel:
        """Return the options in ``WITH (…)``; literal secrets were already stored."""
        return with_fields(super().with_options(), allow_literal_secrets=False)

    def create_instances(self, workers: int) -> Sequence[KafkaConfig]:
        """Return the single instance: all topics share their positions."""
        from penstock.sources.kafka.creation import Creation

        return [Creation(self.name, self.what(), self.how()).config(self.retain_history)]

    def check(self, instance: InstanceConfig | None = None, durable: Lsn | None = None) -> Checked:
        """Check brokers, topics and schemas."""
        from penstock.sources.kafka.check import checked

        return checked(self.name, self.what(), self.how(), instance if isinstance(instance, KafkaConfig) else None)

    def what(self) -> KafkaSqlOptions:
        """Return the options before WITH."""
        return KafkaSqlOptions.model_construct(**self._fields(KafkaSqlOptions))

    def how(self) -> KafkaWithOptions:
        """Return the options after WITH."""
        return KafkaWithOptions.model_construct(**self._fields(KafkaWithOptions))

    def _fields(self, options: type[BaseModel]) -> dict[str, Any]:
        return {field: getattr(self, field) for field in options.model_fields}

    def place(self) -> str:
        """Return the topics and the brokers."""
        return f"{', '.join(self.names())} at {self.broker}"


_FIXED = {
    **dict.fromkeys(("start_offset", "start_timestamp", "kafka_time_offset"), "reading has already started"),
    "isolation_level": "earlier messages were read with it",
    "timestamp_type": "existing rows have timestamps of this type",
    "allow_literal_secrets": "a secret in ALTER must be a reference",
}
"""Why options cannot be altered."""
