"""A Kafka source as a value: which topics were asked for, how their messages are read, and as what.

Whatever asks the brokers is in `penstock.sources.kafka.creation`, and is loaded when it is asked for: statements are
read, and sources shown, without a client of Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator

from penstock.errors import UsageError
from penstock.fields import with_fields
from penstock.positions import Lsn
from penstock.sources.interface import Checked, InstanceConfig, Source, SourceOptions
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.sql_options import KafkaSqlOptions, refuse_strangers
from penstock.sources.kafka.tls import SaslOptions, SslOptions
from penstock.sources.kafka.validation import REFUSED
from penstock.sources.kafka.with_options import KafkaWithOptions, RegistryOptions

__all__ = ["KafkaSource", "KafkaSourceOptions"]


class KafkaSourceOptions(SourceOptions, KafkaWithOptions):
    """What is written in ``WITH (…)``: how topics are read, and what every source has."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class KafkaSource(Source, KafkaSqlOptions, KafkaSourceOptions):
    """Topics of Kafka, a table each."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    NAME: ClassVar[str] = "KAFKA"
    SqlOptions: ClassVar[type[KafkaSqlOptions]] = KafkaSqlOptions
    WithOptions: ClassVar[type[KafkaSourceOptions]] = KafkaSourceOptions

    ALTERABLE: ClassVar[frozenset[str]] = frozenset(
        {
            *("retain_history", "on_error", "quarantine_limit", "timestamp_frequency_ms"),
            *("security_protocol", "client_id", "group_id_prefix"),
            *("statistics_interval_ms", "topic_metadata_refresh_interval_ms"),
            *(option for group in (SslOptions, SaslOptions, RegistryOptions) for option in group.model_fields),
        }
    )

    @model_validator(mode="after")
    def _halves_together(self) -> Self:
        refuse_strangers(self, self)
        return self

    @classmethod
    def of(cls, name: str, **options: Any) -> Self:
        """Make it of its name and its options; those of other systems are refused with the reason."""
        for option in options:
            if option in REFUSED:
                raise UsageError(*REFUSED[option])
        return super().of(name, **options)

    @classmethod
    def why_fixed(cls, option: str) -> str:
        """Say why an option cannot be changed later."""
        return _FIXED.get(option) or super().why_fixed(option)

    def with_options(self) -> BaseModel:
        """Return what is written in ``WITH (…)``; secrets that were allowed in clear have been kept."""
        return with_fields(super().with_options(), allow_literal_secrets=False)

    def create_instances(self, workers: int) -> Sequence[KafkaConfig]:
        """Return the one instance: all topics have their positions together."""
        from penstock.sources.kafka.creation import Creation

        return [Creation(self.name, self.what(), self.how()).config(self.retain_history)]

    def check(self, instance: InstanceConfig | None = None, durable: Lsn | None = None) -> Checked:
        """Look at brokers, topics and schemas."""
        from penstock.sources.kafka.check import checked

        return checked(self.name, self.what(), self.how(), instance if isinstance(instance, KafkaConfig) else None)

    def what(self) -> KafkaSqlOptions:
        """Return what is read."""
        return KafkaSqlOptions.model_construct(**self._fields(KafkaSqlOptions))

    def how(self) -> KafkaWithOptions:
        """Return how it is read."""
        return KafkaWithOptions.model_construct(**self._fields(KafkaWithOptions))

    def _fields(self, options: type[BaseModel]) -> dict[str, Any]:
        return {field: getattr(self, field) for field in options.model_fields}

    def place(self) -> str:
        """Name the topics and the brokers."""
        return f"{', '.join(self.names())} at {self.broker}"


_FIXED = {
    **dict.fromkeys(("start_offset", "start_timestamp", "kafka_time_offset"), "reading has begun there"),
    "isolation_level": "what was read so far was read with it",
    "timestamp_type": "the rows that are there have their times by it",
    "allow_literal_secrets": "a secret that is set later is a reference",
}
"""Why options cannot be changed later."""
