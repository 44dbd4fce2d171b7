"""Formats of keys and values as a statement gives them: ``JSON COLUMNS (id bigint, name string)``.

Each format is a model whose fields are the clauses that may follow its name. Schemas in a registry, descriptor files
and sample messages are looked up only when a source is created: see `penstock.sources.kafka.resolved_formats`.

For Debezium's JSON records the columns around the row are fixed, also where no sample message has them::

    {"before": row │ null, "after": row │ null, "source": {…}, "op": "u", …}         schemas.enable = false
    {"schema": …, "payload": {the same}}                                            schemas.enable = true

A row has the same columns before and after; they are inferred from both. Messages that contain their schema are not
inspected here: it says everything (`penstock.formats.json.connect_schema`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from penstock.errors import DefiniteError, UsageError
from penstock.formats.format import CsvFormat, Extra, Nanoseconds
from penstock.formats.json.schemas import inferred_columns
from penstock.name_suggestions import nearest
from penstock.sources.kafka.option_syntax import Columns, ColumnsOrCount, GivenColumn, column_of, ddl
from penstock.sql.syntax.options import Keyword
from penstock.sql.syntax.values import alternatives

__all__ = [
    "AvroOptions",
    "BytesOptions",
    "CsvOptions",
    "FormatOptions",
    "JsonOptions",
    "JsonShape",
    "ProtobufOptions",
    "RegisteredOptions",
    "TextOptions",
    "format_named",
    "has_row",
    "in_payload",
    "record_shape",
    "rows_of",
]

_PATHS = ("/", "./", "../", "~/")


class _Named(BaseModel):
    """A format; its JSON contains its name, so that it is parsed as the same class."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    NAME: ClassVar[str]

    @model_serializer(mode="wrap")
    def _with_its_name(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"name": self.NAME, **written(self)}

    @model_validator(mode="before")
    @classmethod
    def _of_this_name(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "name" not in given:
            return given
        if given["name"] != cls.NAME:
            message = "format name does not match"
            raise ValueError(message)
        return {option: value for option, value in given.items() if option != "name"}


class RegisteredOptions(_Named):
    """Options of formats whose schemas may be in a registry."""

    subject: str | None = Field(
        default=None, min_length=1, description="subject in the registry; default: TOPIC-key or TOPIC-value"
    )
    without_registry: bool = Field(
        default=False, description="messages do not begin with a schema id, although a registry is given"
    )

    @property
    def has_own_schema(self) -> bool:
        """Whether messages can be read without a registry."""
        return False


class AvroOptions(RegisteredOptions):
    """Avro, with a schema registry or an explicit schema."""

    NAME: ClassVar[str] = "AVRO"

    reader_schema: Annotated[str | None, Keyword("SCHEMA")] = Field(
        default=None, description="reader schema, as JSON; default: the latest schema of the subject"
    )

    @property
    def has_own_schema(self) -> bool:
        """Whether a schema is given."""
        return self.reader_schema is not None


class JsonOptions(RegisteredOptions):
    """JSON, with explicit columns, a JSON Schema in a registry, or columns inferred from the first messages."""

    NAME: ClassVar[str] = "JSON"

    columns: Annotated[tuple[GivenColumn, ...], Columns()] = Field(
        default=(), description="columns, each as name type; with Debezium envelopes, the columns of the row"
    )
    extra_fields: Extra = Field(default=Extra.IGNORE, description="handling of fields that are not columns")
    schemas_enabled: bool = Field(
        default=False, description="messages are {schema, payload}, as Connect's JSON converter writes them"
    )

    @field_validator("columns", mode="before")
    @classmethod
    def _texts(cls, columns: Any) -> Any:
        return _read_columns(columns)

    @field_validator("columns")
    @classmethod
    def _of_types_that_there_are(cls, columns: tuple[GivenColumn, ...]) -> tuple[GivenColumn, ...]:
        return _checked(columns)

    @property
    def has_own_schema(self) -> bool:
        """Whether a schema is given; always true, because columns can be inferred from messages."""
        return True


class ProtobufOptions(RegisteredOptions):
    """Protocol Buffers, with a schema registry or a descriptor set."""

    NAME: ClassVar[str] = "PROTOBUF"

    message: str | None = Field(default=None, min_length=1, description="full name of the message type")
    descriptor: Annotated[str | None, Keyword("USING DESCRIPTOR")] = Field(
        default=None, description="output of protoc --descriptor_set_out: path of the file, or its bytes in base64"
    )
    nanoseconds: Nanoseconds = Field(default=Nanoseconds.REFUSE, description="handling of nanoseconds in timestamps")

    @field_validator("descriptor")
    @classmethod
    def _from_the_root(cls, given: str | None) -> str | None:
        """Return an absolute path; base64 of a descriptor set never begins like a path."""
        return str(Path(given).expanduser().absolute()) if given and given.startswith(_PATHS) else given

    @model_validator(mode="after")
    def _names_its_message(self) -> ProtobufOptions:
        if self.descriptor is not None and self.message is None:
            message = "USING DESCRIPTOR requires the name of the message type"
            raise UsageError(message, "Add MESSAGE 'package.Name'.")
        return self

    @property
    def has_own_schema(self) -> bool:
        """Whether a descriptor set is given."""
        return self.descriptor is not None

    def descriptor_file(self) -> Path | None:
        """Return the file of the descriptor set; None if it was given inline or not at all."""
        return Path(self.descriptor) if self.descriptor and self.descriptor.startswith("/") else None


class CsvOptions(_Named):
    """One line of delimited fields."""

    NAME: ClassVar[str] = "CSV"

    columns: Annotated[tuple[GivenColumn, ...] | int, ColumnsOrCount()] = Field(
        description="columns, each as name type; or the number of columns, all of type text"
    )
    delimiter: str = Field(default=",", description="one ASCII character between fields")
    quote: str = Field(default='"', description="one ASCII character around fields that need it")

    @field_validator("columns", mode="before")
    @classmethod
    def _texts(cls, columns: Any) -> Any:
        return columns if isinstance(columns, int) else _read_columns(columns)

    @model_validator(mode="after")
    def _can_be_read(self) -> CsvOptions:
        self.described()
        if not isinstance(self.columns, int):
            _checked(self.columns)
        return self

    def described(self) -> CsvFormat:
        """Return the format."""
        columns = self.columns if isinstance(self.columns, int) else ddl(self.columns)
        return CsvFormat(columns=columns, delimiter=self.delimiter, quote=self.quote)


class TextOptions(_Named):
    """UTF-8 text, in the column ``text``."""

    NAME: ClassVar[str] = "TEXT"


class BytesOptions(_Named):
    """Raw bytes, in the column ``data``."""

    NAME: ClassVar[str] = "BYTES"


FormatOptions = AvroOptions | JsonOptions | ProtobufOptions | CsvOptions | TextOptions | BytesOptions

_FORMATS: dict[str, type[_Named]] = {
    each.NAME: each for each in (AvroOptions, JsonOptions, ProtobufOptions, CsvOptions, TextOptions, BytesOptions)
}


def format_named(given: Any) -> Any:
    """Return the format of a name, as Python programs may pass it; return anything else unchanged."""
    if not isinstance(given, str):
        return given
    found = _FORMATS.get(given.upper())
    if found is None:
        message = f'unrecognized format "{given}"'
        raise UsageError(message, nearest(given.upper(), _FORMATS) or f"Use {alternatives(_FORMATS)}.")
    return {"name": found.NAME}


def _read_columns(columns: Any) -> Any:
    if not isinstance(columns, list | tuple):
        return columns
    return tuple(column_of(column) if isinstance(column, str) else column for column in columns)


def _checked(columns: tuple[GivenColumn, ...]) -> tuple[GivenColumn, ...]:
    """Raise `UsageError` for columns with an invalid type or a duplicate name."""
    names = [column.name.lower() for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        message = f'column "{twice[0]}" specified more than once'
        raise UsageError(message, "Give each column a unique name; names are not case-sensitive.")
    for column in columns:
        if not _is_one_column(column):
            message = f'invalid type for column "{column.name}": "{column.type}"'
            raise UsageError(message, "Use a Spark SQL type, such as bigint, decimal(10, 2) or array<string>.")
    return columns


def _is_one_column(column: GivenColumn) -> bool:
    """Return whether a column definition is valid; raise `UsageError` for a type that messages cannot have."""
    from sqlglot.errors import SqlglotError

    from penstock.formats.ddl import ddl_columns

    try:
        found = ddl_columns(ddl([column]))
    except SqlglotError:
        return False
    except UsageError as error:
        if isinstance(error.__cause__, SqlglotError):
            return False
        raise
    return bool(found.num_fields == 1 and found.field(0).name == column.name)


_WRAPPED = {"schema", "payload"}
_TEXTS = ("version", "connector", "name", "snapshot", "db", "sequence", "schema", "table", "file", "gtid")
_NUMBERS = ("ts_ms", "ts_us", "ts_ns", "txId", "lsn", "xmin", "server_id", "pos", "row", "thread")
_SOURCE = pa.struct(
    [*(pa.field(name, pa.string()) for name in _TEXTS), *(pa.field(name, pa.int64()) for name in _NUMBERS)]
)
_TRANSACTION = pa.struct([("id", pa.string()), ("total_order", pa.int64()), ("data_collection_order", pa.int64())])
_PLACES = ("before", "after")


@dataclass(frozen=True)
class JsonShape:
    """The type of a JSON text, and the paths in it that accept any value as text."""

    type: pa.DataType
    raw: tuple[str, ...] = ()


def record_shape(row: JsonShape) -> JsonShape:
    """Return the shape of Debezium records whose rows have a shape."""
    around = [("source", _SOURCE), ("op", pa.string()), ("ts_ms", pa.int64()), ("transaction", _TRANSACTION)]
    fields = [*((place, row.type) for place in _PLACES), *around]
    return JsonShape(pa.struct(fields), tuple(f"{place}.{path}" for place in _PLACES for path in row.raw))


def in_payload(shape: JsonShape) -> JsonShape:
    """Return the shape of messages with another shape as their payload."""
    return JsonShape(pa.struct([("payload", shape.type)]), tuple(f"payload.{path}" for path in shape.raw))


def has_row(message: bytes | None) -> bool:
    """Return whether a message is a Debezium record that contains a row."""
    return bool(_rows(_record(message)))


def rows_of(values: Iterable[bytes]) -> JsonShape:
    """Infer the shape of the rows in records; raise `DefiniteError` if no message is a record with a row."""
    rows = [row for value in values for row in _rows(_record(value))]
    if not rows:
        message = "could not infer columns: no message of the sample is a Debezium record with a row"
        raise DefiniteError(message, "Specify the columns of the row: JSON COLUMNS (id bigint, …).")
    kind, raw = inferred_columns(json.dumps(row).encode() for row in rows)
    return JsonShape(kind, tuple(raw))


def _record(message: bytes | None) -> Any:
    """Return the content of a message, without its wrapper if it has one; None if it is not JSON."""
    try:
        found = json.loads(message) if message else None
    except (ValueError, RecursionError):
        return None
    return found["payload"] if isinstance(found, dict) and found.keys() == _WRAPPED else found


def _rows(record: Any) -> list[dict[str, Any]]:
    if not isinstance(record, dict) or "op" not in record:
        return []
    return [record[place] for place in _PLACES if isinstance(record.get(place), dict)]
