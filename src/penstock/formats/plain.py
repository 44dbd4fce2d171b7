"""TEXT and BYTES: a message is one value."""

from __future__ import annotations

import pyarrow as pa

from penstock.formats.binary_values import invalid_utf8
from penstock.formats.column_writer import ColumnWriter, put_pair, put_present
from penstock.formats.decode_errors import ErrorCode, error_record, finish_message, is_ok, set_error
from penstock.formats.decoder import Decoder
from penstock.formats.jit import NIL, Ints, compiled, constant
from penstock.formats.memory import address
from penstock.formats.messages import Messages

__all__ = ["PlainDecoder"]

_UTF8 = constant(ErrorCode.UTF8)
_ROW, _VALUE = constant(0), constant(1)


@compiled
def _walk_all(first: int, start: Ints, end: Ints, is_text: bool, out: ColumnWriter, errors: int) -> int:
    """Write every message unchanged; for text, reject messages that are not valid UTF-8."""
    for index in range(first, len(start)):
        error = error_record(errors, index)
        if is_text and is_ok(error):
            wrong = invalid_utf8(start[index], end[index])
            if wrong >= 0:
                set_error(error, _UTF8, NIL, wrong, NIL)
        ok = is_ok(error)
        if ok:
            put_present(out, _ROW)
            put_pair(out, _VALUE, start[index], end[index] - start[index])
        if not finish_message(ok, error, start[index], out):
            return index
    return len(start)


class PlainDecoder(Decoder):
    """Decodes each message as one value."""

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        is_text = self._resolved.format.kind == "TEXT"

        def walk(first: int, out: ColumnWriter) -> int:
            return _walk_all(first, messages.start, messages.end, is_text, out, address(messages.errors))

        return self._fill(messages, walk)
