"""A Kafka source as a value: which topics were asked for, how their messages are read, and as what.

Whatever asks the brokers is in `penstock.sources.kafka.creation`, and is loaded when it is asked for: statements are
read, and sources shown, without a client of Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator

from penstock.errors import UsageError
from penstock.sources.family import Source, SourceOptions
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.sense import REFUSED
from penstock.sources.kafka.sql_options import KafkaSqlOptions, refuse_strangers
from penstock.sources.kafka.with_options import KafkaWithOptions

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

    def with_options(self) -> BaseModel:
        """Return what is written in ``WITH (…)``; secrets that were allowed in clear have been kept."""
        return super().with_options().model_copy(update={"allow_literal_secrets": False})

    def create_instances(self, workers: int) -> Sequence[KafkaConfig]:
        """Return the one instance: all topics have their positions together."""
        from penstock.sources.kafka.creation import created

        return [created(self.name, self.what(), self.how(), self.retain_history)]

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
