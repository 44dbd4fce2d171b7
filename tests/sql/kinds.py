"""Source kinds for tests of the grammar: the real Postgres, one like Kafka, and one whose name has two words."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from penstock.errors import UsageError
from penstock.sources.postgres.spec import PostgresSource
from penstock.sql.syntax.names import Inclusion, Inclusions
from penstock.sql.syntax.options import Keyword, Written
from penstock.sql.syntax.values import Secret, Size

WHATS = ("key", "partition", "offset", "timestamp", "headers")


class Options(BaseModel):
    """The base class of the models in this module."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Avro(Options):
    """``AVRO [USING SCHEMA REGISTRY 'url']``."""

    NAME: ClassVar[str] = "AVRO"
    registry: Annotated[str | None, Keyword("USING SCHEMA REGISTRY")] = None


class Json(Options):
    """``JSON``."""

    NAME: ClassVar[str] = "JSON"


class Bare(Options):
    """``NONE``."""

    NAME: ClassVar[str] = "NONE"


class Upsert(Options):
    """``UPSERT``."""

    NAME: ClassVar[str] = "UPSERT"


class TransactionTopic(Options):
    """``(TOPIC 'name')``."""

    topic: str


class Debezium(Options):
    """``DEBEZIUM [TRANSACTION METADATA (TOPIC 'name')]``."""

    NAME: ClassVar[str] = "DEBEZIUM"
    transaction_metadata: TransactionTopic | None = None


class DebeziumUpsert(Options):
    """``DEBEZIUM UPSERT``."""

    NAME: ClassVar[str] = "DEBEZIUM UPSERT"


class Mechanism(enum.StrEnum):
    """SASL mechanisms."""

    PLAIN = "PLAIN"
    SCRAM = "SCRAM-SHA-512"


class KafkaSqlOptions(Options):
    """The clauses of a Kafka source."""

    broker: str
    topic: str
    format: Avro | Json | None = None
    key_format: Avro | Json | None = None
    value_format: Avro | Json | None = None
    include: Annotated[tuple[Inclusion, ...], Inclusions(WHATS)] = ()
    envelope: Bare | Upsert | Debezium | DebeziumUpsert = Bare()
    read_only: bool = False

    @model_validator(mode="after")
    def _one_format(self) -> KafkaSqlOptions:
        if self.format and self.value_format:
            message = "FORMAT and VALUE FORMAT are mutually exclusive"
            raise UsageError(message, "Give FORMAT, or KEY FORMAT and VALUE FORMAT.")
        return self


class KafkaWithOptions(Options):
    """One option of each type."""

    start_offset: tuple[int, ...] = ()
    start_at: dict[int, int] = Field(default_factory=dict)
    ssl_ca_location: str | None = None
    sasl_mechanisms: Mechanism | None = None
    sasl_username: str | None = None
    sasl_password: Annotated[str | None, Secret()] = None
    fetch: Annotated[int, Size()] = 1 << 20
    poll_timeout: timedelta = timedelta(seconds=1)
    properties: dict[str, str] = Field(default_factory=dict)
    sample: float = Field(default=1.0, ge=0)
    order: Literal["time", "arrival"] = "time"
    mechanisms: tuple[Mechanism, ...] = ()
    strict: bool = True


class KafkaLike:
    """A kind with the attributes that the grammar needs."""

    NAME: ClassVar[str] = "KAFKA"
    SqlOptions: ClassVar[type[KafkaSqlOptions]] = KafkaSqlOptions
    WithOptions: ClassVar[type[KafkaWithOptions]] = KafkaWithOptions


class LoadSqlOptions(Options):
    """One optional clause."""

    rate: int = 1


class LoadWithOptions(Options):
    """No options."""


class LoadGenerator:
    """A kind whose name has two words."""

    NAME: ClassVar[str] = "LOAD GENERATOR"
    SqlOptions: ClassVar[type[LoadSqlOptions]] = LoadSqlOptions
    WithOptions: ClassVar[type[LoadWithOptions]] = LoadWithOptions


KINDS: Mapping[str, Written] = {"POSTGRES": PostgresSource, "KAFKA": KafkaLike, "LOAD GENERATOR": LoadGenerator}
