"""How keys or values are written, as a statement says it: ``JSON COLUMNS (id bigint, name string)``.

Each format is a model, whose fields are the clauses that may follow its name. They describe; what is looked up for them
(schemas of a registry, a descriptor's file, messages to infer columns from) is so when a source is made, and only then:
see `penstock.sources.kafka.resolved`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from penstock.errors import UsageError
from penstock.formats.format import CsvFormat, Extra, Nanoseconds
from penstock.nearest import nearest
from penstock.sources.kafka.column_syntax import Columns, ColumnsOrCount, GivenColumn, column_of, ddl
from penstock.sources.option_syntax import Keyword

__all__ = [
    "AvroOptions",
    "BytesOptions",
    "CsvOptions",
    "FormatOptions",
    "JsonOptions",
    "ProtobufOptions",
    "RegisteredOptions",
    "TextOptions",
    "format_named",
]

_PATHS = ("/", "./", "../", "~/")


class _Named(BaseModel):
    """A format; its name stands in its JSON, so that it is read again as what it is."""

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
            message = "it is another format"
            raise ValueError(message)
        return {option: value for option, value in given.items() if option != "name"}


class RegisteredOptions(_Named):
    """What formats have whose schemas may be in a registry."""

    subject: str | None = Field(
        default=None, min_length=1, description="the registry's subject, where it is not <topic>-key or <topic>-value"
    )
    without_registry: bool = Field(
        default=False, description="that these messages do not begin with a schema id, although a registry is named"
    )

    @property
    def has_own_schema(self) -> bool:
        """Whether messages can be read without a registry."""
        return False


class AvroOptions(RegisteredOptions):
    """Avro, by a schema registry or by a schema that is given."""

    NAME: ClassVar[str] = "AVRO"

    reader_schema: Annotated[str | None, Keyword("SCHEMA")] = Field(
        default=None, description="the schema to read with, as its JSON; else the latest of the subject"
    )

    @property
    def has_own_schema(self) -> bool:
        """Whether a schema is given."""
        return self.reader_schema is not None


class JsonOptions(RegisteredOptions):
    """JSON, by columns that are given, a JSON Schema in a registry, or what the first messages show."""

    NAME: ClassVar[str] = "JSON"

    columns: Annotated[tuple[GivenColumn, ...], Columns()] = Field(
        default=(), description="the columns, each as name type; of the row, where Debezium writes the messages"
    )
    extra_fields: Extra = Field(default=Extra.IGNORE, description="what becomes of fields that are no columns")
    schemas_enabled: bool = Field(
        default=False, description="that messages are {schema, payload}, as Connect's JSON converter writes them"
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
        """JSON tells its shape by itself."""
        return True


class ProtobufOptions(RegisteredOptions):
    """Protocol Buffers, by a schema registry or by a descriptor set."""

    NAME: ClassVar[str] = "PROTOBUF"

    message: str | None = Field(default=None, min_length=1, description="the full name of the message")
    descriptor: Annotated[str | None, Keyword("USING DESCRIPTOR")] = Field(
        default=None, description="what protoc --descriptor_set_out wrote: the path of the file, or its bytes in base64"
    )
    nanoseconds: Nanoseconds = Field(default=Nanoseconds.REFUSE, description="what becomes of those of timestamps")

    @field_validator("descriptor")
    @classmethod
    def _from_the_root(cls, given: str | None) -> str | None:
        """A path begins like one; bytes of a descriptor set never do, as base64."""
        return str(Path(given).expanduser().absolute()) if given and given.startswith(_PATHS) else given

    @model_validator(mode="after")
    def _names_its_message(self) -> ProtobufOptions:
        if self.descriptor is not None and self.message is None:
            message = "a descriptor set has many messages, and none is named"
            raise UsageError(message, "Add MESSAGE 'package.Name'.")
        return self

    @property
    def has_own_schema(self) -> bool:
        """Whether a descriptor set is given."""
        return self.descriptor is not None

    def descriptor_file(self) -> Path | None:
        """Return the file of the descriptor set; None where it was given itself, or is not."""
        return Path(self.descriptor) if self.descriptor and self.descriptor.startswith("/") else None


class CsvOptions(_Named):
    """One line of delimited fields."""

    NAME: ClassVar[str] = "CSV"

    columns: Annotated[tuple[GivenColumn, ...] | int, ColumnsOrCount()] = Field(
        description="the columns, each as name type; or how many there are, all of them text"
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
    """Bytes as they are, in the column ``data``."""

    NAME: ClassVar[str] = "BYTES"


FormatOptions = AvroOptions | JsonOptions | ProtobufOptions | CsvOptions | TextOptions | BytesOptions

_FORMATS: dict[str, type[_Named]] = {
    each.NAME: each for each in (AvroOptions, JsonOptions, ProtobufOptions, CsvOptions, TextOptions, BytesOptions)
}


def format_named(given: Any) -> Any:
    """Return the format of a name, as Python programs may give it; anything else as it is."""
    if not isinstance(given, str):
        return given
    found = _FORMATS.get(given.upper())
    if found is None:
        message = f"there is no format {given}"
        raise UsageError(message, nearest(given.upper(), _FORMATS) or f"The formats are {', '.join(_FORMATS)}.")
    return {"name": found.NAME}


def _read_columns(columns: Any) -> Any:
    if not isinstance(columns, list | tuple):
        return columns
    return tuple(column_of(column) if isinstance(column, str) else column for column in columns)


def _checked(columns: tuple[GivenColumn, ...]) -> tuple[GivenColumn, ...]:
    """Refuse columns of which one has no type that can be read, or the name of another."""
    names = [column.name.lower() for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        message = f"the column {twice[0]} is given more than once"
        raise UsageError(message, "Give each a name of its own: upper and lower case are the same.")
    for column in columns:
        if not _is_one_column(column):
            message = f"the type of the column {column.name!r} cannot be read"
            raise UsageError(message, "Write one of Spark SQL's, like bigint, decimal(10, 2) or array<string>.")
    return columns


def _is_one_column(column: GivenColumn) -> bool:
    """Say whether a column can be read as what it is; `UsageError` where its type is none that messages have."""
    from sqlglot.errors import SqlglotError

    from penstock.formats.ddl import ddl_columns

    try:
        found = ddl_columns(ddl([column]))
    except SqlglotError:
        return False
    return bool(found.num_fields == 1 and found.field(0).name == column.name)
