"""The sinks of a home, stored in the catalog: their options, state and error. Secrets are references only.

A sink belongs to a source by the name that the user gave it: a sharded source has several records. The position of a
sink is not here: it is stored with its output.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from penstock.catalog.file import CatalogFile
from penstock.catalog.states import SinkState
from penstock.errors import TransientError

__all__ = ["SinkRecord", "Sinks"]

_COLUMNS = "name, source, kind, spec, state, id, started, error, hint, created_at"


@dataclass(frozen=True)
class SinkRecord:
    """A sink in the catalog; `spec` is JSON of the type of its kind."""

    name: str
    source: str
    """The name of the source as the user gave it."""
    kind: str
    spec: str
    state: SinkState = SinkState.RUNNING
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Distinguishes the sink from one of the same name in another home, or of an earlier time."""
    started: frozenset[str] = frozenset()
    """The sources, or shards, of which the sink ever committed a position: if it is missing later, that is an error."""
    error: str | None = None
    hint: str | None = None
    created_at: str = ""
    """Set by the catalog, in UTC."""


class Sinks:
    """The sinks in a catalog."""

    def __init__(self, catalog: CatalogFile) -> None:
        self._catalog = catalog

    def add(self, record: SinkRecord) -> None:
        """Insert a sink; its name must be free."""
        query = "INSERT INTO sink (name, source, kind, spec, state, id) VALUES (?, ?, ?, ?, ?, ?)"
        with self._catalog.transaction() as db:
            db.execute(query, (record.name, record.source, record.kind, record.spec, record.state, record.id))

    def all(self, source: str | None = None) -> list[SinkRecord]:
        """Return the sinks, of all sources or of one, by name."""
        query = f"SELECT {_COLUMNS} FROM sink WHERE ?1 IS NULL OR source = ?1 ORDER BY name"
        with self._catalog.connected() as db:
            rows = db.execute(query, (source,)).fetchall()
        return [
            SinkRecord(r[0], r[1], r[2], r[3], SinkState(r[4]), r[5], frozenset(r[6].split()), r[7], r[8], r[9])
            for r in rows
        ]

    def get(self, name: str) -> SinkRecord | None:
        """Return the sink of this name, or None."""
        return next((record for record in self.all() if record.name == name), None)

    def set_state(self, name: str, state: SinkState, *, error: str = "", hint: str = "") -> None:
        """Set the state of a sink and its error, if there is one. A sink that is being dropped stays so."""
        query = "UPDATE sink SET state=?1, error=?2, hint=?3 WHERE name=?4 AND (state != ?5 OR ?1 = ?5)"
        with self._catalog.transaction() as db:
            db.execute(query, (state, error or None, hint or None, name, SinkState.DROPPING))

    def note_error(self, name: str, error: str = "", hint: str = "") -> None:
        """Record a transient error of a running sink; without an error, clear it. That of a failed sink stays."""
        query = "UPDATE sink SET error=?, hint=? WHERE name=? AND state=?"
        with self._catalog.transaction() as db:
            db.execute(query, (error or None, hint or None, name, SinkState.RUNNING))

    def mark_started(self, name: str, source: str) -> None:
        """Record that the sink has committed a position of a source, or of a shard."""
        with self._catalog.transaction() as db:
            db.execute("UPDATE sink SET started=trim(started || ' ' || ?) WHERE name=?", (source, name))

    def alter(self, name: str, before: str, after: str) -> None:
        """Replace the spec of a sink, unless it changed meanwhile, and clear its error: the sink is started again."""
        query = "UPDATE sink SET spec=?1, state=?2, error=NULL, hint=NULL WHERE name=?3 AND spec=?4 AND state != ?5"
        with self._catalog.transaction() as db:
            if not db.execute(query, (after, SinkState.RUNNING, name, before, SinkState.DROPPING)).rowcount:
                message = f"sink {name} was changed concurrently by another process"
                raise TransientError(message, "Nothing was changed. Try again.")

    def remove(self, name: str) -> None:
        """Delete a sink."""
        with self._catalog.transaction() as db:
            db.execute("DELETE FROM sink WHERE name=?", (name,))
