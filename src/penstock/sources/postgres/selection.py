"""Which tables and columns a source takes: what was asked for, held against what Postgres has and publishes.

::

    options (tables, schemas, columns) ┐
    relations of the database          ├─▶ choose ─▶ Selection: ChosenTable…, findings
    the publication, when it is yours  ┘                └─▶ captured() ─▶ CapturedTable

A table that was named must be there and must be a table: anything else is an error of the source. What was only covered
by a schema or by "all tables" is skipped, and told where that is worth knowing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.model import TableName
from penstock.nearest import nearest
from penstock.sources.findings import Finding, error, info
from penstock.sources.postgres.captured import CapturedColumn, CapturedTable
from penstock.sources.postgres.introspect import UpstreamColumn, UpstreamTable
from penstock.sources.postgres.meta_tables import META_TABLES
from penstock.sources.postgres.names import ColumnName
from penstock.sources.postgres.options import Ownership, Partitions, PostgresOptions, Rules
from penstock.sources.postgres.publication import Publication, PublishedTable
from penstock.sources.postgres.types import UnsupportedTypeError

__all__ = ["ChosenTable", "Selection", "choose"]

_NOT_TABLES = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


@dataclass(frozen=True)
class ChosenTable:
    """A table to capture, with what is asked of it and what the publication makes of it."""

    upstream: UpstreamTable
    alias: str | None = None
    excluded: frozenset[str] = frozenset()
    as_text: frozenset[str] = frozenset()
    published: PublishedTable | None = None
    """How a publication of yours publishes it; None where the publication is ours to make."""
    can_list: bool = False
    """Whether our publication can list columns."""
    version: int = 180000
    """Of the server."""
    partitions: tuple[UpstreamTable, ...] = ()
    """Of a root: its leaves."""

    @property
    def name(self) -> TableName:
        """Its name upstream."""
        return self.upstream.name

    @property
    def key(self) -> tuple[str, ...]:
        """Its primary key."""
        return self.upstream.key

    @property
    def streamed(self) -> tuple[UpstreamColumn, ...]:
        """The columns that the stream will carry: generated ones only where the publication says so."""
        listed = self.published.columns if self.published else None
        if listed is not None:
            return tuple(column for column in self.upstream.columns if column.name in listed)
        kept = (column for column in self.upstream.columns if not column.generated)
        return tuple(column for column in kept if not (self.column_list and column.name in self.excluded))

    @property
    def taken(self) -> tuple[UpstreamColumn, ...]:
        """The columns that are captured."""
        return tuple(column for column in self.streamed if column.name not in self.excluded)

    @property
    def column_list(self) -> bool:
        """Whether our publication has to list its columns."""
        return self.can_list and any(c.name in self.excluded and not c.generated for c in self.upstream.columns)

    def captured(self) -> CapturedTable:
        """The table as capture will take it."""
        table = self.upstream
        columns = tuple(
            CapturedColumn(c.name, c.type, c.name in table.key, c.name in self.as_text, c.comment) for c in self.taken
        )
        return CapturedTable(
            name=table.name,
            oid=table.oid,
            key=table.key,
            replica_identity=table.replica_identity,
            filenode=table.filenode,
            width=table.width,
            columns=columns,
            comment=table.comment,
            estimated_rows=sum(leaf.estimated_rows for leaf in self.partitions) or table.estimated_rows,
            alias=self.alias,
            partitioned=table.partitioned,
            leaves=tuple(leaf.oid for leaf in self.partitions),
            row_filter=self.published.row_filter if self.published else None,
            column_list=self.column_list,
            ignored=tuple(c.name for c in self.streamed if c.name in self.excluded),
        )

    def refused_columns(self) -> list[tuple[UpstreamColumn, str]]:
        """Return the columns whose type has no exact form downstream, with the reason."""
        refused = []
        for column, captured in zip(self.taken, self.captured().columns, strict=True):
            try:
                captured.codec()
            except UnsupportedTypeError as unsupported:
                refused.append((column, f"{column.type_name}: {unsupported.reason}"))
        return refused


@dataclass
class Selection:
    """What will be captured, and what there is to say about what will not."""

    tables: list[ChosenTable] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def choose(
    found: Sequence[UpstreamTable], options: PostgresOptions, publication: Publication | None, version: int
) -> Selection:
    """Choose the tables; `publication` is the one to go by when it is the user's, else None."""
    chosen = Selection()
    wanted = _named(found, options, chosen) if options.tables else _covered(found, options, chosen)
    if publication is not None:
        wanted = _published(wanted, found, options, publication, chosen)
    else:
        wanted = _as_partitions(wanted, options, chosen)
    aliases = {choice.table: choice.alias for choice in options.choices()}
    excluded, as_text = _columns(options.excluded()), _columns(options.as_text())
    managed = options.publication_ownership is Ownership.MANAGED
    chosen.tables = [
        ChosenTable(
            table,
            alias=aliases.get(table.name),
            excluded=excluded.get(table.name, frozenset()),
            as_text=as_text.get(table.name, frozenset()),
            published=publication.table(table.name) if publication else None,
            can_list=managed and version >= 150000 and options.rules is Rules.OPEN,
            version=version,
            partitions=tuple(leaf for leaf in found if leaf.root == table.oid and not leaf.partitioned),
        )
        for table in wanted
    ]
    chosen.findings += _unknown_columns(chosen.tables, options)
    return chosen


