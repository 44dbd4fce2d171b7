"""Lines of JSON, an object each, as Arrow batches: decoded by Arrow, block by block.

Arrow reads objects, wherever lines end; so lines are counted here, and a block must give as many rows as it has lines.
What does not decode is found by halving: the error names the line, and never what stands there.
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
    """A line that cannot be read: its number from 1, and why."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(line, why)
        self.line, self.why = line, why


def last_line_end(path: Path, start: int, size: int) -> int:
    """Return where the last whole line up to `size` ends; `start` where none does after that."""
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
    """Yield the rows of the lines between two of their ends; raise `BadLineError` with the number within the file."""
    with path.open("rb") as file:
        file.seek(start)
        done = start
        for block in _blocks(file, upto - start):
            try:
                yield _decoded(block, columns, key, ignore)
            except BadLineError as bad:
                raise BadLineError(bad.line + _lines_before(path, done), bad.why) from None
            done += len(block)


def infer(files: list[Path]) -> pa.Schema:
    """Return the columns of the first lines of these files; texts stay texts, whatever they look like."""
    sample = b"".join(_samples(files))
    if not sample:
        message = "there are no lines yet from which columns could be told"
        raise DefiniteError(message, "Put a file there first, or say what the columns are: COLUMNS (id bigint, …).")
    try:
        found = pj.read_json(pa.py_buffer(sample), read_options=_whole(sample)).schema
    except pa.ArrowException:
        message = "the lines that are there do not hold one JSON object each, with the same types in all of them"
        raise DefiniteError(message, "Mend them, or say what the columns are: COLUMNS (id bigint, …).") from None
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
        message = f"the field {column} has no value in the lines that are there, so its type cannot be told"
        raise DefiniteError(message, "Say what the columns are: COLUMNS (id bigint, …).")
    return found


def _blocks(file: BinaryIO, left: int) -> Iterator[bytes]:
    """Read whole lines, some megabytes at a time; a line that is longer is read whole."""
    rest = b""
    while left:
        read = file.read(min(_BLOCK, left))
        if not read:
            message = f"the file {Path(file.name).name} became shorter while it was read"
            raise DefiniteError(message, "Files may only grow. Capture the table anew when they are as they should be.")
        left -= len(read)
        end = read.rfind(_NEWLINE) + 1
        if end:
            yield rest + read[:end]
            rest = read[end:]
        else:
            rest += read


def _decoded(block: bytes, columns: pa.Schema, key: tuple[str, ...], ignore: bool) -> pa.RecordBatch:
    """Decode a block; look for the first bad line where that fails."""
    ends = _line_ends(block)
    try:
        return _rows(block, ends, columns, key, ignore)
    except _Bad as bad:
        good, wrong, why = 0, len(ends) - 1, bad.why
    while good < wrong:  # so many lines are good; the first `wrong` + 1 are not
        middle = (good + wrong) // 2
        try:
            _rows(block[: ends[middle]], ends[: middle + 1], columns, key, ignore)
            good = middle + 1
        except _Bad as bad:
            wrong, why = middle, bad.why
    raise BadLineError(good + 1, why)


class _Bad(Exception):
    def __init__(self, why: str) -> None:
        self.why = why


def _rows(
    block: bytes, ends: npt.NDArray[np.int64], columns: pa.Schema, key: tuple[str, ...], ignore: bool
) -> pa.RecordBatch:
    asked = pa.schema([pa.field(f.name, pa.string() if pa.types.is_date(f.type) else f.type) for f in columns])
    behaviour = "ignore" if ignore else "error"
    options = pj.ParseOptions(explicit_schema=asked, unexpected_field_behavior=behaviour)
    try:
        pc.cast(pa.array([block], pa.binary()), pa.string())
        table = pj.read_json(pa.py_buffer(block), read_options=_whole(block), parse_options=options)
        rows = fitted(pa.RecordBatch.from_struct_array(table.to_struct_array().combine_chunks()), columns)
    except pa.ArrowException as error:
        raise _Bad(_reason(str(error))) from None
    if len(rows) != _count_lines(block, ends):
        why = "it does not hold one JSON object, whole and alone"
        raise _Bad(why)
    for name in key:
        if rows.column(name).null_count:
            why = f"it has no value of {name}, which is in the key"
            raise _Bad(why)
    return rows


def _reason(told: str) -> str:
    """Say what is wrong in words without the value."""
    if "unexpected field" in told:
        return "it has a field that is no column"
    if "UTF8" in told or "UTF-8" in told:
        return "it is not UTF-8"
    if "specified twice" in told:
        return "it has a field twice"
    if "Failed to convert" in told or "changed from" in told or "Number too big" in told or "parse" in told.lower():
        return "it is not JSON, or holds a value that is not of its column's type"
    return "it cannot be decoded"


def _whole(block: bytes) -> pj.ReadOptions:
    return pj.ReadOptions(use_threads=False, block_size=len(block) + 1)


def _line_ends(block: bytes) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE[0]) + 1


def _count_lines(block: bytes, ends: npt.NDArray[np.int64]) -> int:
    """Count the lines that are not blank."""
    filled = np.concatenate([[0], np.cumsum(~_BLANKS[np.frombuffer(block, np.uint8)])])
    return int(np.count_nonzero(np.diff(filled[np.concatenate([[0], ends])])))


def _lines_before(path: Path, upto: int) -> int:
    count = 0
    with path.open("rb") as file:
        while upto and (read := file.read(min(_BLOCK, upto))):
            count += read.count(_NEWLINE)
            upto -= len(read)
    return count
