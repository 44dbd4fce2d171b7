"""CSV: one line of delimited fields per message, parsed into columns.

A field may be quoted; a quote within it is doubled. An empty field without quotes is null; an empty quoted field is the
empty string, or null in a column of another type. One line end may terminate the message; nothing may follow it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.formats.binary_values import invalid_utf8
from penstock.formats.column_writer import ColumnWriter, put, put_null, put_pair, put_present
from penstock.formats.decode_errors import FAILED, ErrorCode, error_record, finish_message, is_ok, set_error
from penstock.formats.decoder import Decoder
from penstock.formats.format import CsvFormat, ResolvedFormat
from penstock.formats.jit import NIL, Ints, compiled, constant, inner
from penstock.formats.memory import WORD, address, byte, set_byte, word
from penstock.formats.messages import Messages
from penstock.formats.schema_registry import WriterSchemas
from penstock.formats.text_values import is_number
from penstock.formats.text_writer import BOOLEAN, DECIMAL, FLOATING, INTEGER, STRING, put_number, put_time, scalar_rule

__all__ = ["CsvDecoder"]


# -- kernel ------------------------------------------------------------------------------------------------------------

_COLUMN = 24
"""Size of a column in the plan, in bytes."""
_QUOTE = constant(ErrorCode.QUOTE)
_FIELDS = constant(ErrorCode.FIELDS)
_UTF8 = constant(ErrorCode.UTF8)
_TRAILING = constant(ErrorCode.TRAILING)
_NUMBER_TEXT = constant(ErrorCode.NUMBER_TEXT)
_BOOLEAN_TEXT = constant(ErrorCode.BOOLEAN_TEXT)


class _Plan(NamedTuple):
    """How to parse lines."""

    rules: int
    """Address of the table of columns: the rule of each, and its two parameters."""
    columns: int
    """The number of columns."""
    delimiter: int
    """The characters that separate and quote fields."""
    quote: int
    shift: int
    """Distance from a quoted field in the message to the address where its unquoted text is written."""


@compiled
def _walk_all(first: int, start: Ints, end: Ints, plan: _Plan, out: ColumnWriter, errors: int) -> int:
    """Decode the messages from `first` on; return the index at which capacity ran out, or the number of messages."""
    for index in range(first, len(start)):
        error = error_record(errors, index)
        ok = is_ok(error) and _line(start[index], end[index], plan, out, error)
        if not finish_message(ok, error, start[index], out):
            return index
    return len(start)


@inner
def _line(at: int, end: int, plan: _Plan, out: ColumnWriter, error: int) -> bool:
    put_present(out, NIL)
    if end > at and byte(end - 1) == 10:
        end -= 2 if end - at > 1 and byte(end - 2) == 13 else 1
    count = np.int64(0)
    while True:
        column = min(count + 1, plan.columns)
        begin, stop, after, quoted = _field(at, end, plan, column, error)
        if after < 0:
            return False
        count += 1
        if count <= plan.columns and not _put(begin, stop, quoted, count, plan, out, error):
            return False
        if after >= end:
            break
        if byte(after) != plan.delimiter:
            return set_error(error, _TRAILING, NIL, end - after, NIL) >= 0
        at = after + 1
    return count == plan.columns or set_error(error, _FIELDS, NIL, count, plan.columns) >= 0


@inner
def _field(at: int, end: int, plan: _Plan, column: int, error: int) -> tuple[int, int, int, bool]:
    """Return start and end of a field's text, the address after the field, and whether it is quoted."""
    if at >= end or byte(at) != plan.quote:
        stop = at
        while stop < end and not _ends(byte(stop), plan):
            if byte(stop) == plan.quote:
                return at, stop, set_error(error, _QUOTE, column, stop, NIL), False
            stop += 1
        return at, stop, stop, False
    begin = at
    at += 1
    start = to = at + plan.shift
    while at < end:
        if byte(at) == plan.quote:
            if at + 1 >= end or byte(at + 1) != plan.quote:
                after = at + 1
                if after < end and not _ends(byte(after), plan):
                    return start, to, set_error(error, _QUOTE, column, after, NIL), True
                return start, to, after, True
            at += 1
        set_byte(to, byte(at))
        at, to = at + 1, to + 1
    return start, to, set_error(error, _QUOTE, column, begin, NIL), True


@inner
def _ends(character: int, plan: _Plan) -> bool:
    """Return whether this character ends a field."""
    return character == plan.delimiter or character == 10 or character == 13


@inner
def _put(start: int, stop: int, quoted: bool, column: int, plan: _Plan, out: ColumnWriter, error: int) -> bool:
    row = plan.rules + _COLUMN * (column - 1)
    rule = word(row)
    if start == stop and (rule != STRING or not quoted):
        put_null(out, column)
        return True
    if rule == STRING:
        wrong = invalid_utf8(start, stop)
        if wrong >= 0:
            return set_error(error, _UTF8, column, wrong - (plan.shift if quoted else 0), NIL) >= 0
        put_pair(out, column, start, stop - start)
        return True
    if rule in (INTEGER, FLOATING, DECIMAL):
        if is_number(start, stop) != stop:
            return set_error(error, _NUMBER_TEXT, column, NIL, NIL) >= 0
        return put_number(start, stop, rule, word(row + WORD), word(row + 2 * WORD), column, out, error)
    if rule == BOOLEAN:
        value = _boolean(start, stop)
        if value < 0:
            return set_error(error, _BOOLEAN_TEXT, column, NIL, NIL) >= 0
        put(out, column, value)
        return True
    return put_time(start, stop, rule, column, out, error)


@inner
def _boolean(start: int, stop: int) -> int:
    """Parse true or false, t or f, ignoring case."""
    size, first = stop - start, byte(start) | 32
    if size == 1:
        return 1 if first == 116 else 0 if first == 102 else FAILED
    if size == 4 and first == 116 and byte(start + 1) | 32 == 114 and byte(start + 2) | 32 == 117:
        return 1 if byte(start + 3) | 32 == 101 else FAILED
    if size == 5 and first == 102 and byte(start + 1) | 32 == 97 and byte(start + 2) | 32 == 108:
        return 0 if byte(start + 3) | 32 == 115 and byte(start + 4) | 32 == 101 else FAILED
    return FAILED


# -- decoder -----------------------------------------------------------------------------------------------------------


class CsvDecoder(Decoder):
    """Decodes one line of fields per message."""

    def __init__(self, resolved: ResolvedFormat, writers: WriterSchemas) -> None:
        super().__init__(resolved, writers)
        assert isinstance(resolved.format, CsvFormat)
        rules = [scalar_rule(column.type, column.path) for column in list(self._columns)[1:]]
        self._rules = np.array(rules, np.int64)
        delimiter, quote = ord(resolved.format.delimiter), ord(resolved.format.quote)
        self._plan = _Plan(address(self._rules), len(rules), delimiter, quote, shift=0)

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        unquoted = np.empty(messages.extent, np.uint8)
        plan = self._plan._replace(shift=address(unquoted) - messages.first)

        def walk(first: int, out: ColumnWriter) -> int:
            return _walk_all(first, messages.start, messages.end, plan, out, address(messages.errors))

        return self._fill(messages, walk)
