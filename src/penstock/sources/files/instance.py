"""The capture of a folder: files in order of their names; each file, or its new part, is one transaction.

Progress in each file is stored with the step that adds its rows (see `penstock.sources.polling_steps`): the number of
bytes, and a fingerprint of them. Therefore no line is lost or read twice, whenever the process dies.

* A **JSON Lines** file may grow. Complete lines are read; an incomplete last line is read when it is complete.
* A **Parquet** file is read once, when it has its footer. A file that is without a footer for a minute is an error.
* A file that **shrank**, or whose contents changed where they were read, stops its table with an error: rows might be
  missing or duplicated.
* A file that was **removed** after it was read has no effect: its rows stay. Lines that were added after the last poll
  are lost, so keep a file unchanged for some poll intervals before you remove it. A file that reappears under the same
  name must have the same contents.

The commit time of a step is the change time of its file, by the file system's clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.changelog.interface import ChangeLog
from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.files.folder import FoundFile, fingerprint, found_files
from penstock.sources.files.json_lines import BadLineError, last_line_end, read_lines
from penstock.sources.files.options import FileFormat, UnknownFields
from penstock.sources.files.parquet import has_end, read_parquet
from penstock.sources.files.source import FileConfig
from penstock.sources.polling import PollingInstance
from penstock.sources.polling_steps import Changes, Step, inserted, upserted
from penstock.units import parse_duration

__all__ = ["FileInstance"]

_WRITING_SECONDS = 60.0


class FileInstance(PollingInstance[FileConfig]):
    """Reads new files and new lines in a folder."""

    def __init__(self, config: FileConfig, log: ChangeLog, state: Path) -> None:
        super().__init__(config, log, state)
        self._left: Iterator[FoundFile] = iter(())
        self._done: dict[str, FoundFile] = {}
        """Files that were read completely, with their properties at that time."""

    def resume(self, at: Lsn, noted: Mapping[str, Any]) -> None:
        """List the folder again; a missing folder is reported before anything else."""
        self._left, self._done = iter(self._list_files()), {}

    def next_step(self, at: Lsn, noted: Mapping[str, Any]) -> Step | None:
        """Continue with the last listing of the folder; then list it again."""
        step = self._first(self._left, noted)
        if step is None:
            self._left = iter(self._list_files())
            step = self._first(self._left, noted)
        return step

    def pause(self) -> float:
        """Return the poll interval."""
        return parse_duration(self._config.poll_interval).total_seconds()

    def _list_files(self) -> list[FoundFile]:
        return found_files(Path(self._config.path), self._config.pattern)

    def _first(self, files: Iterable[FoundFile], noted: Mapping[str, Any]) -> Step | None:
        for file in files:
            if self._done.get(file.name) == file:
                continue
            try:
                step = self._unread(file, noted.get(file.name))
            except FileNotFoundError:  # removed in the meantime
                continue
            except OSError as error:
                message = f"could not read file {file.path}: {error.strerror}"
                raise TransientError(message, "Check that it is readable for this user.") from error
            if step is not None:
                return step
        return None

    def _unread(self, file: FoundFile, known: Mapping[str, int] | None) -> Step | None:
        """Return the unread part of a file, if there is one."""
        done = 0 if known is None else known["upto"]
        if known is not None and (file.size < done or fingerprint(file.path, done) != known["print"]):
            raise self._changed(file)
        if self._config.format is FileFormat.PARQUET:
            return self._new_parquet(file, known)
        upto = last_line_end(file.path, done, file.size)
        if upto == done:
            self._done[file.name] = file
            return None
        return self._step(file, upto, self._lines(file, done, upto))

    def _new_parquet(self, file: FoundFile, known: Mapping[str, int] | None) -> Step | None:
        if known is not None:
            if file.size != known["upto"]:
                raise self._changed(file)
            self._done[file.name] = file
            return None
        if not has_end(file.path, file.size):
            if time.time() - file.written_at / 1e9 < _WRITING_SECONDS:
                return None
            message = f"Parquet file {file.name} has no footer, and was not written to for a minute"
            raise DefiniteError(message, f"Remove it, or replace it under another name. Then run: {self._retry()}")
        return self._step(file, file.size, self._read_parquet(file))

    def _step(self, file: FoundFile, upto: int, batches: Iterator[pa.RecordBatch]) -> Step:
        changes = upserted if self._config.key else inserted
        notes = {file.name: {"upto": upto, "print": fingerprint(file.path, upto)}}
        made = (changes(self._config.tables[0].name, batch) for batch in batches)
        return Step(self._reading(file, made), notes, committed_at=file.changed_at)

    def _reading(self, file: FoundFile, changes: Iterator[Changes]) -> Iterator[Changes]:
        """Yield the changes; an I/O error in the middle of a file is transient, as nothing of it is published yet."""
        try:
            yield from changes
        except OSError as error:
            message = f"could not read file {file.path}: {error.strerror}"
            raise TransientError(message, "Check that it exists and is readable for this user.") from error

    def _lines(self, file: FoundFile, done: int, upto: int) -> Iterator[pa.RecordBatch]:
        columns = self._config.tables[0].table_schema().columns
        try:
            yield from read_lines(file.path, done, upto, columns, self._config.key, self._ignores())
        except BadLineError as bad:
            message = f"line {bad.line} of file {file.name} is invalid: {bad.why}"
            raise DefiniteError(message, f"Fix the line, then read all files again: {self._retry()}") from None

    def _read_parquet(self, file: FoundFile) -> Iterator[pa.RecordBatch]:
        columns = self._config.tables[0].table_schema().columns
        return read_parquet(file.path, columns, self._config.key, self._ignores())

    def _ignores(self) -> bool:
        return self._config.unknown_fields is UnknownFields.IGNORE

    def _changed(self, file: FoundFile) -> DefiniteError:
        message = f"file {file.name} was truncated or rewritten after it was read"
        return DefiniteError(
            message, f"Write new contents to a new file. To read all files again, run: {self._retry()}"
        )

    def _retry(self) -> str:
        return f"ALTER SOURCES {self._config.source} RETRY TABLE {self._config.tables[0].name};"
