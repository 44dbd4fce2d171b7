"""``ALTER SOURCES … SET``: the spec is what is wished of a source, its instance config what is.

::

    ask_set      validated, as one that is made with these options ─▶ catalog: the spec, unless it was changed meanwhile
    set_options  whoever runs the home sees that the instance is not as the spec wants it: capture stands still
                 ─▶ catalog: the instance ─▶ capture again

There is nothing to be undone: whatever breaks off in between, the two differ, and whoever runs the home next sees that.
Only what needs nothing outside can be changed so; all else is refused, with the reason.
"""

from __future__ import annotations

from typing import Any

from penstock.catalog.store import Catalog, SourceRecord
from penstock.control.lifecycle import HALF
from penstock.control.named import named_sources
from penstock.control.recorded import instance_of, spec_of
from penstock.control.shards import refuse_shard
from penstock.errors import UsageError
from penstock.nearest import nearest
from penstock.sources.family import Source

__all__ = ["ask_set", "is_set", "set_options"]


def ask_set(catalog: Catalog, source: str, options: dict[str, Any]) -> None:
    """Note that options of a source, on every shard, shall have other values."""
    records = named_sources(catalog, source)
    refuse_shard(records[0], source)
    changed = {record.name: (record.spec, _wished(record, options).model_dump_json()) for record in records}
    if any(before != after for before, after in changed.values()):
        catalog.alter(changed)


def _wished(record: SourceRecord, options: dict[str, Any]) -> Source:
    """Return what is asked of a source then; refuse what cannot be changed, or makes no sense."""
    if record.state in HALF:
        message = f"source {record.name} is {record.state}"
        raise UsageError(message, "Its options can be changed when it is ready; see `penstock status`.")
    spec = spec_of(record)
    for option in options:
        _refuse_fixed(spec, option)
    given = {field: getattr(spec, field) for field in type(spec).model_fields if field != "name"}
    return type(spec).of(spec.name, **{**given, **options})


def set_options(catalog: Catalog, record: SourceRecord) -> None:
    """Give a source the options that are wished of it. Capture must not run meanwhile: it stores its config, too."""
    if not is_set(record):
        altered = instance_of(record).altered(spec_of(record)).model_dump_json()
        told = {"error": record.error or "", "remedy": record.remedy or ""}
        catalog.set_source(record.name, record.state, instance=altered, **told)


def is_set(record: SourceRecord) -> bool:
    """Say whether a source has the options that are wished of it."""
    instance = instance_of(record)
    return instance.altered(spec_of(record)) == instance


def _refuse_fixed(spec: Source, option: str) -> None:
    if option in spec.ALTERABLE:
        return
    changeable = f"These can be changed: {', '.join(sorted(spec.ALTERABLE))}."
    if option not in type(spec).model_fields:
        message = f"there is no option {option} of a source {spec.NAME}"
        raise UsageError(message, " ".join(filter(None, [nearest(option, spec.ALTERABLE), changeable])))
    message = f"the option {option} of source {spec.name} cannot be changed: {spec.why_fixed(option)}"
    raise UsageError(message, changeable)
