"""Batches of JSON messages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.formats.columns import Arena
from penstock.formats.decoder import Decoder
from penstock.formats.format import Extra, JsonFormat, ResolvedFormat
from penstock.formats.json.kernel import walk_all
from penstock.formats.json.plan import json_plan
from penstock.formats.json.tape import tape_for
from penstock.formats.messages import Messages
from penstock.formats.sink import Ints, Sink
from penstock.formats.writers import Writers

__all__ = ["JsonDecoder"]


class JsonDecoder(Decoder):
    """Reads messages whose columns were given, inferred or registered."""

    def __init__(self, resolved: ResolvedFormat, writers: Writers) -> None:
        super().__init__(resolved, writers)
        assert isinstance(resolved.format, JsonFormat)
        refuse_extra = resolved.format.extra == Extra.REFUSE
        self._plan = json_plan(self._columns, raw=resolved.raw, wrapped=resolved.wrapped, refuse_extra=refuse_extra)

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        data, tape = messages.data, tape_for(messages.longest)
        plan = self._plan._replace(slots=np.zeros_like(self._plan.slots))  # room of our own: others may decode, too
        arena = np.concatenate((data, np.zeros_like(data)))

        def walk(sink: Sink) -> None:
            walk_all(data, messages.start, messages.end, arena, plan, tape, sink, messages.faults)

        return self._columns.filled(walk, Arena(arena, plan.constants))
