"""Error records as kernels write them: four numbers per message, by address; and how a kernel finishes a message.

All kernels share one loop. A message that already has an error (it is absent, or its schema is unknown) is skipped; the
entries of a message in which an error is found are rolled back. ::

    for index in range(first, len(start)):
        error = error_record(errors, index)
        ok = is_ok(error) and ...write the message, or set its error...
        if not finish_message(ok, error, start[index], out):
            return index
"""

from __future__ import annotations

from penstock.formats.column_writer import ColumnWriter, commit, put_null, rollback
from penstock.formats.decode_errors import CODE, NODE, WITH_OFFSET, A, B, ErrorCode
from penstock.formats.jit import constant, inner
from penstock.formats.memory import WORD, set_word, word

__all__ = ["FAILED", "error_record", "finish_message", "is_ok", "set_error"]

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
