"""A captured table: what it is upstream, and so what the stream and the copy must deliver of it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from penstock.model import TableName, TableSchema
from penstock.sources.postgres.types import TEXT_ONLY, ColumnCodec, PostgresType, codec_for

__all__ = ["CapturedColumn", "CapturedTable"]


@dataclass(frozen=True)
class CapturedColumn:
    """A column that is captured."""

    name: str
    type: PostgresType
    identity: bool = False
    """Whether it is part of the replica identity."""
    as_text: bool = False
    """Whether it is kept as the text that Postgres prints (the option `text columns`)."""
    comment: str | None = None

    def codec(self) -> ColumnCodec:
        """Return how its values become Arrow; raises `UnsupportedType` where nothing holds them exactly."""
        return TEXT_ONLY if self.as_text else codec_for(self.type)

    @property
    def sent_as_text(self) -> bool:
        """Whether Postgres has to print its values: it stays text, or only the server can print it.

        The copy prints such a column; a stream with one of them has to be asked for text (``binary 'false'``).
        """
        return self.codec().wants_text


class CapturedTable(BaseModel):
    """A table as its capture begins. Stored in the catalog, sent to Spark's workers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: TableName
    oid: int
    key: tuple[str, ...]
    columns: tuple[CapturedColumn, ...]
    comment: str | None = None
    estimated_rows: int = 0

    def table_schema(self) -> TableSchema:
        """Return the schema downstream."""
        fields = [
            pa.field(
                column.name, column.codec().arrow, metadata={"comment": column.comment} if column.comment else None
            )
            for column in self.columns
        ]
        return TableSchema(self.name, pa.schema(fields), self.key)
