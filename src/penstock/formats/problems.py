"""Why a message is corrupt: a code and up to two numbers from a kernel, made into text for people.

A text names the kind of problem, the field, the place or the counts, the schema id and the size of the message. It
never holds content of the message. Texts are made for all corrupt messages of a kind at once, in Arrow.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.compiling import Ints

__all__ = ["CODE", "NODE", "PLACED", "A", "B", "Faults", "Names", "Problem", "no_faults", "problem_texts"]

CODE, NODE, A, B = range(4)
"""The four numbers of a fault: a `Problem`, the node of the plan at which it was found, two of the problem's own."""

Faults = Ints


class Problem(enum.IntEnum):
    """What is wrong with a message. `ABSENT` is no problem: there is no message, as in a tombstone."""

    ABSENT = -1
    FINE = 0
    UNFRAMED = 1
    MAGIC = 2
    UNKNOWN_SCHEMA = 3
    REFUSED = 4
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


_TEXTS = {
    Problem.UNFRAMED: "too short for a schema id: 5 bytes are needed",
    Problem.MAGIC: "the first byte is not 0: this was not written with a schema registry",
    Problem.UNKNOWN_SCHEMA: "the registry does not know this schema",
    Problem.REFUSED: "{message}",
    Problem.TRUNCATED: "{field}: the message ends within the value, at byte {a}",
    Problem.OVERLONG: "{field}: a number at byte {a} does not fit 64 bits",
    Problem.INTEGER_RANGE: "{field}: a number at byte {a} does not fit 32 bits",
    Problem.BOOLEAN: "{field}: a boolean that is neither 0 nor 1, at byte {a}",
    Problem.NEGATIVE_LENGTH: "{field}: a length at byte {a} is negative",
    Problem.LENGTH: "{field}: a length of {a} bytes, and {b} are left",
    Problem.UTF8: "{field}: invalid UTF-8 at byte {a}",
    Problem.BRANCH: "{field}: branch {a} of a union that has {b}",
    Problem.SYMBOL: "{field}: symbol {a} of an enumeration that has {b}",
    Problem.ITEMS: "{field}: {a} items announced, more than the {b} bytes that are left can hold",
    Problem.TRAILING: "{a} bytes are left after the end of the value",
    Problem.DECIMAL: "{field}: a number does not fit DECIMAL({a},{b})",
    Problem.DEPTH: "{field}: nested more than {a} levels deep",
    Problem.INEXACT: "{field}: a whole number that the floating-point column cannot hold exactly",
    Problem.TIME_RANGE: "{field}: a time beyond what a timestamp can hold",
    Problem.WIRE_TYPE: "{field}: wire type {a}, expected {b}",
    Problem.FIELD_NUMBER: "a field number that cannot be, at byte {a}",
    Problem.GROUP: "a group without its beginning or end, at byte {a}",
    Problem.REQUIRED: "{field}: required, and missing",
    Problem.MESSAGE_INDEX: "the message index after the schema id cannot be read",
    Problem.NANOSECONDS: "{field}: a time with nanoseconds, which a timestamp cannot hold (option nanoseconds)",
    Problem.PACKED: "{field}: packed values of {a} bytes do not end where the last one does",
    Problem.EMPTY: "the message is empty",
    Problem.SYNTAX: "not valid JSON at byte {a}",
    Problem.KIND: "{field}: {found}, expected {expected}",
    Problem.DUPLICATE: "the same key twice in one object, at byte {a}",
    Problem.NUMBER_RANGE: "{field}: a number too large or too small for its column",
    Problem.NOT_WHOLE: "{field}: a number with a fraction or exponent, and the column holds integers",
    Problem.SCALE: "{field}: more than {b} digits after the decimal point",
    Problem.EXTRA: "a field at byte {a} that is not in the schema",
    Problem.TIME_TEXT: "{field}: not a date or time in ISO 8601 form",
    Problem.ESCAPE: "{field}: an escape at byte {a} that stands for no character",
    Problem.CONTROL: "{field}: a control character within text, at byte {a}",
    Problem.NUMBER_TEXT: "{field}: not a number",
    Problem.FIELDS: "{a} fields, expected {b}",
    Problem.QUOTE: "{field}: a quote without its end, or text after it, at byte {a}",
    Problem.BOOLEAN_TEXT: "{field}: neither true nor false",
    Problem.DIGITS: "{field}: a number with more digits than the floating-point column can hold",
}

PLACED = frozenset(problem for problem, text in _TEXTS.items() if "at byte {a}" in text)
"""Problems whose first number is a place in the message."""

_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Names:
    """The words that texts are filled with."""

    nodes: Sequence[str]
    """For each node of the plan, the field that it is about."""
    messages: Sequence[str] = ()
    kinds: Sequence[str] = ()


def no_faults(count: int) -> Faults:
    """Return faults for so many messages that are fine so far."""
    return np.zeros((count, 4), np.int64)


def problem_texts(kind: str, faults: Faults, sizes: Ints, ids: Ints, names: Names) -> pa.StringArray:
    """Return a text for each message that is corrupt, null for the others; `ids` are schema ids, -1 where none."""
    codes = faults[:, CODE]
    result = pa.nulls(len(codes), pa.string())
    if codes.max(initial=0) <= Problem.FINE:
        return result
    for code in np.unique(codes):
        if code > Problem.FINE:
            chosen = np.flatnonzero(codes == code)
            texts = _texts(kind, Problem(code), faults[chosen], sizes[chosen], ids[chosen], names)
            result = pc.replace_with_mask(result, pa.array(codes == code), texts)
    return result


def _texts(kind: str, problem: Problem, faults: Faults, sizes: Ints, ids: Ints, names: Names) -> pa.StringArray:
    pieces: list[pa.Scalar | pa.Array] = [pa.scalar(f"{kind}: ")]
    for index, piece in enumerate(_SLOT.split(_TEXTS[problem])):
        pieces.append(_slot(piece, faults, names) if index % 2 else pa.scalar(piece))
    known = pc.binary_join_element_wise("schema id ", _text(ids), ", ", "")
    pieces += [
        " (",
        pc.if_else(pa.array(ids >= 0), known, ""),
        _text(sizes),
        pc.if_else(sizes == 1, " byte)", " bytes)"),
    ]
    return pc.binary_join_element_wise(*pieces, "")


def _slot(name: str, faults: Faults, names: Names) -> pa.Array:
    match name:
        case "a":
            return _text(faults[:, A])
        case "b":
            return _text(faults[:, B])
        case "field":
            return _word([f'field "{node}"' if node else "value" for node in names.nodes], faults[:, NODE])
        case "message":
            return _word(names.messages, faults[:, A])
        case "found":
            return _word(names.kinds, faults[:, A])
        case _:
            return _word(names.kinds, faults[:, B])


def _text(numbers: Ints) -> pa.StringArray:
    return pa.array(numbers).cast(pa.string())


def _word(words: Sequence[str], chosen: Ints) -> pa.StringArray:
    return pa.array(words, pa.string()).take(pa.array(chosen))
