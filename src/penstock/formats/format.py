"""Format definitions: values that describe how the messages of a topic are encoded, to be stored and compared.

::

    AvroFormat │ JsonFormat │ ProtobufFormat │ CsvFormat │ TextFormat │ BytesFormat
        └─▶ resolve (once, when a source is created) ─▶ ResolvedFormat: the format with its reader schema, fixed
                                                             └─▶ decode (every batch)

The key and the value of a topic each have a format. This module does no I/O.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import UsageError
from penstock.formats.schema_registry import RegistryAddress

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "AvroFormat",
    "BytesFormat",
    "CsvFormat",
    "Extra",
    "Format",
    "JsonFormat",
    "LogicalType",
    "Nanoseconds",
    "ProtobufFormat",
    "ResolvedFormat",
    "TextFormat",
]

LogicalType = tuple[tuple[str, ...], str]
"""The path of a field, as names from the root, and its logical type: see `penstock.formats.logical_types`."""


class Extra(enum.StrEnum):
    """How to treat fields of a JSON message that are not in the schema."""

    IGNORE = "ignore"
    """Skip them."""
    REFUSE = "refuse"
    """Reject the message."""


class Nanoseconds(enum.StrEnum):
    """How to treat a timestamp with nanoseconds: columns have microsecond precision."""

    REFUSE = "refuse"
    """Reject the message."""
    TRUNCATE = "truncate"
    """Truncate to microseconds."""


class _FormatModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class _RegistryFormat(_FormatModel):
    registry: RegistryAddress | None = Field(
        default=None, description="the schema registry that assigned the schema ids"
    )
    subject: str | None = Field(default=None, description="the subject whose latest schema is the reader schema")


class AvroFormat(_RegistryFormat):
    """Avro. With a registry, messages begin with a schema id; without one, all messages have the given schema."""

    kind: Literal["AVRO"] = "AVRO"
    reader_schema: str | None = Field(default=None, description="the reader schema, instead of the subject's latest")

    @model_validator(mode="after")
    def _check(self) -> AvroFormat:
        if self.registry is None and self.reader_schema is None:
            message = "format AVRO requires a schema registry or a reader schema"
            raise UsageError(message, "Add USING SCHEMA REGISTRY 'http://…', or specify the schema.")
        return self


class JsonFormat(_RegistryFormat):
    """JSON text. With a registry, messages begin with a schema id."""

    kind: Literal["JSON"] = "JSON"
    columns: str | None = Field(
        default=None, description="columns in SQL notation; default: from the registry, or inferred once"
    )
    extra: Extra = Field(default=Extra.IGNORE, description="fields that are not in the schema: ignore or refuse")


class ProtobufFormat(_RegistryFormat):
    """Protobuf. With a registry, messages begin with a schema id and the index of the message type in its file."""

    kind: Literal["PROTOBUF"] = "PROTOBUF"
    descriptor_set: str | None = Field(default=None, description="the descriptor set that protoc writes, in base64")
    message: str | None = Field(
        default=None, description="the full name of the message; default: the first in the file"
    )
    nanoseconds: Nanoseconds = Field(
        default=Nanoseconds.REFUSE, description="timestamps with nanoseconds: refuse or truncate"
    )

    @model_validator(mode="after")
    def _check(self) -> ProtobufFormat:
        if self.registry is None and (self.descriptor_set is None or self.message is None):
            message = "format PROTOBUF requires a schema registry, or a descriptor set and a message name"
            raise UsageError(
                message, "Create a descriptor set with: protoc --include_imports --descriptor_set_out=FILE …"
            )
        return self


class CsvFormat(_FormatModel):
    """One line of delimited fields."""

    kind: Literal["CSV"] = "CSV"
    columns: str | int = Field(description="columns in SQL notation, or the number of columns")
    delimiter: str = Field(default=",", description="the ASCII character between fields")
    quote: str = Field(default='"', description="the ASCII character around quoted fields")

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: str | int) -> str | int:
        if isinstance(columns, int) and not 0 < columns <= 10_000:
            message = f"format CSV requires between 1 and 10000 columns, not {columns}"
            raise UsageError(message, "Specify the number of fields of a line, or the columns.")
        return columns

    @model_validator(mode="after")
    def _check(self) -> CsvFormat:
        for one in (self.delimiter, self.quote):
            if len(one) != 1 or not one.isascii() or one in "\r\n" or self.delimiter == self.quote:
                message = (
                    "delimiter and quote of format CSV must be two different ASCII characters other than line ends"
                )
                raise UsageError(message, "Use for example delimiter = ';'.")
        return self


class TextFormat(_FormatModel):
    """UTF-8 text, in the column ``text``."""

    kind: Literal["TEXT"] = "TEXT"


class BytesFormat(_FormatModel):
    """Raw bytes, in the column ``data``."""

    kind: Literal["BYTES"] = "BYTES"


Format = Annotated[
    AvroFormat | JsonFormat | ProtobufFormat | CsvFormat | TextFormat | BytesFormat, Field(discriminator="kind")
]


class ResolvedFormat(BaseModel):
    """A format whose reader schema is fixed; it is stored with the source and changes only on request."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    format: Format
    columns: str
    """The reader schema as the JSON of a Spark struct type, before conversion of Kafka Connect's logical types."""
    reader: str = ""
    """The reader schema in the format's notation: Avro schema, Protobuf files or Connect schema; else empty."""
    message: str = ""
    """The full name of the Protobuf message."""
    raw: tuple[str, ...] = ()
    """Columns of JSON that accept any value and hold its JSON text."""
    wrapped: bool = False
    """Whether a message is a single value, stored in one column, instead of a record."""
    logical_types: tuple[LogicalType, ...] = ()
    """Fields with a logical type of Kafka Connect or Debezium, which decoding converts."""

    @property
    def physical_type(self) -> pa.StructType:
        """The reader schema in Arrow, before conversion of logical types (`penstock.formats.logical_types`)."""
        from pyspark.sql.pandas.types import to_arrow_type
        from pyspark.sql.types import StructType

        return to_arrow_type(StructType.fromJson(json.loads(self.columns)), timezone="UTC")

    @property
    def is_framed(self) -> bool:
        """Whether messages begin with a schema id."""
        return getattr(self.format, "registry", None) is not None
