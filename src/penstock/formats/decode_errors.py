"""Decode errors: why a message is rejected, as kernels record it, and as text.

Kernels write an error record for each message: four numbers, a code and up to two arguments among them. Texts are
formatted in Arrow, for all messages with the same code at once. A text names the kind of error, the field, the byte
offset or the counts, the schema id and the size of the message. It never contains content of the message.

All kernels share one loop. A message that already has an error (it is absent, or its schema is unknown) is skipped; the
entries of a message in which an error is found are rolled back. ::

    for index in range(first, len(start)):
        error = error_record(errors, index)
        ok = is_ok(error) and ...write the message, or set its error...
        if not finish_message(ok, error, start[index], out):
            return index
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.column_writer import ColumnWriter, commit, put_null, rollback
from penstock.formats.jit import Ints, constant, inner
from penstock.formats.memory import WORD, set_word, word

__all__ = [
    "CODE",
    "FAILED",
    "NODE",
    "WITH_OFFSET",
    "A",
    "B",
    "ErrorCode",
    "ErrorRecords",
    "Names",
    "error_messages",
    "error_record",
    "finish_message",
    "is_ok",
    "no_errors",
    "set_error",
]

CODE, NODE, A, B = range(4)
"""The four numbers of an error record: an `ErrorCode`, the node of the plan where it occurred, and two arguments."""

ErrorRecords = Ints


class ErrorCode(enum.IntEnum):
    """Why a message is rejected. `ABSENT` is not an error: there is no message, as in a tombstone."""

    ABSENT = -1
    OK = 0
    UNFRAMED = 1
    MAGIC = 2
    UNKNOWN_SCHEMA = 3
    REJECTED = 4
    TRUNCATED = 5
    OVERLONG = 6
    INTEGER_RANGE = 7
    BOOLEAN = 8
    NEGATIVE_LENGTH = 9
    LENGTH = 10
    UTF8 = 11
    BRANCH = 12
    SYMBOL = 13
    ITEMS = 14
    TRAILING = 15
    DECIMAL = 16
    DEPTH = 17
    INEXACT = 18
    TIME_RANGE = 19
    WIRE_TYPE = 20
    FIELD_NUMBER = 21
    GROUP = 22
    REQUIRED = 23
    MESSAGE_INDEX = 24
    NANOSECONDS = 25
    PACKED = 26
    EMPTY = 27
    SYNTAX = 28
    KIND = 29
    DUPLICATE = 30
    NUMBER_RANGE = 31
    NOT_WHOLE = 32
    SCALE = 33
    EXTRA = 34
    TIME_TEXT = 35
    ESCAPE = 36
    CONTROL = 37
    NUMBER_TEXT = 38
    FIELDS = 39
    QUOTE = 40
    BOOLEAN_TEXT = 41
    DIGITS = 42


def no_errors(count: int) -> ErrorRecords:
    """Return empty error records for `count` messages."""
    return np.zeros((count, 4), np.int64)


# -- texts -------------------------------------------------------------------------------------------------------------

_TEXTS = {
    ErrorCode.UNFRAMED: "message too short for a schema id, which takes 5 bytes",
    ErrorCode.MAGIC: "first byte is not 0: the message was not written with a schema registry",
    ErrorCode.UNKNOWN_SCHEMA: "schema id not found in the schema registry",
    ErrorCode.REJECTED: "{message}",
    ErrorCode.TRUNCATED: "{field}: message is truncated at byte {a}",
    ErrorCode.OVERLONG: "{field}: integer at byte {a} does not fit in 64 bits",
    ErrorCode.INTEGER_RANGE: "{field}: integer at byte {a} does not fit in 32 bits",
    ErrorCode.BOOLEAN: "{field}: boolean is neither 0 nor 1 at byte {a}",
    ErrorCode.NEGATIVE_LENGTH: "{field}: negative length at byte {a}",
    ErrorCode.LENGTH: "{field}: length of {a} bytes exceeds the remaining {b} bytes",
    ErrorCode.UTF8: "{field}: invalid UTF-8 at byte {a}",
    ErrorCode.BRANCH: "{field}: invalid branch {a} of a union with {b} branches",
    ErrorCode.SYMBOL: "{field}: invalid symbol {a} of an enum with {b} symbols",
    ErrorCode.ITEMS: "{field}: block of {a} items does not fit in the remaining {b} bytes",
    ErrorCode.TRAILING: "{a} trailing bytes after the end of the value",
    ErrorCode.DECIMAL: "{field}: value does not fit in DECIMAL({a},{b})",
    ErrorCode.DEPTH: "{field}: more than {a} levels of nesting",
    ErrorCode.INEXACT: "{field}: integer cannot be represented exactly in a floating-point column",
    ErrorCode.TIME_RANGE: "{field}: timestamp out of range",
    ErrorCode.WIRE_TYPE: "{field}: wire type {a}, expected {b}",
    ErrorCode.FIELD_NUMBER: "invalid field number or wire type at byte {a}",
    ErrorCode.GROUP: "unbalanced group at byte {a}",
    ErrorCode.REQUIRED: "{field}: required field is missing",
    ErrorCode.MESSAGE_INDEX: "invalid message index after the schema id",
    ErrorCode.NANOSECONDS: "{field}: timestamp has nanoseconds, columns have microseconds (option nanoseconds)",
    ErrorCode.PACKED: "{field}: {a} bytes of packed values end within a value",
    ErrorCode.EMPTY: "message is empty",
    ErrorCode.SYNTAX: "invalid JSON at byte {a}",
    ErrorCode.KIND: "{field}: {found}, expected {expected}",
    ErrorCode.DUPLICATE: "duplicate key in an object at byte {a}",
    ErrorCode.NUMBER_RANGE: "{field}: number out of range for its column",
    ErrorCode.NOT_WHOLE: "{field}: number has a fraction or an exponent, expected an integer",
    ErrorCode.SCALE: "{field}: more than {b} digits after the decimal point",
    ErrorCode.EXTRA: "field not in the schema at byte {a}",
    ErrorCode.TIME_TEXT: "{field}: not an ISO 8601 date or timestamp",
    ErrorCode.ESCAPE: "{field}: invalid escape sequence at byte {a}",
    ErrorCode.CONTROL: "{field}: unescaped control character at byte {a}",
    ErrorCode.NUMBER_TEXT: "{field}: not a number",
    ErrorCode.FIELDS: "{a} fields, expected {b}",
    ErrorCode.QUOTE: "{field}: misplaced or unterminated quote at byte {a}",
    ErrorCode.BOOLEAN_TEXT: "{field}: not a boolean",
    ErrorCode.DIGITS: "{field}: number has more digits than a floating-point column can represent",
}

WITH_OFFSET = frozenset(problem for problem, text in _TEXTS.items() if "at byte {a}" in text)
"""Error codes whose first argument is a byte offset in the message."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Names:
    """The words that are inserted into texts."""

    nodes: Sequence[str]
    """For each node of the plan, the path of its field."""
    messages: Sequence[str] = ()
    kinds: Sequence[str] = ()


