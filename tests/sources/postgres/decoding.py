"""A decoder without a server: hand-built streams in, the contents of a change log out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.sources.postgres.messages import COLUMNS, buffer, captured, relation

from penstock.changelog.chunk_codec import StoredChunk
from penstock.changelog.interface import Chunk
from penstock.errors import DefiniteError, TableError
from penstock.model import Image, TableName
from penstock.positions import Lsn
from penstock.sources.postgres.captured_table import CapturedColumn
from penstock.sources.postgres.pgoutput.decode_result import DecodeResult
from penstock.sources.postgres.pgoutput.decoder import Decoder
from penstock.sources.postgres.pgoutput.relations import (
    RejectedShape,
    RelationColumn,
    Shape,
    UnknownColumnsError,
    altered_shape,
    column_changes,
    is_altered,
)
from penstock.sources.postgres.replication.interference import InterferenceGuard
from penstock.sources.postgres.types import PostgresType

ORDERS, ITEMS = 16384, 16385
TABLES = [captured("orders", ORDERS), captured("items", ITEMS, 3)]

WIDER_COLUMNS = (*COLUMNS, RelationColumn("note", 25, -1))
_NOTE = CapturedColumn("note", PostgresType(25), added=True, missing="?")
WIDER = Shape.of(TABLES[0].table.model_copy(update={"columns": (*TABLES[0].table.columns, _NOTE)}), 2)
"""``orders`` with an added column, whose value in older rows is a question mark."""
SHAPES = [*TABLES, WIDER]

DecodedImage = tuple[str, int, int, str, tuple[Any, ...] | None, tuple[int, ...] | None]


DESCRIBED = relation(ORDERS, "orders") + relation(ITEMS, "items")


@dataclass
class Log:
    """Stores the results of a decoder as the change log does."""

    images: list[DecodedImage] = field(default_factory=list)
    errors: list[TableError] = field(default_factory=list)
    durable: int = 0
    parts: dict[int, list[Chunk]] = field(default_factory=dict)
    interference: DefiniteError | None = None
    uncertain: bool = False
    prepared: set[int] = field(default_factory=set)
    """The xids of prepared transactions."""

    def apply(self, found: DecodeResult) -> None:
        for xid in found.discarded:
            self.parts.pop(xid, None)
        if found.open_chunks:
            self.parts.setdefault(found.open_xid, []).extend(found.open_chunks)
        self.prepared |= set(found.prepared)
        for xid, end in found.staged.items():
            for chunk in self.parts.pop(xid, []):
                self.add(chunk, (end.lsn, xid, end.committed_at), end.aborted)
        for chunk in found.chunks:
            self.add(chunk)
        self.errors += found.errors
        self.interference, self.uncertain = found.interference, found.uncertain
        if found.durable is not None:
            assert found.durable >= self.durable
            self.durable = found.durable

    def add(self, chunk: Chunk, staged: tuple[int, int, int] | None = None, aborted: Collection[int] = ()) -> None:
        stored = StoredChunk.pack(chunk)
        table = next(t for t in SHAPES if (t.name, t.version) == (chunk.table, chunk.version))
        columns = table.schema.columns
        if staged is None:
            batch = stored.unpack(columns, Lsn.ZERO, Lsn(2**62))
        else:
            lost, rows, _ = stored.without(columns, aborted)
            batch = stored.unpack_staged(columns, *staged, lost.tobytes())
            assert len(batch) == rows
        batch.validate(full=True)
        kinds = 0
        for image in batch.to_pylist():
            values = None if image["row"] is None else tuple(image["row"].values())
            unchanged = None if image["_unchanged"] is None else tuple(image["_unchanged"])
            kind = Image(image["_image"])
            kinds |= 1 << kind
            self.images.append((chunk.table.name, image["_lsn"], image["_ordinal"], kind.name, values, unchanged))
        assert chunk.kinds & kinds == kinds
        assert chunk.kinds == kinds or aborted
        assert chunk.unchanged or not any(batch.column("_unchanged").is_valid().to_pylist())

    def of(self, table: str) -> list[DecodedImage]:
        return [image for image in self.images if image[0] == table]


def feed(
    pieces: Iterable[bytes],
    start: int = 0,
    force: bool = False,
    ended: Collection[TableName] = (),
    learned: Shape | RejectedShape = WIDER,
    shapes: Sequence[Shape] = TABLES,
    guard: InterferenceGuard | None = None,
) -> Log:
    """Decode a stream that arrives in pieces; bytes that are not consumed are put before the next piece.

    Decoding stops at interference, as capture does. Columns that are missing count as dropped, unless `learned` is a
    rejected shape.
    """
    made, log, rest = Decoder(shapes, Lsn(start), ended, guard=guard), Log(), b""
    for piece in pieces:
        rest += piece
        more = True
        while more:
            try:
                found = made.decode(buffer(rest, slack=40), len(rest), force=force)
            except UnknownColumnsError as unknown:
                described = {column.name for column in unknown.relation.columns}
                existing = {column.name for column in unknown.shape.table.present if column.upstream in described}
                altered = altered_shape(unknown.shape, unknown.relation, existing)
                if is_altered(unknown.shape, unknown.relation) and not isinstance(learned, RejectedShape):
                    why = column_changes(unknown.shape, unknown.relation)
                    made.shapes.learn(unknown.relation, altered or RejectedShape(unknown.shape.name, why))
                    continue
                if unknown.shape.name != learned.name:
                    raise
                made.shapes.learn(unknown.relation, learned)
                continue
            log.apply(found)
            if found.interference is not None:
                return log
            rest, more = rest[found.consumed :], found.more
    return log
