"""A table built from messages of a topic: the topic, the formats, and the envelope.

Everything that determines the columns of the table is fixed when the source is created, and stored here: the reader
schemas of keys and values (`ResolvedFormat`), the envelope, and the columns of INCLUDE. `shape` combines them. Readers
of messages (`penstock.sources.kafka.apply`) create rows with exactly these columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict

from penstock.fields import with_fields
from penstock.formats import RegistryAddress, ResolvedFormat
from penstock.model import IncludedColumn, TableName
from penstock.sources.kafka.sql_options import EnvelopeKind
from penstock.sources.row_tables import RowTable

if TYPE_CHECKING:
    from penstock.envelopes import Shape

__all__ = ["SourceTopic", "TopicTable", "reached_by"]

_RECORDS = (EnvelopeKind.DEBEZIUM, EnvelopeKind.DEBEZIUM_UPSERT)


class SourceTopic(BaseModel):
    """A topic at the creation of the source, and the offsets where its first tick starts; see `resolve_start`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    id: str | None
    offsets: tuple[int, ...]


class TopicTable(RowTable):
    """A table whose rows come from a topic."""

    topic: SourceTopic
    key_format: ResolvedFormat | None
    """None: keys are not read."""
    value_format: ResolvedFormat
    envelope: EnvelopeKind
    include: tuple[IncludedColumn, ...] = ()

    @classmethod
    def create(
        cls,
        name: TableName,
        alias: str | None,
        topic: SourceTopic,
        key_format: ResolvedFormat | None,
        value_format: ResolvedFormat,
        envelope: EnvelopeKind,
        include: tuple[IncludedColumn, ...] = (),
    ) -> Self:
        """Create the table with the resulting columns; raise `UsageError` if they are invalid."""
        shape = _shape(key_format, value_format, envelope, include)
        plain = RowTable.of(name, shape.schema(name).columns, shape.key)
        return cls(
            name=name,
            alias=alias,
            key=plain.key,
            columns=plain.columns,
            topic=topic,
            key_format=key_format,
            value_format=value_format,
            envelope=envelope,
            include=include,
        )

    def reached_by(self, registry: RegistryAddress | None) -> Self:
        """Return the table with the same schemas and another registry address."""
        return with_fields(
            self,
            key_format=None if self.key_format is None else reached_by(self.key_format, registry),
            value_format=reached_by(self.value_format, registry),
        )

    @property
    def shape(self) -> Shape:
        """The columns and the key, as Spark types."""
        return _shape(self.key_format, self.value_format, self.envelope, self.include)

    def remembers(self) -> bool:
        """Return whether apply needs state about earlier messages, to detect repeated ones."""
        return self.envelope is EnvelopeKind.DEBEZIUM

    def refuses(self) -> bool:
        """Return whether messages can be rejected; always true, because any producer can write to a topic."""
        return True

    @property
    def records(self) -> bool:
        """Whether values are Debezium records."""
        return self.envelope in _RECORDS


def reached_by(resolved: ResolvedFormat, registry: RegistryAddress | None) -> ResolvedFormat:
    """Return a format with the same schema and another registry address."""
    if not resolved.is_framed:
        return resolved
    return with_fields(resolved, format=with_fields(resolved.format, registry=registry))


def _shape(
    key_format: ResolvedFormat | None,
    value_format: ResolvedFormat,
    envelope: EnvelopeKind,
    include: tuple[IncludedColumn, ...],
) -> Shape:
    from pyspark.sql.types import StructType  # the stored table is loaded without Spark

    from penstock.envelopes import debezium_shape_of, included_type, keyed_shape, value_shape
    from penstock.formats.logical_types import spark_type

    key = None if key_format is None else spark_type(key_format)
    records = envelope in _RECORDS
    value = included_type(spark_type(value_format), key, include, records=records)
    if envelope is EnvelopeKind.NONE:
        return value_shape(value)
    key = key or StructType()
    return debezium_shape_of(key, value) if records else keyed_shape(key, value)
