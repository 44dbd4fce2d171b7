"""Connections to Postgres: one way to open them, for SQL and for replication, with the same security settings.

::

    URL or keywords ─▶ parse_url ─▶ keywords, the password a reference at most ─▶ catalog, Spark, logs
                                       └─▶ connect, connect_replication: resolve the reference, nobody else does

Passwords come from the environment (``PGPASSWORD``), a password file or a service file, where libpq finds them by
itself, in this process and in Spark's; or from a reference (see `penstock.secret`), which stands in
the place of the password in a connection string. TLS, several hosts, ``target_session_attrs`` are libpq's business.

A role or a database may limit how long statements, transactions and idle sessions take, against forgotten ones. A
session that holds a snapshot, or copies a table, is idle or busy for hours on purpose: it is *patient*, and knows none
of these limits. They are lifted as the session begins, so that none of them strikes first.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import PenstockError, UsageError
from penstock.secret import check_reference, is_reference, resolve
from penstock.sources.postgres.diagnosis import refusal_sqlstate
from penstock.sources.postgres.refusals import refusal

__all__ = ["connect", "connect_replication", "connection_error", "forget_timeouts", "parse_url", "place"]

_PINNED = "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601 -c extra_float_digits=3 -c bytea_output=hex"
_TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
_NO_TIMEOUTS = " ".join(f"-c {name}=0" for name in _TIMEOUTS)
_TRANSACTION_TIMEOUT = 170000
"""The server's version from which on there is ``transaction_timeout``."""
_CONNECT_SECONDS = 10
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
    if re.match(r"\w+://[^@?]*/[^?]*@", url):  # and the rest of such a password, where it begins with digits
        message = "there is an @ in the name of its database"
        raise _no_connection(message)
    for secret in (secret for secret in _SECRETS if parameters.get(secret)):
        parameters[secret] = _reference(str(parameters[secret]), url)
    return make_conninfo("", **{k: v for k, v in parameters.items() if v is not None})


def _reference(given: str, url: str) -> str:
    """Keep a reference to a password; refuse a password."""
    if not is_reference(given):
        message = f"the connection to {place(url)} holds a password in clear"
        remedy = (
            "Leave it out of the URL, and set PGPASSWORD or put it into a password file (~/.pgpass),"
            " or name where it is: password=env:NAME or password=file:PATH."
        )
        raise UsageError(message, remedy)
    return check_reference(given)


def _no_connection(what: str) -> UsageError:
    return UsageError(f"this is not a Postgres connection: {what}", "Write it as postgresql://user@host:5432/database.")


def place(conninfo: str) -> str:
    """Name a connection for people: host, port and database."""
    parameters = conninfo_to_dict(conninfo)
    host = parameters.get("host") or parameters.get("hostaddr")
    if not host and parameters.get("service"):
        return f"service {parameters['service']}"
    database = parameters.get("dbname") or parameters.get("user") or ""
    return f"{host or 'localhost'}:{parameters.get('port') or 5432}/{database}"


def connect(
    conninfo: str, application: str = "penstock", *, patient: bool = False, **settings: Any
) -> psycopg.Connection[Any]:
    """Open a connection for SQL, in autocommit mode, its output format pinned."""
    return _open(conninfo, application, patient, **settings)


def connect_replication(
    conninfo: str, application: str = "penstock", *, patient: bool = False
) -> psycopg.Connection[Any]:
    """Open a connection that speaks the replication protocol."""
    return _open(conninfo, application, patient, replication="database")


def forget_timeouts(connection: psycopg.Connection[Any]) -> None:
    """Lift every limit of time from a session."""
    names = [*_TIMEOUTS, *(["transaction_timeout"] if connection.info.server_version >= _TRANSACTION_TIMEOUT else [])]
    connection.execute("; ".join(f"SET {name} = 0" for name in names))


def _open(conninfo: str, application: str, patient: bool, **extra: Any) -> psycopg.Connection[Any]:
    given = conninfo_to_dict(conninfo)
    settings = {
        "client_encoding": "UTF8",
        "connect_timeout": given.get("connect_timeout") or _CONNECT_SECONDS,
        "fallback_application_name": application,
        "options": f"{given.get('options') or ''} {_PINNED} {_NO_TIMEOUTS if patient else ''}".strip(),
        "keepalives_idle": given.get("keepalives_idle") or 30,
        **{secret: resolve(str(given[secret])) for secret in _SECRETS if is_reference(str(given.get(secret) or ""))},
        **extra,
    }
    try:
        connection = psycopg.connect(conninfo, autocommit=True, **settings)
    except psycopg.errors.ConnectionTimeout as error:
        raise connection_error(error, conninfo) from error
    except psycopg.OperationalError as error:
        sqlstate = refusal_sqlstate(make_conninfo(conninfo, **settings))
        raise _refused(error, conninfo, sqlstate, replication="replication" in extra) from None
    if patient:
        forget_timeouts(connection)
    return connection


def connection_error(error: psycopg.Error, conninfo: str) -> PenstockError:
    """Sort an error of the connection: worth another try, or not before somebody acts."""
    return _refused(error, conninfo, error.sqlstate, replication=True)


def _refused(error: psycopg.Error, conninfo: str, sqlstate: str | None, *, replication: bool) -> PenstockError:
    return refusal(
        place(conninfo),
        " ".join(str(error).split()),
        sqlstate,
        str(conninfo_to_dict(conninfo).get("user") or ""),
        replication=replication,
        needs_password=error.pgconn is not None and bool(error.pgconn.needs_password),
    )


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}" if parts.scheme else "(not a URL)"
    except ValueError:
        return "(not a URL)"