def _named(found: Sequence[UpstreamTable], options: PostgresOptions, chosen: Selection) -> list[UpstreamTable]:
    """Find what was named; each must be there and must be a table."""
    known = {table.name: table for table in found}
    wanted = []
    for choice in options.choices():
        table = known.get(choice.table)
        if table is None:
            names = (str(name) for name, table in known.items() if table.kind in "rp")
            hint = nearest(str(choice.table), names) or "See \\dt in psql for the tables that are there."
            chosen.findings.append(error(str(choice.table), "there is no such table", hint))
        elif table.name in META_TABLES:
            why = "it is where watermarks and heartbeats are written, and no table of yours"
            chosen.findings.append(error(str(choice.table), why, "Leave it out."))
        elif table.kind in _NOT_TABLES or table.persistence == "t":
            what = _NOT_TABLES.get(table.kind, "a temporary table")
            why = f"it is {what}: its changes are not in the WAL"
            chosen.findings.append(error(str(choice.table), why, "Name the tables that it is made from instead."))
        else:
            wanted.append(table)
    return wanted


def _covered(found: Sequence[UpstreamTable], options: PostgresOptions, chosen: Selection) -> list[UpstreamTable]:
    """Take all tables, of the named schemas where there are any."""
    schemas = {table.name.schema for table in found}
    for schema in options.schemas:
        if schema not in schemas:
            hint = nearest(schema, schemas) or "See \\dn in psql for the schemas that are there."
            chosen.findings.append(error(f"schema {schema}", "it has no tables, or is not there", hint))
    inside = [table for table in found if not options.schemas or table.name.schema in options.schemas]
    inside = [table for table in inside if table.name not in META_TABLES]
    for table in inside:
        if table.kind in ("m", "f"):
            what = _NOT_TABLES[table.kind]
            chosen.findings.append(
                info(str(table.name), f"it is {what}, and is not captured: it has no changes in the WAL")
            )
    return [table for table in inside if table.kind in "rp" and table.persistence != "t"]


def _as_partitions(wanted: list[UpstreamTable], options: PostgresOptions, chosen: Selection) -> list[UpstreamTable]:
    """Keep leaves or roots, as the options say; the others are told, or refused where they were named."""
    kept = []
    roots = options.partitions is Partitions.ROOT
    for table in wanted:
        partition = table.root is not None
        if (not table.partitioned and not (roots and partition)) or (table.partitioned and roots and not partition):
            kept.append(table)
        elif options.tables:
            chosen.findings.append(_wrong_half(table, roots))
        elif table.partitioned and not roots:
            chosen.findings.append(info(str(table.name), "it is partitioned: each partition is captured as a table"))
    return kept


def _wrong_half(table: UpstreamTable, roots: bool) -> Finding:
    if roots:
        why = "it is a partition, and partitions are captured as their root"
        return error(str(table.name), why, "Name the partitioned table instead, or use partitions = leaves.")
    why = "it is partitioned, and partitions are captured as tables of their own"
    return error(str(table.name), why, "Name its partitions instead, or use partitions = root.")


def _published(
    wanted: list[UpstreamTable],
    found: Sequence[UpstreamTable],
    options: PostgresOptions,
    publication: Publication,
    chosen: Selection,
) -> list[UpstreamTable]:
    """Keep what the user's publication publishes; a named table that it does not is for its contract to refuse."""
    published = {table.name for table in publication.tables}
    if options.tables:
        return wanted
    left_out = [table for table in wanted if table.name not in published and not table.partitioned]
    through = {table.oid for table in found if table.partitioned and table.name in published}
    for table in left_out:
        if table.root not in through:
            why = f"the publication {publication.name} does not publish it: it is not captured"
            chosen.findings.append(info(str(table.name), why))
    return [table for table in wanted if table.name in published]


def _columns(columns: Iterable[ColumnName]) -> dict[TableName, frozenset[str]]:
    found: dict[TableName, frozenset[str]] = {}
    for column in columns:
        found[column.table] = found.get(column.table, frozenset()) | {column.column}
    return found


def _unknown_columns(tables: Sequence[ChosenTable], options: PostgresOptions) -> list[Finding]:
    """Refuse columns that are not there, and the exclusion of what identifies rows."""
    known = {ColumnName(table.name, column.name) for table in tables for column in table.upstream.columns}
    keys = {ColumnName(table.name, column) for table in tables for column in table.key}
    found = []
    for column in (*options.excluded(), *options.as_text()):
        if column not in known:
            hint = nearest(str(column), map(str, known)) or "Name a column of a captured table, as schema.table.column."
            found.append(error(str(column), "there is no such column among the captured tables", hint))
        elif column in keys and column in options.excluded():
            hint = "Keep it; the key is how a row is found again."
            found.append(error(str(column), "it is part of the primary key, and cannot be left out", hint))
    return found
