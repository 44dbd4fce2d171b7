"""Preflight: everything that would keep capture from working, found before anything is made upstream.

::

    examination   looks at it all once ─▶ Preflight
    server        version, WAL, room for slots and senders, timeouts, standbys, poolers
    role          what the role may do
    tables        what keeps a table out
    contracts     publication and slot, ours or yours

Each finding has a level, an object, the reason and the SQL (or the setting) that mends it. An error of the server keeps
the source from being created; an error of a table keeps that table out, and the others are captured.
"""

from __future__ import annotations

from penstock.sources.findings import Finding, Level
from penstock.sources.postgres.preflight.examination import Preflight, chosen_tables, examine, examine_named

__all__ = ["Finding", "Level", "Preflight", "chosen_tables", "examine", "examine_named"]
