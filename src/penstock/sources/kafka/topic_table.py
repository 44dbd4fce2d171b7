"""A table built from messages of a topic: the topic, the formats, and the envelope.

Everything that determines the columns of the table is stored here: the reader schemas of keys and values
(`ResolvedFormat`), the envelope, and the columns of INCLUDE. `shape` combines them. Readers of messages
(`penstock.sources.kafka.apply`) create rows with exactly these columns.

The config of the source has the table as it was created. If the values gain fields, the table gains columns, from one
tick on (`penstock.sources.kafka.table_growth`): the log then has another version of its schema, which also holds the
reader schema of values, and `with_logged_columns` returns the table of that version.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from penstock.fields import with_fields
from penstock.formats import RegistryAddress, ResolvedFormat, SubjectVersion
from penstock.model import IncludedColumn, TableName, TableSchema
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
    schema_version: SubjectVersion | None = None
    """The last version of the values' subject in the registry that the columns include; None if it is unknown."""
    reader: str = ""
    """The reader schema of values as the log has it, if it is not that of the config."""

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
        schema_version: SubjectVersion | None = None,
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
            schema_version=schema_version,
        )

    def table_schema(self) -> TableSchema:
        """Return the columns and the key, and how the log describes the reader schema."""
        return replace(super().table_schema(), reader=self.reader)

    def with_logged_columns(self, schema: TableSchema) -> Self:
        """Return the table of a version of its schema in the log."""
        if not schema.reader:
            return self
        stored = json.loads(schema.reader)
        version = stored.pop(_VERSION)
        stored.pop(_GAINED)
        value_format = ResolvedFormat.model_validate({**stored, "format": self.value_format.format})
        return with_fields(
            self,
            value_format=value_format,
            columns=_serialized(schema),
            schema_version=None if version is None else SubjectVersion(*version),
            reader=schema.reader,
        )

    def with_columns(
        self, value_format: ResolvedFormat, added: Sequence[pa.Field], version: SubjectVersion | None
    ) -> Self:
        """Return the table with more columns at the end, which the values have in another reader schema."""
        schema = self.table_schema()
        gained = [*self.gained, *(field.name for field in added)]
        reader = value_format.model_dump(mode="json", exclude={"format"}) | {_VERSION: version, _GAINED: gained}
        wider = replace(schema, columns=pa.schema([*schema.columns, *added]), reader=json.dumps(reader))
        return self.with_logged_columns(wider)

    @property
    def gained(self) -> list[str]:
        """The columns that the table gained since it was created."""
        return list(json.loads(self.reader)[_GAINED]) if self.reader else []

    def places(self) -> list[tuple[str, ...]]:
        """Return where the values have the objects whose fields are columns, as names from the root."""
        if not self.records:
            return [()]
        names = {field.name for field in self.value_format.physical_type}
        record = ("payload",) if "payload" in names <= {"schema", "payload"} else ()
        return [(*record, "before"), (*record, "after")]

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
        found = _shape(self.key_format, self.value_format, self.envelope, self.include)
        if not self.reader:
            return found
        names = self.table_schema().columns.names  # added columns are the last, after those of INCLUDE
        return replace(found, columns=type(found.columns)([found.columns[name] for name in names]))

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


_VERSION, _GAINED = "schema_version", "gained"


def _serialized(schema: TableSchema) -> str:
    return base64.b64encode(schema.columns.serialize().to_pybytes()).decode("ascii")


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
