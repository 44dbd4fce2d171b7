"""Formats: what is known of the messages of a topic, as values that are stored, shown and compared.

::

    AvroFormat │ JsonFormat │ ProtobufFormat │ CsvFormat │ TextFormat │ BytesFormat
        └─▶ resolve (once, when a source is made) ─▶ ResolvedFormat: the same, and the reader schema, fixed
                                                          └─▶ decode (every batch)

Key and value of a topic each have a format of their own. Nothing is read or asked for here.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import UsageError
from penstock.formats.registry import RegistryAddress

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
"""The path of a field, by names from the top, and its name of a type: see `penstock.formats.logical_types`."""


class Extra(enum.StrEnum):
    """What to do with fields of a JSON message that are not in the schema."""

    IGNORE = "ignore"
    """They are passed over."""
    REFUSE = "refuse"
    """The message is a problem."""


class Nanoseconds(enum.StrEnum):
    """What to do with a time that has nanoseconds: columns hold microseconds."""

    REFUSE = "refuse"
    """The message is a problem."""
    TRUNCATE = "truncate"
    """They are cut off."""


class _Described(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class _Registered(_Described):
    registry: RegistryAddress | None = Field(default=None, description="the schema registry that messages name ids of")
    subject: str | None = Field(default=None, description="the subject whose latest schema is the reader's")


class AvroFormat(_Registered):
    """Avro. With a registry, messages begin with a schema id; without one, all are of the given schema."""

    kind: Literal["AVRO"] = "AVRO"
    reader_schema: str | None = Field(default=None, description="the reader's schema, instead of the subject's latest")

    @model_validator(mode="after")
    def _check(self) -> AvroFormat:
        if self.registry is None and self.reader_schema is None:
            message = "AVRO needs a schema registry or a schema"
            raise UsageError(message, "Write USING SCHEMA REGISTRY 'http://…', or give the schema.")
        return self


class JsonFormat(_Registered):
    """JSON text. With a registry, messages begin with a schema id."""

    kind: Literal["JSON"] = "JSON"
    columns: str | None = Field(default=None, description="columns as in SQL; else the registry's, or inferred once")
    extra: Extra = Field(default=Extra.IGNORE, description="fields that are not in the schema: ignore or refuse")


class ProtobufFormat(_Registered):
    """Protobuf. With a registry, messages begin with a schema id and the place of the message in its file."""

    kind: Literal["PROTOBUF"] = "PROTOBUF"
    descriptor_set: str | None = Field(default=None, description="what protoc writes, in base64")
    message: str | None = Field(default=None, description="the full name of the message; else the first of the file")
    nanoseconds: Nanoseconds = Field(default=Nanoseconds.REFUSE, description="of timestamps: refuse or truncate")

    @model_validator(mode="after")
    def _check(self) -> ProtobufFormat:
        if self.registry is None and (self.descriptor_set is None or self.message is None):
            message = "PROTOBUF needs a schema registry, or a descriptor set and the name of the message"
            raise UsageError(message, "Make one with: protoc --include_imports --descriptor_set_out=FILE …")
        return self


class CsvFormat(_Described):
    """One line of delimited fields."""

    kind: Literal["CSV"] = "CSV"
    columns: str | int = Field(description="columns as in SQL, or how many there are")
    delimiter: str = Field(default=",", description="one ASCII character between fields")
    quote: str = Field(default='"', description="one ASCII character around fields that need it")

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: str | int) -> str | int:
        if isinstance(columns, int) and not 0 < columns <= 10_000:
            message = f"CSV with {columns} columns cannot be"
            raise UsageError(message, "Give the number of fields of a line, or the columns.")
        return columns

    @model_validator(mode="after")
    def _check(self) -> CsvFormat:
        for one in (self.delimiter, self.quote):
            if len(one) != 1 or not one.isascii() or one in "\r\n" or self.delimiter == self.quote:
                message = "delimiter and quote of CSV are two different ASCII characters, and no line ends"
                raise UsageError(message, "Write for instance delimiter = ';'.")
        return self


class TextFormat(_Described):
    """UTF-8 text, in the column ``text``."""

    kind: Literal["TEXT"] = "TEXT"


class BytesFormat(_Described):
    """Bytes as they are, in the column ``data``."""

    kind: Literal["BYTES"] = "BYTES"


Format = Annotated[
    AvroFormat | JsonFormat | ProtobufFormat | CsvFormat | TextFormat | BytesFormat, Field(discriminator="kind")
]


class ResolvedFormat(BaseModel):
    """A format whose reader schema is fixed; it is stored with the source and never changes by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    format: Format
    columns: str
    """The reader schema, without logical types of Connect: a struct type of Spark's, as its JSON."""
    reader: str = ""
    """The same as the format writes it: an Avro schema, Protobuf files, or Connect's schema; empty for the others."""
    message: str = ""
    """The full name of the Protobuf message."""
    raw: tuple[str, ...] = ()
    """Columns of JSON that take any value, as its text."""
    wrapped: bool = False
    """Whether a message is one value, in a column of its own, and not a record."""
    logical_types: tuple[LogicalType, ...] = ()
    """Fields that have a logical type of Kafka Connect or Debezium: decoding converts them."""

    @property
    def physical_type(self) -> pa.StructType:
        """The reader schema in Arrow; decoding then converts logical types (`penstock.formats.logical_types`)."""
        from pyspark.sql.pandas.types import to_arrow_type
        from pyspark.sql.types import StructType

        return to_arrow_type(StructType.fromJson(json.loads(self.columns)), timezone="UTC")

    @property
    def framed(self) -> bool:
        """Whether messages begin with a schema id."""
        return getattr(self.format, "registry", None) is not None
