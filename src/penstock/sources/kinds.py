"""The registry of source kinds: the built-in ones, and those of installed packages.

A package provides a kind by an entry point of the group ``penstock.sources`` that names its `Kind`::

    [project.entry-points."penstock.sources"]
    outbox = "penstock_outbox:KIND"

A package that cannot be loaded affects only its own sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from penstock.errors import DefiniteError, UsageError
from penstock.name_suggestions import nearest
from penstock.sources.interface import Kind, Source

__all__ = ["installed_kind", "kind", "kind_of_scheme", "kinds", "source_of_urls"]

_GROUP = "penstock.sources"
_BUILT_IN = (
    EntryPoint("postgres", "penstock.sources.postgres.kind:KIND", _GROUP),
    EntryPoint("kafka", "penstock.sources.kafka.kind:KIND", _GROUP),
    EntryPoint("file", "penstock.sources.files.kind:KIND", _GROUP),
    EntryPoint("load", "penstock.sources.load_generator.source:KIND", _GROUP),
)


@cache
def kinds() -> Mapping[str, Kind]:
    """Return all kinds by name, without those that cannot be loaded."""
    found: dict[str, Kind] = {}
    for loaded in _each():
        found.setdefault(loaded.name, loaded)
    return found


def kind(name: str) -> Kind:
    """Return a kind by its name."""
    found = installed_kind(name)
    if found is not None:
        return found
    broken = [reason for point in entry_points(group=_GROUP) if isinstance(reason := _load(point), str)]
    message = f'unrecognized source kind "{name}"'
    hint = f"{nearest(name, kinds())} The source kinds are {', '.join(sorted(kinds()))}.".strip()
    if broken:
        raise DefiniteError(message, " ".join([hint, "These could not be loaded:", *broken]))
    raise UsageError(message, f"{hint} Check that the package that provides it is installed.")


def installed_kind(name: str) -> Kind | None:
    """Return a kind by its name, or None. A built-in one is loaded without the others, which import much."""
    named = (_load(point) for point in _BUILT_IN if point.name == name.partition(" ")[0].lower())
    built_in = next((found for found in named if isinstance(found, Kind) and found.name == name), None)
    return built_in or kinds().get(name)


def kind_of_scheme(scheme: str) -> Kind | None:
    """Return the first kind whose URLs have a scheme; the kinds after it are not loaded, which would take longer."""
    return next((found for found in _each() if scheme in found.source.SCHEMES), None)


def source_of_urls(urls: Sequence[str], name: str | None = None, **options: Any) -> Source:
    """Return the source for a URL, or a sharded source for several, of the kind that the URL's scheme names."""
    first = urls[0] if urls else ""
    scheme = first.partition("://")[0] if "://" in first else ""
    found = kind_of_scheme(scheme) or kind_of_scheme("")
    assert found is not None, "a built-in kind accepts any text"
    return found.source.from_urls(urls, name, **options)


def _each() -> Iterator[Kind]:
    """Load one kind after the other, without those that cannot be loaded."""
    for point in (*_BUILT_IN, *entry_points(group=_GROUP)):
        loaded = _load(point)
        if isinstance(loaded, Kind):
            yield loaded


@cache
def _load(point: EntryPoint) -> Kind | str:
    """Load a kind; return the reason if that fails."""
    try:
        found = point.load()
    except Exception as error:  # a third-party module may raise anything
        return f"{point.value} ({type(error).__name__}: {error})"
    return found if isinstance(found, Kind) else f"{point.value} (not a penstock.sources.interface.Kind)"
