"""``EXPLAIN SOURCES``: what a statement would make, outside and here, without making it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.changelog.place import log_at
from penstock.control.answer import Answer
from penstock.control.local_names import local_names
from penstock.layout import base_path
from penstock.sources.family import InstanceConfig, Source
from penstock.sources.findings import Level

__all__ = ["explain"]

_COLUMNS = ("where", "what", "note")
_Row = tuple[str, str, str]


def explain(home: Path, sources: Sequence[Source]) -> Answer:
    """Look outside, as a create does, and tell what it would make."""
    shards = [shard for source in sources for shard in source.shards().values()]
    return Answer(columns=_COLUMNS, rows=[row for shard in shards for row in _source(home, shard)])


def _source(home: Path, source: Source) -> Iterator[_Row]:
    found = source.check()
    for finding in found.findings:
        if finding.level is not Level.INFO:
            yield source.place(), f"{finding.level}: {finding.object}: {finding.why}", finding.remedy
    if not found.ready:
        return
    for instance in source.create_instances(1):
        yield from _instance(home, source, instance)


def _instance(home: Path, source: Source, instance: InstanceConfig) -> Iterator[_Row]:
    there = instance.place()
    for made in instance.makes():
        yield there, made, "made, and removed with the source"
    for kept in instance.kept():
        yield there, kept, "yours: it is read, and stays"
    yield "here", f"change log {log_at(home, source.name, source.log)}", f"history is kept for {source.retain_history}"
    names = local_names(instance)
    for table in instance.produced():
        schema = table.table_schema()
        key = f"key ({', '.join(schema.key)})" if schema.key else "no key"
        local = names[table.name]
        note = f"{base_path(home, source.name, local)}: {len(schema.columns)} columns, {key}"
        yield "here", f"table {source.name}.{local} of {table.name}", note
    for name, (why, remedy) in instance.left_out().items():
        yield "here", f"without {name}: {why}", remedy