def error_messages(kind: str, errors: ErrorRecords, sizes: Ints, ids: Ints, names: Names) -> pa.StringArray:
    """Return a text for each rejected message, null for the others; `ids` are schema ids, -1 where there is none."""
    codes = errors[:, CODE]
    result = pa.nulls(len(codes), pa.string())
    if codes.max(initial=0) <= ErrorCode.OK:
        return result
    for code in np.unique(codes):
        if code > ErrorCode.OK:
            chosen = np.flatnonzero(codes == code)
            texts = _texts(kind, ErrorCode(code), errors[chosen], sizes[chosen], ids[chosen], names)
            result = pc.replace_with_mask(result, pa.array(codes == code), texts)
    return result


def _texts(kind: str, problem: ErrorCode, errors: ErrorRecords, sizes: Ints, ids: Ints, names: Names) -> pa.StringArray:
    pieces: list[pa.Scalar | pa.Array] = [pa.scalar(f"{kind}: ")]
    for index, piece in enumerate(_PLACEHOLDER.split(_TEXTS[problem])):
        pieces.append(_argument(piece, errors, names) if index % 2 else pa.scalar(piece))
    known = pc.binary_join_element_wise("schema id ", _text(ids), ", ", "")
    pieces += [
        " (",
        pc.if_else(pa.array(ids >= 0), known, ""),
        _text(sizes),
        pc.if_else(sizes == 1, " byte)", " bytes)"),
    ]
    return pc.binary_join_element_wise(*pieces, "")


def _argument(name: str, errors: ErrorRecords, names: Names) -> pa.Array:
    match name:
        case "a":
            return _text(errors[:, A])
        case "b":
            return _text(errors[:, B])
        case "field":
            return _word([f'field "{node}"' if node else "value" for node in names.nodes], errors[:, NODE])
        case "message":
            return _word(names.messages, errors[:, A])
        case "found":
            return _word(names.kinds, errors[:, A])
        case _:
            return _word(names.kinds, errors[:, B])


def _text(numbers: Ints) -> pa.StringArray:
    return pa.array(numbers).cast(pa.string())


def _word(words: Sequence[str], chosen: Ints) -> pa.StringArray:
    return pa.array(words, pa.string()).take(pa.array(chosen))


# -- records, as kernels write them ------------------------------------------------------------------------------------

FAILED = constant(-1)
"""Returned instead of an address by functions that found an error."""

_OK = constant(ErrorCode.OK)
_WITH_OFFSET = constant(sum(1 << code for code in WITH_OFFSET))
_CODE, _NODE, _A, _B = (constant(WORD * place) for place in (CODE, NODE, A, B))
_ROOT = constant(0)


@inner
def error_record(errors: int, index: int) -> int:
    """Return the address of a message's error record."""
    return errors + 4 * WORD * index


@inner
def is_ok(error: int) -> bool:
    """Return whether a message has no error so far."""
    return word(error + _CODE) == _OK


@inner
def set_error(error: int, code: int, node: int, a: int, b: int) -> int:
    """Write an error record; byte offsets are addresses until the message is finished."""
    set_word(error + _CODE, code)
    set_word(error + _NODE, node)
    set_word(error + _A, a)
    set_word(error + _B, b)
    return FAILED


@inner
def finish_message(ok: bool, error: int, start: int, out: ColumnWriter) -> bool:
    """Commit or roll back a message that begins at `start`; return False if the columns lacked capacity for it."""
    if not ok:
        code = word(error + _CODE)
        if code > 0 and (_WITH_OFFSET >> code) & 1:
            set_word(error + _A, word(error + _A) - start)
        rollback(out)
        put_null(out, _ROOT)
    return commit(out)
