"""Decode JSON Lines files to Arrow batches with Arrow's JSON reader, block by block.

Arrow ignores line ends between objects; therefore this module counts lines, and a block must have as many rows as
lines. A bisection finds the first line that does not decode: the error names the line, but never its contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.errors import DefiniteError
from penstock.sources.row_tables import fitted, plain

__all__ = ["BadLineError", "infer", "last_line_end", "read_lines"]

_BLOCK = 8 << 20
_SAMPLE = 16 << 20
_NEWLINE = b"\n"
_BLANKS = np.zeros(256, np.bool_)
_BLANKS[list(b" \t\r\n")] = True


class BadLineError(Exception):
    """An invalid line: its number, from 1, and the reason."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(line, why)
        self.line, self.why = line, why


def last_line_end(path: Path, start: int, size: int) -> int:
    """Return the end of the last complete line in the first `size` bytes; `start` if none ends after that."""
    with path.open("rb") as file:
        end = size
        while end > start:
            begin = max(start, end - 65536)
            file.seek(begin)
            found = file.read(end - begin).rfind(_NEWLINE)
            if found >= 0:
                return begin + found + 1
            end = begin
    return start


def read_lines(
    path: Path, start: int, upto: int, columns: pa.Schema, key: tuple[str, ...], ignore: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the lines between two line ends; raise `BadLineError` with the line number in the file."""
    with path.open("rb") as file:
        file.seek(start)
        done = start
        for block in _blocks(file, upto - start):
            try:
                yield _decode(block, columns, key, ignore)
            except BadLineError as bad:
                raise BadLineError(bad.line + _lines_before(path, done), bad.why) from None
            done += len(block)


def infer(files: list[Path]) -> pa.Schema:
    """Infer the columns from the first lines of these files; strings stay strings, even if they look like times."""
    sample = b"".join(_samples(files))
    if not sample:
        message = "could not infer columns: the files contain no lines"
        raise DefiniteError(message, "Add a file first, or declare the columns: COLUMNS (id bigint, …).")
    try:
        found = pj.read_json(pa.py_buffer(sample), read_options=_whole(sample)).schema
    except pa.ArrowException:
        message = "could not infer columns: a line is not one JSON object, or the types of a field differ between lines"
        raise DefiniteError(message, "Fix the lines, or declare the columns: COLUMNS (id bigint, …).") from None
    return plain(pa.schema([pa.field(field.name, _text_kept(field.type, field.name)) for field in found]))


def _samples(files: list[Path]) -> Iterator[bytes]:
    left = _SAMPLE
    for path in files:
        size = min(left, path.stat().st_size)
        with path.open("rb") as file:
            yield file.read(last_line_end(path, 0, size))
        left -= size


def _text_kept(found: pa.DataType, column: str) -> pa.DataType:
    if pa.types.is_timestamp(found):
        return pa.string()
    if pa.types.is_list(found):
        return pa.list_(_text_kept(found.value_type, column))
    if pa.types.is_struct(found):
        return pa.struct([pa.field(field.name, _text_kept(field.type, column)) for field in found])
    if pa.types.is_null(found):
        message = f'could not infer the type of field "{column}": it has no value in any line'
        raise DefiniteError(message, "Declare the columns: COLUMNS (id bigint, …).")
    return found


def _blocks(file: BinaryIO, left: int) -> Iterator[bytes]:
    """Read complete lines, some megabytes at a time; a longer line is one block."""
    rest = b""
    while left:
        read = file.read(min(_BLOCK, left))
        if not read:
            message = f"file {Path(file.name).name} was truncated while it was read"
            raise DefiniteError(message, "Files may only grow. Fix the files, then run ALTER SOURCES … RETRY TABLE …;")
        left -= len(read)
        end = read.rfind(_NEWLINE) + 1
        if end:
            yield rest + read[:end]
            rest = read[end:]
        else:
            rest += read


def _decode(block: bytes, columns: pa.Schema, key: tuple[str, ...], ignore: bool) -> pa.RecordBatch:
    """Decode a block; if that fails, find the first invalid line."""
    ends = _line_ends(block)
    try:
        return _rows(block, ends, columns, key, ignore)
    except _DecodeError as bad:
        good, wrong, why = 0, len(ends) - 1, bad.why
    while good < wrong:  # the first `good` lines decode; the first `wrong` + 1 lines do not
        middle = (good + wrong) // 2
        try:
            _rows(block[: ends[middle]], ends[: middle + 1], columns, key, ignore)
            good = middle + 1
        except _DecodeError as bad:
            wrong, why = middle, bad.why
    raise BadLineError(good + 1, why)


class _DecodeError(Exception):
    def __init__(self, why: str) -> None:
        self.why = why


def _rows(
    block: bytes, ends: npt.NDArray[np.int64], columns: pa.Schema, key: tuple[str, ...], ignore: bool
) -> pa.RecordBatch:
    expected = pa.schema([pa.field(f.name, pa.string() if pa.types.is_date(f.type) else f.type) for f in columns])
    behaviour = "ignore" if ignore else "error"
    options = pj.ParseOptions(explicit_schema=expected, unexpected_field_behavior=behaviour)
    try:
        pc.cast(pa.array([block], pa.binary()), pa.string())
        table = pj.read_json(pa.py_buffer(block), read_options=_whole(block), parse_options=options)
        rows = fitted(pa.RecordBatch.from_struct_array(table.to_struct_array().combine_chunks()), columns)
    except pa.ArrowException as error:
        raise _DecodeError(_reason(str(error))) from None
    if len(rows) != _count_lines(block, ends):
        why = "it is not exactly one JSON object"
        raise _DecodeError(why)
    for name in key:
        if rows.column(name).null_count:
            why = f'key column "{name}" is null'
            raise _DecodeError(why)
    return rows


def _reason(error: str) -> str:
    """Translate a message of Arrow's into one without row values."""
    if "unexpected field" in error:
        return "it has a field that is not a column"
    if "UTF8" in error or "UTF-8" in error:
        return "it is not valid UTF-8"
    if "specified twice" in error:
        return "it has a duplicate field"
    if "Failed to convert" in error or "changed from" in error or "Number too big" in error or "parse" in error.lower():
        return "it is not JSON, or a value does not match the type of its column"
    return "it cannot be decoded"


def _whole(block: bytes) -> pj.ReadOptions:
    return pj.ReadOptions(use_threads=False, block_size=len(block) + 1)


def _line_ends(block: bytes) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE[0]) + 1


def _count_lines(block: bytes, ends: npt.NDArray[np.int64]) -> int:
    """Return the number of lines that are not blank."""
    filled = np.concatenate([[0], np.cumsum(~_BLANKS[np.frombuffer(block, np.uint8)])])
    return int(np.count_nonzero(np.diff(filled[np.concatenate([[0], ends])])))


def _lines_before(path: Path, upto: int) -> int:
    count = 0
    with path.open("rb") as file:
        while upto and (read := file.read(min(_BLOCK, upto))):
            count += read.count(_NEWLINE)
            upto -= len(read)
    return count
