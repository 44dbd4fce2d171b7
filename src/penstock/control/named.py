"""Which source and which table is meant: by its name upstream, or by the one that it has here."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.errors import UsageError
from penstock.nearest import nearest

__all__ = ["named_source", "named_sources", "named_table", "named_tables", "runnable_sources"]


def named_sources(catalog: Catalog, name: str) -> list[SourceRecord]:
    """Look a source up, or the shards of which it is made; one that is not there is told with those that are."""
    found = catalog.parts(name)
    if not found:
        known = ", ".join(dict.fromkeys(source.known_as for source in catalog.sources())) or "none"
        message = f"there is no source {name}"
        raise UsageError(message, f"Known are: {known}")
    return found


def named_source(catalog: Catalog, name: str) -> SourceRecord:
    """Look one source up; of one that is made of shards, a shard has to be named."""
    found = named_sources(catalog, name)
    if found[0].name != name:
        message = f"source {name} is made of shards, and this can be done with one of them only"
        raise UsageError(message, f"Name a shard: {', '.join(record.name for record in found)}")
    return found[0]


def runnable_sources(catalog: Catalog) -> list[SourceRecord]:
    """Return the sources that can run: not those that are being made or dropped."""
    return [r for r in catalog.sources() if r.state in (SourceState.READY, SourceState.FAILED)]


def named_table(catalog: Catalog, source: str, name: str) -> TableRecord:
    """Look a table of a source up, as ``schema.table`` or as it is called here."""
    named_source(catalog, source)
    records = catalog.tables(source)
    found = next((r for r in records if name == str(r.upstream)), None)
    found = found or next((r for r in records if name == r.local), None)
    if found is None:
        known = ", ".join(str(record.upstream) for record in records) or "none"
        message = f"source {source} has no table {name}"
        names = [text for record in records for text in (str(record.upstream), record.local)]
        raise UsageError(message, f"{nearest(name, names) or ''} Its tables are: {known}.".strip())
    return found


def named_tables(catalog: Catalog, source: str, names: Sequence[str]) -> list[TableRecord]:
    """Look several up, each once, in the order of the catalog; all of them where none is named."""
    named_source(catalog, source)
    wanted = {named_table(catalog, source, name).upstream for name in names}
    return [record for record in catalog.tables(source) if not names or record.upstream in wanted]
