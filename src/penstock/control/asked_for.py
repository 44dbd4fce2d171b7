"""What a user asks for by URLs: one database, or several that are shards; and whether a home captures that already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.catalog.store import Catalog, SourceRecord
from penstock.control.recorded import spec_of
from penstock.errors import UsageError
from penstock.sources.postgres.spec import PostgresSource

__all__ = ["captured_as", "described"]

_KEPT = ("publication", "slot", "password")
"""Options that, where they are not given again, are those that the source has."""


def described(url: str | Sequence[str], name: str | None = None, **options: Any) -> PostgresSource:
    """Describe the capture of a database; several are shards, which need a name."""
    urls = [url] if isinstance(url, str) else list(url)
    if len(urls) == 1:
        return PostgresSource.from_url(urls[0], name, **options)
    if name is None:
        message = "several databases, which have no name that they share"
        raise UsageError(message, "Name the source that they are shards of (--name).")
    return PostgresSource.from_urls(urls, name, **options)


def captured_as(catalog: Catalog, url: str | Sequence[str], **options: Any) -> str | None:
    """Return the name of the source that captures this database, or exactly these; refuse other options."""
    wanted = {shard.connection for shard in described(url, "wanted").shards().values()}
    for name, records in _together(catalog).items():
        specs = [spec for spec in map(spec_of, records) if isinstance(spec, PostgresSource)]
        if {spec.connection for spec in specs} != wanted:
            continue
        given = {key for key, value in options.items() if value is not None}
        if options and _told(described(url, name, **options).shards().values(), given) != _told(specs, given):
            message = f"this home captures that database already, as source {name}, with other options"
            raise UsageError(message, f"Leave the options out, or drop it first: penstock drop {name}")
        return name
    return None


def _together(catalog: Catalog) -> dict[str, list[SourceRecord]]:
    """Return all sources by the names that users gave."""
    found: dict[str, list[SourceRecord]] = {}
    for record in catalog.sources():
        found.setdefault(record.known_as, []).append(record)
    return found


def _told(specs: Iterable[PostgresSource], given: set[str]) -> dict[str, dict[str, Any]]:
    """Return what each of these sources was asked for, but for what goes without saying."""
    kept = {field for field in _KEPT if field not in given}
    return {spec.name: spec.model_dump(exclude=kept) for spec in specs}
