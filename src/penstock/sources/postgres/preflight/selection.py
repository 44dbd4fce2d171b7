"""Select the tables and columns of a source: match its options with the relations and the publication of the database.

::

    options (tables, schemas, columns)      ┐
    relations of the database               ├─▶ choose ─▶ Selection: ChosenTable…, findings
    the publication, if the user manages it ┘                └─▶ captured() ─▶ CapturedTable

A table that the options name must exist and be a table; otherwise it is an error of the source. Relations that a schema
or "all tables" merely covers are skipped, with an info where that is useful.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.model import TableName
from penstock.name_suggestions import nearest
from penstock.sources.findings import Finding, error, info
from penstock.sources.option_names import ColumnName
from penstock.sources.postgres.captured_table import CapturedColumn, CapturedTable
from penstock.sources.postgres.options import OnUnrepresentable, Ownership, Partitions, PostgresOptions, Rules
from penstock.sources.postgres.preflight.introspect import UpstreamColumn, UpstreamTable
from penstock.sources.postgres.replication.meta_tables import META_TABLES
from penstock.sources.postgres.replication.publication import Publication, PublishedTable
from penstock.sources.postgres.types import is_supported

__all__ = ["ChosenTable", "Selection", "choose"]

_NOT_TABLES = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


@dataclass(frozen=True)
class ChosenTable:
    """A table to capture, with its options and the way it is published."""

    upstream: UpstreamTable
    alias: str | None = None
    excluded: frozenset[str] = frozenset()
    as_text: frozenset[str] = frozenset()
    rescue: bool = False
    """Whether values that the type of their column cannot hold are kept as text."""
    published: PublishedTable | None = None
    """How the user's publication publishes it; None if Penstock manages the publication."""
    can_list: bool = False
    """Whether a managed publication can have a column list."""
    version: int = 180000
    """The server version."""
    partitions: tuple[UpstreamTable, ...] = ()
    """The leaf partitions of a root."""

    @property
    def name(self) -> TableName:
        """The name upstream."""
        return self.upstream.name

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key, or of the replica identity index."""
        return self.upstream.key

    @property
    def streamed_columns(self) -> tuple[UpstreamColumn, ...]:
        """The columns in the stream: generated ones only if the publication includes them."""
        listed = self.published.columns if self.published else None
        if listed is not None:
            return tuple(column for column in self.upstream.columns if column.name in listed)
        kept = (column for column in self.upstream.columns if not column.generated)
        return tuple(column for column in kept if not (self.column_list and column.name in self.excluded))

    @property
    def captured_columns(self) -> tuple[UpstreamColumn, ...]:
        """The captured columns."""
        return tuple(column for column in self.streamed_columns if column.name not in self.excluded)

    @property
    def column_list(self) -> bool:
        """Whether a managed publication needs a column list for this table."""
        return self.can_list and any(c.name in self.excluded and not c.generated for c in self.upstream.columns)

    def captured(self) -> CapturedTable:
        """Return the description of the table for capture."""
        table = self.upstream
        columns = tuple(
            CapturedColumn(
                *(c.name, c.type, c.name in table.key, self._is_text(c), c.comment),
                declaration=c.declaration,
                number=c.number,
            )
            for c in self.captured_columns
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
            ignored=tuple(c.name for c in self.streamed_columns if c.name in self.excluded),
            rescue=self.rescue,
        )

    def printed_columns(self) -> list[UpstreamColumn]:
        """Return the columns that are captured as text because their type has no exact representation downstream."""
        return [c for c in self.captured_columns if c.name not in self.as_text and self._is_text(c)]

    def _is_text(self, column: UpstreamColumn) -> bool:
        return column.name in self.as_text or not is_supported(column.type)


@dataclass
class Selection:
    """The tables to capture, and findings about those that are not."""

    tables: list[ChosenTable] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def choose(
    found: Sequence[UpstreamTable], options: PostgresOptions, publication: Publication | None, version: int
) -> Selection:
    """Select the tables; `publication` is the user's publication, or None if Penstock manages it."""
    chosen = Selection()
    wanted = _named(found, options, chosen) if options.tables else _covered(found, options, chosen)
    if publication is not None:
        wanted = _published(wanted, found, options, publication, chosen)
    else:
        wanted = _filter_partitions(wanted, options, chosen)
    aliases = {choice.table: choice.alias for choice in options.choices()}
    excluded, as_text = _columns(options.excluded()), _columns(options.as_text())
    managed = options.publication_ownership is Ownership.MANAGED
    chosen.tables = [
        ChosenTable(
            table,
            alias=aliases.get(table.name),
            excluded=excluded.get(table.name, frozenset()),
            as_text=as_text.get(table.name, frozenset()),
            rescue=options.on_unrepresentable is OnUnrepresentable.RESCUE,
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
    """Return the tables that the options name; each must exist and be a table."""
    known = {table.name: table for table in found}
    wanted = []
    for choice in options.choices():
        table = known.get(choice.table)
        if table is None:
            names = (str(name) for name, table in known.items() if table.kind in "rp")
            hint = nearest(str(choice.table), names) or "List the tables with \\dt in psql."
            chosen.findings.append(error(str(choice.table), "table does not exist", hint))
        elif table.name in META_TABLES:
            why = "reserved for the watermarks and heartbeats of Penstock"
            chosen.findings.append(error(str(choice.table), why, "Remove it from the list of tables."))
        elif table.kind in _NOT_TABLES or table.persistence == "t":
            what = _NOT_TABLES.get(table.kind, "a temporary table")
            why = f"is {what}: its changes are not in the WAL"
            chosen.findings.append(error(str(choice.table), why, "Name its underlying tables instead."))
        else:
            wanted.append(table)
    return wanted


def _covered(found: Sequence[UpstreamTable], options: PostgresOptions, chosen: Selection) -> list[UpstreamTable]:
    """Return all tables, or those of the schemas that the options name."""
    schemas = {table.name.schema for table in found}
    for schema in options.schemas:
        if schema not in schemas:
            hint = nearest(schema, schemas) or "List the schemas with \\dn in psql."
            chosen.findings.append(error(f"schema {schema}", "does not exist, or has no tables", hint))
    inside = [table for table in found if not options.schemas or table.name.schema in options.schemas]
    inside = [table for table in inside if table.name not in META_TABLES | options.excluded_tables()]
    for table in inside:
        if table.kind in ("m", "f"):
            what = _NOT_TABLES[table.kind]
            chosen.findings.append(
                info(str(table.name), f"not captured: it is {what}, whose changes are not in the WAL")
            )
    return [table for table in inside if table.kind in "rp" and table.persistence != "t"]


def _filter_partitions(wanted: list[UpstreamTable], options: PostgresOptions, chosen: Selection) -> list[UpstreamTable]:
    """Keep leaves or roots, by the options; report the others, as an error if they were named."""
    kept = []
    roots = options.partitions is Partitions.ROOT
    for table in wanted:
        partition = table.root is not None
        if (not table.partitioned and not (roots and partition)) or (table.partitioned and roots and not partition):
            kept.append(table)
        elif options.tables:
            chosen.findings.append(_wrong_partition_level(table, roots))
        elif table.partitioned and not roots:
            chosen.findings.append(info(str(table.name), "partitioned: each partition is captured as a table"))
    return kept


def _wrong_partition_level(table: UpstreamTable, roots: bool) -> Finding:
    if roots:
        why = "a partition cannot be captured with partitions = root"
        return error(str(table.name), why, "Name the partitioned table instead, or use partitions = leaves.")
    why = "a partitioned table cannot be captured with partitions = leaves"
    return error(str(table.name), why, "Name its partitions instead, or use partitions = root.")


def _published(
    wanted: list[UpstreamTable],
    found: Sequence[UpstreamTable],
    options: PostgresOptions,
    publication: Publication,
    chosen: Selection,
) -> list[UpstreamTable]:
    """Keep the tables in the user's publication; `check_publication` reports named tables that are not in it."""
    published = {table.name for table in publication.tables}
    if options.tables:
        return wanted
    left_out = [table for table in wanted if table.name not in published and not table.partitioned]
    through = {table.oid for table in found if table.partitioned and table.name in published}
    for table in left_out:
        if table.root not in through:
            why = f'not captured: publication "{publication.name}" does not publish it'
            chosen.findings.append(info(str(table.name), why))
    return [table for table in wanted if table.name in published]


def _columns(columns: Iterable[ColumnName]) -> dict[TableName, frozenset[str]]:
    found: dict[TableName, frozenset[str]] = {}
    for column in columns:
        found[column.table] = found.get(column.table, frozenset()) | {column.column}
    return found


def _unknown_columns(tables: Sequence[ChosenTable], options: PostgresOptions) -> list[Finding]:
    """Report columns that do not exist, and excluded key columns."""
    known = {ColumnName(table.name, column.name) for table in tables for column in table.upstream.columns}
    keys = {ColumnName(table.name, column) for table in tables for column in table.key}
    found = []
    for column in (*options.excluded(), *options.as_text()):
        if column not in known:
            hint = nearest(str(column), map(str, known)) or "Name a column of a captured table, as schema.table.column."
            found.append(error(str(column), "the captured tables have no such column", hint))
        elif column in keys and column in options.excluded():
            hint = "Remove it from exclude_columns: the key identifies rows."
            found.append(error(str(column), "a column of the primary key cannot be excluded", hint))
    return found
