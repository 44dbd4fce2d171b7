"""The kinds of sources that there are: ours, and those of packages that are installed beside Penstock.

A package brings a kind by an entry point of the group ``penstock.sources``, which names its `Kind`::

    [project.entry-points."penstock.sources"]
    outbox = "penstock_outbox:KIND"

A kind is loaded when it is asked for, so that a broken package hurts nobody but its own sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from penstock.errors import DefiniteError, UsageError
from penstock.nearest import nearest
from penstock.sources.interface import Kind

__all__ = ["kind", "kinds"]

_GROUP = "penstock.sources"
_OURS = (
    EntryPoint("postgres", "penstock.sources.postgres.kind:KIND", _GROUP),
    EntryPoint("kafka", "penstock.sources.kafka.kind:KIND", _GROUP),
    EntryPoint("file", "penstock.sources.files.kind:KIND", _GROUP),
    EntryPoint("load", "penstock.sources.load.kind:KIND", _GROUP),
)


@cache
def kinds() -> Mapping[str, Kind]:
    """Return all kinds by name; those of packages that cannot be loaded are left out."""
    found: dict[str, Kind] = {}
    for point in (*_OURS, *entry_points(group=_GROUP)):
        loaded = _load(point)
        if isinstance(loaded, Kind):
            found.setdefault(loaded.name, loaded)
    return found


def kind(name: str) -> Kind:
    """Return a kind by its name."""
    found = kinds().get(name)
    if found is not None:
        return found
    broken = [told for point in entry_points(group=_GROUP) if isinstance(told := _load(point), str)]
    message = f"there is no kind of source {name}"
    hint = f"{nearest(name, kinds())} There are: {', '.join(sorted(kinds()))}.".strip()
    if broken:
        raise DefiniteError(message, " ".join([hint, "Could not be loaded:", *broken]))
    raise UsageError(message, f"{hint} Is the package that brings it installed?")


@cache
def _load(point: EntryPoint) -> Kind | str:
    """Load a kind; else say what is in the way."""
    try:
        found = point.load()
    except Exception as error:  # anything may be wrong with somebody else's module
        return f"{point.value} ({type(error).__name__}: {error})"
    return found if isinstance(found, Kind) else f"{point.value} (it is no penstock.sources.interface.Kind)"
