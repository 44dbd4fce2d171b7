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
from penstock.sources.cursor import Cursor
from penstock.sources.interface import SourceOptions
from penstock.sources.name_syntax import Name, written_name
from penstock.sources.syntax import Listed, Span, Syntax
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
        """Take the name and the type; whether there is such a type is for the option to say."""
        name, kind = cursor.name("column"), cursor.name("type").lower()
        if not cursor.takes("("):
            return f"{name} {kind}"
        digits = cursor.number()
        cursor.expects(",")
        scale = cursor.number()
        cursor.expects(")")
        return f"{name} {kind}({digits}, {scale})"

    def write(self, value: str) -> str:
        """Quote the name where it needs that."""
        found = _COLUMN.fullmatch(value)
        assert found is not None, "the option holds them to this form"
        return f"{written_name(found['name'])} {value[found.end('name') :].strip()}"


class FileFormat(enum.StrEnum):
    """What the files are."""

    JSON = "json"
    """Lines, a JSON object each. A file may grow: whole lines are taken in, a last one without its end waits."""
    PARQUET = "parquet"
    """Parquet files, each of them written once."""


class UnknownFields(enum.StrEnum):
    """What becomes of a field that is no column."""

    ERROR = "error"
    """The table ends there, with an error: nothing is lost unnoticed."""
    IGNORE = "ignore"
    """It is left out."""


class FileSqlOptions(BaseModel):
    """What is written in keywords."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    path: str = Field(description="the folder; files in it whose names begin with a dot or an underscore do not count")
    format: FileFormat = Field(description="what the files are")
    key: Annotated[tuple[str, ...], Listed(Name("column"))] = Field(
        default=(), description="columns by which a later row takes the place of an earlier one; without, rows add up"
    )
    columns: Annotated[tuple[str, ...], Listed(_Column())] = Field(
        default=(),
        description="the columns, each as name type; without, they are those of the files that are there. JSON alone",
    )

    @field_validator("path")
    @classmethod
    def _from_the_root(cls, path: str) -> str:
        if not Path(path).is_absolute():
            message = f"the path {path!r} does not begin at the root"
            raise UsageError(message, f"Write it whole, like {Path('/data') / path}: other processes read it, too.")
        return path

    @field_validator("columns")
    @classmethod
    def _are_columns(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        given_columns(columns)
        return columns


class FileWithOptions(SourceOptions):
    """What is written in ``WITH (…)``."""

    poll_interval: Annotated[str, Span()] = Field(default="1 s", description="how often the folder is looked at")
    pattern: str = Field(default="*", description="which files count, by their names, like *.json")
    unknown_fields: UnknownFields = Field(
        default=UnknownFields.ERROR, description="what becomes of a field that is no column"
    )

    @field_validator("poll_interval")
    @classmethod
    def _is_an_interval(cls, text: str) -> str:
        parse_duration(text)
        return text


def given_columns(columns: tuple[str, ...]) -> pa.Schema:
    """Read columns as ``name type``."""
    return pa.schema([_column(text) for text in columns])


def _column(text: str) -> pa.Field:
    found = _COLUMN.fullmatch(text)
    kind = None if found is None else _type(found["type"], found["digits"], found["scale"])
    if found is None or kind is None:
        message = f"{text!r} is not a column"
        raise UsageError(message, f"Write it as name type, with one of {', '.join(_TYPES)}, decimal(p, s).")
    return pa.field(found["name"], kind)


def _type(name: str, digits: str | None, scale: str | None) -> pa.DataType | None:
    if digits is None or scale is None:
        return _TYPES.get(name)
    fits = name == "decimal" and 0 <= int(scale) <= int(digits) <= 38 and int(digits) > 0
    return pa.decimal128(int(digits), int(scale)) if fits else None
