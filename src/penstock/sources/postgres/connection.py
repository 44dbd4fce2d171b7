"""Connections to Postgres: one way to open them, for SQL and for replication, with the same security settings.

A connection string never holds a password here: it comes from the environment (``PGPASSWORD``), a password file or
a service file, where libpq finds it by itself, in this process and in Spark's.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError

__all__ = ["connect", "connect_replication", "connection_error", "parse_url", "place"]

_PINNED = "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601 -c extra_float_digits=3 -c bytea_output=hex"
_CONNECT_SECONDS = 10
_PASSING = (
    "starting up",
    "shutting down",
    "in recovery mode",
    "too many",
    "remaining connection slots",
    "not yet accepting",
)
_SECRETS = ("password", "sslpassword")


def parse_url(url: str) -> str:
    """Check a connection URL or keyword string and return it in keyword form, without what the environment adds."""
    try:
        parameters = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise _no_connection(_without_password(url)) from None  # libpq repeats what it could not read
    ports = str(parameters.get("port") or "")
    if not all(port.isdigit() for port in ports.split(",") if port):  # where a password with a slash in it ends up
        message = "its port is not a number"
        raise _no_connection(message)
    if any(parameters.get(secret) for secret in _SECRETS):
        message = f"the connection to {place(url)} holds a password in clear"
        raise UsageError(
            message,
            "Leave it out of the URL, and set PGPASSWORD or put it into a password file (~/.pgpass).",
        )
    return make_conninfo("", **{k: v for k, v in parameters.items() if v is not None})


def _no_connection(what: str) -> UsageError:
    return UsageError(f"this is not a Postgres connection: {what}", "Write it as postgresql://user@host:5432/database.")


def place(conninfo: str) -> str:
    """Name a connection for people: host, port and database."""
    parameters = conninfo_to_dict(conninfo)
    host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
    return f"{host}:{parameters.get('port') or 5432}/{parameters.get('dbname') or parameters.get('user') or ''}"


def connect(conninfo: str, application: str = "penstock", **settings: Any) -> psycopg.Connection[Any]:
    """Open a connection for SQL, in autocommit mode, its output format pinned."""
    return _open(conninfo, application, **settings)


def connect_replication(conninfo: str, application: str = "penstock") -> psycopg.Connection[Any]:
    """Open a connection that speaks the replication protocol."""
    return _open(conninfo, application, replication="database")


def _open(conninfo: str, application: str, **extra: Any) -> psycopg.Connection[Any]:
    given = conninfo_to_dict(conninfo)
    settings = {
        "client_encoding": "UTF8",
        "connect_timeout": given.get("connect_timeout") or _CONNECT_SECONDS,
        "fallback_application_name": application,
        "options": f"{given.get('options') or ''} {_PINNED}".strip(),
        "keepalives_idle": given.get("keepalives_idle") or 30,
    }
    try:
        return psycopg.connect(conninfo, autocommit=True, **{**settings, **extra})
    except psycopg.OperationalError as error:
        raise connection_error(error, conninfo) from error


def connection_error(error: psycopg.Error, conninfo: str) -> PenstockError:
    """Sort an error of the connection: worth another try, or not before somebody acts."""
    said = " ".join(str(error).split())
    where = f"{place(conninfo)}: {said}"
    if "no password supplied" in said or "password authentication failed" in said:
        remedy = "Set PGPASSWORD, or add a line to ~/.pgpass, with the right password for this user."
        return DefiniteError(f"Postgres refused the login at {where}", remedy)
    passing = error.sqlstate is not None and error.sqlstate.startswith(("08", "53", "57"))
    if passing or (error.sqlstate is None and "FATAL" not in said) or any(word in said for word in _PASSING):
        return TransientError(
            f"cannot reach Postgres at {where}", "Check that the server runs and that host and port are right."
        )
    if "must be superuser or replication role" in said or "permission denied to start WAL sender" in said:
        user = conninfo_to_dict(conninfo).get("user") or "the role"
        return DefiniteError(f"Postgres refused replication at {where}", f'Run: ALTER ROLE "{user}" REPLICATION;')
    return DefiniteError(f"Postgres refused the connection at {where}", "Check database, user and pg_hba.conf.")


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}" if parts.scheme else "(not a URL)"
    except ValueError:
        return "(not a URL)"
