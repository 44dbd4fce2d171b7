"""The options of a source that reads a folder of files."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, field_validator

from penstock.errors import UsageError
from penstock.sources.interface import SourceOptions
from penstock.sql.syntax.names import Name, written_name
from penstock.sql.syntax.values import Cursor, Listed, Span, Syntax
from penstock.units import parse_duration

__all__ = ["FileFormat", "FileSqlOptions", "FileWithOptions", "UnknownFields", "given_columns"]

_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_COLUMN = re.compile(r"(?P<name>.+?)\s+(?P<type>[a-z]+)(?:\(\s*(?P<digits>\d{1,3})\s*,\s*(?P<scale>\d{1,3})\s*\))?")


@dataclass(frozen=True)
class _Column(Syntax):
    """``name type``."""

    form = "name type"

    def read(self, cursor: Cursor) -> str:
        """Consume the name and the type; the option validates the type."""
        name, kind = cursor.name("column"), cursor.name("type").lower()
        if not cursor.accept("("):
            return f"{name} {kind}"
        digits = cursor.number()
        cursor.expect(",")
        scale = cursor.number()
        cursor.expect(")")
        return f"{name} {kind}({digits}, {scale})"

    def write(self, value: str) -> str:
        """Write the column, with its name quoted if necessary."""
        found = _COLUMN.fullmatch(value)
        assert found is not None, "the option validates columns"
        return f"{written_name(found['name'])} {value[found.end('name') :].strip()}"


class FileFormat(enum.StrEnum):
    """The format of the files."""

    JSON = "json"
    """JSON Lines: one JSON object per line. A file may grow; an incomplete last line is read when it is complete."""
    PARQUET = "parquet"
    """Parquet files, each of them written once."""


class UnknownFields(enum.StrEnum):
    """The handling of a field that is not a column."""

    ERROR = "error"
    """The table stops with an error: no data is lost unnoticed."""
    IGNORE = "ignore"
    """The field is ignored."""


class FileSqlOptions(BaseModel):
    """The options that are written as clauses."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    path: str = Field(description="the folder; files whose names begin with a dot or an underscore are ignored")
    format: FileFormat = Field(description="the format of the files")
    key: Annotated[tuple[str, ...], Listed(Name("column"))] = Field(
        default=(),
        description="key columns: a row replaces an earlier row with the same key; without a key, rows are appended",
    )
    columns: Annotated[tuple[str, ...], Listed(_Column())] = Field(
        default=(),
        description="the columns, each as name type (JSON only); by default inferred from the existing files",
    )

    @field_validator("path")
    @classmethod
    def _from_the_root(cls, path: str) -> str:
        if not Path(path).is_absolute():
            message = f"path {path!r} is not absolute"
            raise UsageError(message, f"Use an absolute path, like {Path('/data') / path}.")
        return path

    @field_validator("columns")
    @classmethod
    def _are_columns(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        given_columns(columns)
        return columns


class FileWithOptions(SourceOptions):
    """The options that are written in ``WITH (…)``."""

    poll_interval: Annotated[str, Span()] = Field(default="1 s", description="how often the folder is polled")
    pattern: str = Field(default="*", description="the names of the files to read, like *.json")
    unknown_fields: UnknownFields = Field(
        default=UnknownFields.ERROR, description="handling of a field that is not a column"
    )

    @field_validator("poll_interval")
    @classmethod
    def _is_an_interval(cls, text: str) -> str:
        parse_duration(text)
        return text


def given_columns(columns: tuple[str, ...]) -> pa.Schema:
    """Parse columns given as ``name type``."""
    return pa.schema([_column(text) for text in columns])


def _column(text: str) -> pa.Field:
    found = _COLUMN.fullmatch(text)
    kind = None if found is None else _type(found["type"], found["digits"], found["scale"])
    if found is None or kind is None:
        message = f"invalid column definition {text!r}"
        raise UsageError(message, f"Write: name type. The types are {', '.join(_TYPES)}, decimal(p, s).")
    return pa.field(found["name"], kind)


def _type(name: str, digits: str | None, scale: str | None) -> pa.DataType | None:
    if digits is None or scale is None:
        return _TYPES.get(name)
    fits = name == "decimal" and 0 <= int(scale) <= int(digits) <= 38 and int(digits) > 0
    return pa.decimal128(int(digits), int(scale)) if fits else None
