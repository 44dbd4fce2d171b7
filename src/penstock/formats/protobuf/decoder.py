"""Batches of Protobuf messages."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.formats.compiling import Ints
from penstock.formats.decoder import Decoder
from penstock.formats.format import Nanoseconds, ProtobufFormat, ResolvedFormat
from penstock.formats.framing import read_indexes
from penstock.formats.memory import address
from penstock.formats.messages import Messages
from penstock.formats.problems import CODE, Problem
from penstock.formats.protobuf.descriptor import Pool, files_of_text
from penstock.formats.protobuf.kernel import walk_all
from penstock.formats.protobuf.occurrences import Room
from penstock.formats.protobuf.plan import PlanBuilder, disagreements
from penstock.formats.protobuf.registered import message_at, registered_files
from penstock.formats.registry import RegisteredSchema
from penstock.formats.sink import Sink
from penstock.formats.writers import Writers, refuse

__all__ = ["ProtobufDecoder"]


class ProtobufDecoder(Decoder):
    """Reads messages of every writer; its plan grows when a message of a new one is met."""

    def __init__(self, resolved: ResolvedFormat, writers: Writers) -> None:
        super().__init__(resolved, writers)
        assert isinstance(resolved.format, ProtobufFormat)
        self._pool = Pool(files_of_text(resolved.reader))
        truncate = resolved.format.nanoseconds == Nanoseconds.TRUNCATE
        reader = self._pool.message(resolved.message)
        self._builder = PlanBuilder(self._pool, reader, self._columns, truncate=truncate)
        self._roots = {-1: self._builder.add(self._pool)}
        self._places: dict[tuple[int, int], int] = {}
        self._growing = threading.Lock()
        self._tables = self._builder.tables()

    def _names(self) -> Sequence[str]:
        return self._builder.names

    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        roots = np.zeros(len(ids), np.int64)
        if self._resolved.framed:
            places = read_indexes(messages.start, messages.end, address(messages.faults))
            pairs = np.column_stack((ids, places))[messages.faults[:, CODE] == Problem.FINE]
            for one, place in np.unique(pairs, axis=0).tolist():
                chosen = np.flatnonzero((ids == one) & (places == place) & (messages.faults[:, CODE] == Problem.FINE))
                root = self._root(one, place)
                if root < 0:
                    refuse(messages, chosen, Problem.REFUSED, -1 - root)
                roots[chosen] = root
        tables, room = self._tables, Room(messages.longest, *self._builder.extent())
        plan = tables.plan

        def walk(first: int, sink: Sink) -> int:
            start, end, faults = messages.start, messages.end, address(messages.faults)
            return walk_all(first, start, end, roots, plan, room.scratch, sink, faults)

        return self._filled(messages, walk)

    def _root(self, schema_id: int, place: int) -> int:
        """Return where the plan of a writer begins, or ``-1 - reason``."""
        with self._growing:
            if (schema_id, place) not in self._places:
                self._places[schema_id, place] = self._added(schema_id, place)
            return self._places[schema_id, place]

    def _added(self, schema_id: int, place: int) -> int:
        writer = self._writers[schema_id]
        assert writer is not None
        try:
            why = self._reason(writer, place)
        except PenstockError as error:
            why = error.message
        if why:
            return -1 - self._refused(why)
        root = self._builder.add(Pool(registered_files(writer)))
        self._tables = self._builder.tables()
        return root

    def _reason(self, writer: RegisteredSchema, place: int) -> str:
        """Say why messages of a writer cannot be read; nothing if they can."""
        if writer.kind != "PROTOBUF":
            return f"its schema is one of {writer.kind}, not of PROTOBUF"
        files = registered_files(writer)
        found = message_at(files[-1], place)
        if found is None:
            return "its message index points at no message of its schema"
        if found.name != self._resolved.message:
            return f"message {found.name}, expected {self._resolved.message}"
        return next(disagreements(self._pool, Pool(files), found.name), "")
