"""The capture of a folder: its files, by name, each or what is new of it as one transaction.

Progress in each file is stored with the step that adds its rows (see `penstock.sources.polling_steps`): the number of
bytes, and a fingerprint of them. So no line is lost or read twice, whenever the process dies.

* A file of **JSON lines** may grow. Whole lines are taken in; a last line without its end waits for it.
* A **Parquet** file is read when it has its end, and once. One that has had none for a minute is broken.
* A file that **shrank**, or has other contents where it was read, ends the table with an error: rows may be missing
  now, or come twice.
* A file that **went** after it was read is not missed: its rows stay. What it had gained since the last look is lost to
  us, so let a file rest for some poll intervals before it is removed. One that comes back under its name must be the
  same one.

A step counts as committed when its file came to be as it is, by the file system's clock.
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
from penstock.sources.files.folder import FoundFile, found_files, print_of
from penstock.sources.files.json_lines import BadLineError, last_line_end, read_lines
from penstock.sources.files.options import FileFormat, UnknownFields
from penstock.sources.files.parquet import has_end, read_parquet
from penstock.sources.files.source import FileConfig
from penstock.sources.polling import SteppingInstance
from penstock.sources.polling_steps import Changes, Step, inserted, upserted
from penstock.units import parse_duration

__all__ = ["FileInstance"]

_WRITING_SECONDS = 60.0


class FileInstance(SteppingInstance[FileConfig]):
    """Reads what is new in a folder."""

    def __init__(self, config: FileConfig, log: ChangeLog, state: Path) -> None:
        super().__init__(config, log, state)
        self._left: Iterator[FoundFile] = iter(())
        self._done: dict[str, FoundFile] = {}
        """Files of which nothing is left, as they were then."""

    def resume(self, at: Lsn, noted: Mapping[str, Any]) -> None:
        """Look at everything again; a folder that is not there is told before anything else."""
        self._left, self._done = iter(self._look()), {}

    def next_step(self, at: Lsn, noted: Mapping[str, Any]) -> Step | None:
        """Go on with the last look at the folder; then look once more."""
        step = self._first(self._left, noted)
        if step is None:
            self._left = iter(self._look())
            step = self._first(self._left, noted)
        return step

    def pause(self) -> float:
        """Return the poll interval."""
        return parse_duration(self._config.poll_interval).total_seconds()

    def _look(self) -> list[FoundFile]:
        return found_files(Path(self._config.path), self._config.pattern)

    def _first(self, files: Iterable[FoundFile], noted: Mapping[str, Any]) -> Step | None:
        for file in files:
            if self._done.get(file.name) == file:
                continue
            try:
                step = self._news(file, noted.get(file.name))
            except FileNotFoundError:  # it went meanwhile
                continue
            except OSError as error:
                message = f"the file {file.path} cannot be read: {error.strerror}"
                raise TransientError(message, "Is it readable for this user?") from error
            if step is not None:
                return step
        return None

    def _news(self, file: FoundFile, known: Mapping[str, int] | None) -> Step | None:
        """Return what is new of a file."""
        taken = 0 if known is None else known["upto"]
        if known is not None and (file.size < taken or print_of(file.path, taken) != known["print"]):
            raise self._changed(file)
        if self._config.format is FileFormat.PARQUET:
            return self._new_parquet(file, known)
        upto = last_line_end(file.path, taken, file.size)
        if upto == taken:
            self._done[file.name] = file
            return None
        return self._step(file, upto, self._lines(file, taken, upto))

    def _new_parquet(self, file: FoundFile, known: Mapping[str, int] | None) -> Step | None:
        if known is not None:
            if file.size != known["upto"]:
                raise self._changed(file)
            self._done[file.name] = file
            return None
        if not has_end(file.path, file.size):
            if time.time() - file.written_at / 1e9 < _WRITING_SECONDS:
                return None
            message = f"the file {file.name} has no end, and was not written to for a minute"
            raise DefiniteError(message, f"Write it anew under another name, remove it; then: {self._retry()}")
        return self._step(file, file.size, self._read_parquet(file))

    def _step(self, file: FoundFile, upto: int, batches: Iterator[pa.RecordBatch]) -> Step:
        changes = upserted if self._config.key else inserted
        notes = {file.name: {"upto": upto, "print": print_of(file.path, upto)}}
        made = (changes(self._config.tables[0].name, batch) for batch in batches)
        return Step(self._reading(file, made), notes, committed_at=file.changed_at)

    def _reading(self, file: FoundFile, changes: Iterator[Changes]) -> Iterator[Changes]:
        """What goes wrong in the middle of a file may pass: nothing of it is in the log yet."""
        try:
            yield from changes
        except OSError as error:
            message = f"the file {file.path} cannot be read: {error.strerror}"
            raise TransientError(message, "Is it there, and readable for this user?") from error

    def _lines(self, file: FoundFile, taken: int, upto: int) -> Iterator[pa.RecordBatch]:
        columns = self._config.tables[0].table_schema().columns
        try:
            yield from read_lines(file.path, taken, upto, columns, self._config.key, self._ignores())
        except BadLineError as bad:
            message = f"line {bad.line} of the file {file.name} cannot be taken in: {bad.why}"
            raise DefiniteError(message, f"Mend the line, then have all files read anew: {self._retry()}") from None

    def _read_parquet(self, file: FoundFile) -> Iterator[pa.RecordBatch]:
        columns = self._config.tables[0].table_schema().columns
        return read_parquet(file.path, columns, self._config.key, self._ignores())

    def _ignores(self) -> bool:
        return self._config.unknown_fields is UnknownFields.IGNORE

    def _changed(self, file: FoundFile) -> DefiniteError:
        message = f"the file {file.name} is not what was read of it any more: it shrank, or was written anew"
        return DefiniteError(message, f"Give new contents a new name; to have all files read anew: {self._retry()}")

    def _retry(self) -> str:
        return f"ALTER SOURCES {self._config.source} RETRY TABLE {self._config.tables[0].name};"
