"""Preflight: find everything that prevents capture, before any object is created on the server.

::

    report       runs all checks once, also that for poolers ─▶ Preflight
    server       version, WAL settings, free slots and senders, timeouts, standbys; publication and slot, managed by
                 Penstock or by the user
    role         privileges of the role
    tables       conditions that prevent the capture of a table
    meta         the tables for watermarks and heartbeats
    introspect   relations, columns and keys in the catalogs ─▶ selection: the tables and columns of the source

Each finding has a level, an object, the reason and the SQL (or the setting) that fixes it. An error of the server
prevents the creation of the source; an error of a table excludes that table, and the other tables are captured.
"""

from __future__ import annotations

from penstock.sources.findings import Finding, Level
from penstock.sources.postgres.preflight.report import Preflight, check_named_tables, chosen_tables, run_preflight

__all__ = ["Finding", "Level", "Preflight", "check_named_tables", "chosen_tables", "run_preflight"]
