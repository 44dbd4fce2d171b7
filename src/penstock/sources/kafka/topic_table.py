"""A table that messages of a topic make: where they are, how they are written, and what becomes of them.

All that decides the columns of the table is fixed when the source is made, and stored here: the reader's schemas of
keys and values (`ResolvedFormat`), the envelope, and what INCLUDE adds. Its
`shape` puts them together. Whoever reads messages (`penstock.spark.topics`) makes rows of just these columns.
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

__all__ = ["FollowedTopic", "TopicTable", "reached_by"]

_RECORDS = (EnvelopeKind.DEBEZIUM, EnvelopeKind.DEBEZIUM_UPSERT)


class FollowedTopic(BaseModel):
    """A topic as it was when the source was made, and where its first tick begins; see `beginning`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    id: str | None
    offsets: tuple[int, ...]


class TopicTable(RowTable):
    """A table of rows that come from a topic."""

    topic: FollowedTopic
    key_format: ResolvedFormat | None
    """None: keys are not read."""
    value_format: ResolvedFormat
    envelope: EnvelopeKind
    include: tuple[IncludedColumn, ...] = ()

    @classmethod
    def made(
        cls,
        name: TableName,
        alias: str | None,
        topic: FollowedTopic,
        key_format: ResolvedFormat | None,
        value_format: ResolvedFormat,
        envelope: EnvelopeKind,
        include: tuple[IncludedColumn, ...] = (),
    ) -> Self:
        """Make it, with the columns that follow from all of this; `UsageError` where they cannot be."""
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
        """Return the table with the same schemas, of a registry that is reached in another way now."""
        return with_fields(
            self,
            key_format=None if self.key_format is None else reached_by(self.key_format, registry),
            value_format=reached_by(self.value_format, registry),
        )

    @property
    def shape(self) -> Shape:
        """Its columns and its key, as Spark types."""
        return _shape(self.key_format, self.value_format, self.envelope, self.include)

    def remembers(self) -> bool:
        """Say whether it has to be known which messages came before: to tell repeated ones."""
        return self.envelope is EnvelopeKind.DEBEZIUM

    def refuses(self) -> bool:
        """Anybody can write anything into a topic."""
        return True

    @property
    def records(self) -> bool:
        """Whether values are records of Debezium."""
        return self.envelope in _RECORDS


def reached_by(resolved: ResolvedFormat, registry: RegistryAddress | None) -> ResolvedFormat:
    """Return a format with the same schema, of a registry that is reached in another way now."""
    if not resolved.framed:
        return resolved
    return with_fields(resolved, format=with_fields(resolved.format, registry=registry))


def _shape(
    key_format: ResolvedFormat | None,
    value_format: ResolvedFormat,
    envelope: EnvelopeKind,
    include: tuple[IncludedColumn, ...],
) -> Shape:
    from pyspark.sql.types import StructType  # all that is stored here is read without Spark

    from penstock.envelopes import debezium_shape_of, included_type, keyed_shape, value_shape
    from penstock.formats.logical_types import spark_type

    key = None if key_format is None else spark_type(key_format)
    records = envelope in _RECORDS
    value = included_type(spark_type(value_format), key, include, records=records)
    if envelope is EnvelopeKind.NONE:
        return value_shape(value)
    key = key or StructType()
    return debezium_shape_of(key, value) if records else keyed_shape(key, value)
