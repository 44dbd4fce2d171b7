"""A folder of files as a source: its description, and the config of its instance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

import pyarrow as pa
from pydantic import ConfigDict, model_validator

from penstock.errors import PenstockError, UsageError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.files.folder import found_files
from penstock.sources.files.json_lines import infer
from penstock.sources.files.options import FileFormat, FileSqlOptions, FileWithOptions, UnknownFields, given_columns
from penstock.sources.files.parquet import has_end, parquet_columns
from penstock.sources.findings import error
from penstock.sources.interface import Checked, InstanceConfig, Source
from penstock.sources.polling import PollingConfig
from penstock.sources.row_tables import RowTable

__all__ = ["FileConfig", "FileSource"]


class FileConfig(PollingConfig):
    """The config of the capture of a folder."""

    path: str
    format: FileFormat
    key: tuple[str, ...]
    pattern: str
    poll_interval: str
    unknown_fields: UnknownFields

    def place(self) -> str:
        """Return the folder."""
        return self.path


class FileSource(Source, FileSqlOptions, FileWithOptions):
    """A folder of files as one table with the name of the source."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    NAME: ClassVar[str] = "FILE"
    SqlOptions: ClassVar[type[FileSqlOptions]] = FileSqlOptions
    WithOptions: ClassVar[type[FileWithOptions]] = FileWithOptions
    ALTERABLE: ClassVar[frozenset[str]] = frozenset({"retain_history", "poll_interval"})

    @model_validator(mode="after")
    def _columns_of_json(self) -> Self:
        if self.columns and self.format is not FileFormat.JSON:
            message = "COLUMNS cannot be combined with FORMAT 'parquet'"
            raise UsageError(message, "Remove COLUMNS: Parquet files contain their schema.")
        return self

    def create_instances(self, workers: int) -> Sequence[FileConfig]:
        """Return the only instance; this fixes the columns of the table."""
        table = RowTable.of(TableName(self.name, self.name), self._columns(), self.key)
        return [
            FileConfig(
                source=self.name,
                retain_history=self.retain_history,
                tables=(table,),
                path=self.path,
                format=self.format,
                key=self.key,
                pattern=self.pattern,
                poll_interval=self.poll_interval,
                unknown_fields=self.unknown_fields,
            )
        ]

    def _columns(self) -> pa.Schema:
        files = found_files(Path(self.path), self.pattern)
        if self.columns:
            return given_columns(self.columns)
        if self.format is FileFormat.JSON:
            return infer([file.path for file in files])
        whole = [file.path for file in files if has_end(file.path, file.size)]
        if not whole:
            message = f"could not infer columns: folder {self.path} contains no complete Parquet file"
            raise UsageError(message, "Add a file first.")
        return parquet_columns(whole[0])

    def check(self, instance: InstanceConfig | None = None, durable: Lsn | None = None) -> Checked:
        """Check whether the columns can be inferred; with `instance`, whether the folder is readable."""
        if instance is None:
            return super().check()
        try:
            found_files(Path(self.path), self.pattern)
        except PenstockError as refused:
            return Checked((), (error(self.path, refused.message, refused.hint),), ready=False)
        return Checked(tuple((table.name, True) for table in instance.produced()), (), ready=True)

    def place(self) -> str:
        """Return the folder."""
        return self.path
