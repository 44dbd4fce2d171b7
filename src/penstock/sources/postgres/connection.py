"""Connections to Postgres, for SQL and for replication, with the same security settings.

::

    URL or keywords ─▶ parse_url ─▶ keywords, with a password reference at most ─▶ catalog, Spark, logs
                                       └─▶ connect, connect_replication: the only code that resolves the reference

**Passwords** come from the environment (``PGPASSWORD``), a password file or a service file, which libpq reads by itself
in this process and in Spark's; or from a reference (see `penstock.secret`), which takes the place of the password in a
connection string. TLS, several hosts and ``target_session_attrs`` are handled by libpq.

**Timeouts.** A role or a database may limit the duration of statements, transactions and idle sessions. A session that
holds a snapshot, or copies a table, is idle or busy for hours on purpose: it is opened as *patient*, without these
limits. They are disabled in the startup options, so that none of them can expire before.

**Silent servers.** A server, or a proxy in front of it, may stop answering and keep the connection open. The kernel
detects a peer that does not acknowledge data (keepalives, ``tcp_user_timeout``); a peer that acknowledges it and
forwards nothing is detected only by the missing answer. So callers that must not block forever use a connection with a
bound on the time of each answer (`answers_within`).

**Connection poolers.** Replication needs a direct connection to Postgres. Most poolers, such as PgBouncer, reject the
startup parameters of our connections. A pooler that accepts them still invents the process id that it sends to its
clients, which differs from `pg_backend_pid`. Some proxies of cloud providers do so too, but keep one session for each
client and support replication: they are recognized by the settings of our session, which they preserve, and preflight
opens a replication connection in any case.

**The SQLSTATE of a refused login.** The server sends one with every refusal, but libpq reports only the message text,
in the server's language. With its tersest verbosity libpq prints the SQLSTATE instead of the text. psycopg has no
function for that, so we connect once more with the libpq that psycopg bundles. If that library cannot be found, or the
server does not answer, there is no SQLSTATE.

**Errors** of a connection are transient (retried) or permanent, with a hint::

    SQLSTATE, if the server sent one                      ─▶ see `connection_failure`
    none: libpq's own message, which is always English    ─▶ missing password, TLS, else server unreachable

`translate_errors` converts the errors of queries in this way; `translate_prepare_errors` those of statements that
prepare a source upstream.
"""

from __future__ import annotations

import ctypes
import functools
import re
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import AlreadyExistsError, DefiniteError, PenstockError, TransientError, UsageError
from penstock.secret import check_reference, is_reference, resolve
from penstock.sources.findings import Finding, error, warning

__all__ = [
    "ANSWER_SECONDS",
    "connect",
    "connect_replication",
    "connection_error",
    "connection_failure",
    "database_name",
    "disable_timeouts",
    "error_text",
    "find_pooler",
    "login_sqlstate",
    "parse_url",
    "place",
    "translate_errors",
    "translate_prepare_errors",
]

ANSWER_SECONDS = 30.0
"""How long capture waits for an answer of the server before it reconnects."""

_PINNED = "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601 -c extra_float_digits=3 -c bytea_output=hex"
_TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
_NO_TIMEOUTS = " ".join(f"-c {name}=0" for name in _TIMEOUTS)
_TRANSACTION_TIMEOUT = 170000
"""The first server version with ``transaction_timeout``."""
_CONNECT_SECONDS = 10
_TCP = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 30_000}
"""When the kernel closes a connection; settings in the connection string take precedence."""
_SECRETS = ("password", "sslpassword")


def parse_url(url: str) -> str:
    """Check a connection URL or keyword string and return it in keyword form, without defaults of the environment."""
    try:
        parameters = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise _invalid_url(_without_password(url)) from None  # libpq's message repeats the text that it cannot parse
    ports = str(parameters.get("port") or "")
    if not all(port.isdigit() for port in ports.split(",") if port):  # it may be a part of a password with a slash
        message = "the port is not a number"
        raise _invalid_url(message)
    if re.match(r"\w+://[^@?]*/[^?]*@", url):  # it may be the rest of such a password, if that begins with digits
        message = "the database name contains an @"
        raise _invalid_url(message)
    for secret in (secret for secret in _SECRETS if parameters.get(secret)):
        parameters[secret] = _reference(str(parameters[secret]), url)
    return make_conninfo("", **{k: v for k, v in parameters.items() if v is not None})


def _reference(given: str, url: str) -> str:
    """Return a reference to a password; reject a password in clear text."""
    if not is_reference(given):
        message = f"the connection to {place(url)} contains a password in clear text"
        hint = (
            "Remove it from the URL and set PGPASSWORD, use a password file (~/.pgpass),"
            " or refer to it: password=env:NAME or password=file:PATH."
        )
        raise UsageError(message, hint)
    return check_reference(given)


def _invalid_url(why: str) -> UsageError:
    return UsageError(f"invalid Postgres connection: {why}", "Write it as postgresql://user@host:5432/database.")


def place(conninfo: str) -> str:
    """Return host, port and database of a connection, for messages."""
    parameters = conninfo_to_dict(conninfo)
    host = parameters.get("host") or parameters.get("hostaddr")
    if not host and parameters.get("service"):
        return f"service {parameters['service']}"
    return f"{host or 'localhost'}:{parameters.get('port') or 5432}/{database_name(conninfo)}"


def database_name(conninfo: str) -> str:
    """Return the database of a connection; empty if only libpq's service file names it."""
    parameters = conninfo_to_dict(conninfo)
    return str(parameters.get("dbname") or parameters.get("user") or "")


class _Connection(psycopg.Connection[Any]):
    """A connection with an optional bound on the time of each answer."""

    answers_within: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for an answer; close the connection and raise if none arrives in time."""
        bound, began = self.answers_within, time.monotonic()
        if bound is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, bound if timeout is None else min(bound, timeout))
        except psycopg.Error as error:
            if time.monotonic() - began < bound:
                raise
            self.pgconn.finish()
            message = f"no answer within {bound:g} s"
            raise psycopg.OperationalError(message) from error


def connect(
    conninfo: str,
    application: str = "penstock",
    *,
    patient: bool = False,
    answers_within: float | None = None,
    **settings: Any,
) -> psycopg.Connection[Any]:
    """Open a connection for SQL, in autocommit mode and with fixed output formats."""
    return _open(conninfo, application, patient, answers_within, **settings)


def connect_replication(
    conninfo: str, application: str = "penstock", *, patient: bool = False, answers_within: float | None = None
) -> psycopg.Connection[Any]:
    """Open a connection in replication mode."""
    return _open(conninfo, application, patient, answers_within, replication="database")


def disable_timeouts(connection: psycopg.Connection[Any]) -> None:
    """Disable all timeouts of a session."""
    names = [*_TIMEOUTS, *(["transaction_timeout"] if connection.info.server_version >= _TRANSACTION_TIMEOUT else [])]
    connection.execute("; ".join(f"SET {name} = 0" for name in names))


def _open(
    conninfo: str, application: str, patient: bool, answers_within: float | None, **extra: Any
) -> psycopg.Connection[Any]:
    given = conninfo_to_dict(conninfo)
    settings = {
        "client_encoding": "UTF8",
        "connect_timeout": given.get("connect_timeout") or _CONNECT_SECONDS,
        "fallback_application_name": application,
        "options": f"{given.get('options') or ''} {_PINNED} {_NO_TIMEOUTS if patient else ''}".strip(),
        **{setting: given.get(setting) or value for setting, value in _TCP.items()},
        **{secret: resolve(str(given[secret])) for secret in _SECRETS if is_reference(str(given.get(secret) or ""))},
        **extra,
    }
    try:
        connection = _Connection.connect(conninfo, autocommit=True, **settings)
    except psycopg.errors.ConnectionTimeout as error:
        raise connection_error(error, conninfo) from error
    except psycopg.OperationalError as error:
        sqlstate = login_sqlstate(make_conninfo(conninfo, **settings))
        raise _refused(error, conninfo, sqlstate, replication="replication" in extra) from None
    connection.answers_within = answers_within
    if patient:
        disable_timeouts(connection)
    return connection


def connection_error(error: psycopg.Error, conninfo: str) -> PenstockError:
    """Convert a psycopg error into a transient or a permanent error, with a hint."""
    return _refused(error, conninfo, error.sqlstate, replication=True)


def error_text(error: psycopg.Error) -> str:
    """Return the message of an error in one line, without row values.

    DETAIL lines quote rows, and so do the messages of data errors and violated constraints (classes 22 and 23).
    """
    if (error.sqlstate or "").startswith(("22", "23")):
        return f"{type(error).__name__} (SQLSTATE {error.sqlstate})"
    return " ".join((error.diag.message_primary or str(error)).split())


def _refused(error: psycopg.Error, conninfo: str, sqlstate: str | None, *, replication: bool) -> PenstockError:
    return connection_failure(
        place(conninfo),
        error_text(error),
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


# -- connection poolers ------------------------------------------------------------------------------------------------

_POOLER_HINT = "Connect to Postgres directly: use the host and port of the server, not those of the pooler or proxy."

_SESSION = "SELECT pg_backend_pid(), current_setting('IntervalStyle'), current_setting('extra_float_digits')"
_PRESERVED = ("iso_8601", "3")
"""The values of these settings in a session that kept our startup options."""


def find_pooler(connection: psycopg.Connection[Any]) -> list[Finding]:
    """Return an error if this connection ends at a pooler, a warning if it passes a proxy that preserves sessions."""
    row = connection.execute(_SESSION).fetchone()
    if row is None or row[0] == connection.pgconn.backend_pid:
        return []
    if row[1:] == _PRESERVED:
        why = "passes through a proxy, which must not share sessions between clients"
        return [warning("connection", why, _POOLER_HINT)]
    why = "passes through a connection pooler (such as PgBouncer), which does not support logical replication"
    return [error("connection", why, _POOLER_HINT)]


# -- the SQLSTATE of a refused login -----------------------------------------------------------------------------------

_ONLY_SQLSTATE = 3
_CODE = re.compile(rb":\s+([0-9A-Z]{5})\s*$", re.MULTILINE)
_DONE = (pq.PollingStatus.OK, pq.PollingStatus.FAILED)


def login_sqlstate(conninfo: str, seconds: float = 5.0) -> str | None:
    """Log in once more and return the SQLSTATE of the refusal; None if the server accepts or does not answer."""
    set_verbosity = _verbosity_setter()
    if set_verbosity is None:
        return None
    connection = pq.PGconn.connect_start(conninfo.encode())
    try:
        set_verbosity(getattr(connection, "pgconn_ptr", None), _ONLY_SQLSTATE)
        _wait(connection, time.monotonic() + seconds)
        codes = _CODE.findall(connection.error_message)
    except psycopg.Error:
        return None
    finally:
        connection.finish()
    return codes[-1].decode() if codes else None


def _wait(connection: pq.abc.PGconn, deadline: float) -> None:
    status = connection.connect_poll()
    while status not in _DONE and time.monotonic() < deadline:
        event = select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT
        poll = select.poll()
        poll.register(connection.socket, event)
        if poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            status = connection.connect_poll()


@functools.cache
def _verbosity_setter() -> ctypes._NamedFuncPointer | None:
    """Return ``PQsetErrorVerbosity`` of the libpq in psycopg's wheel."""
    if pq.__impl__ != "binary":
        return None
    import psycopg_binary

    folder = Path(psycopg_binary.__file__).parent.parent / "psycopg_binary.libs"
    found = sorted(folder.glob("libpq-*.so*"))
    if len(found) != 1:
        return None
    function = ctypes.CDLL(str(found[0])).PQsetErrorVerbosity
    function.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return function


# -- errors ------------------------------------------------------------------------------------------------------------

_TRANSIENT = ("08", "53", "57")
_NETWORK = "Check that the server is running and that host and port are correct."
_TLS_WORDS = ("SSL", "certificate", "private key", "TLS")


def connection_failure(
    where: str, text: str, sqlstate: str | None, user: str, *, replication: bool, needs_password: bool
) -> PenstockError:
    """Return the Penstock error for a refused connection, by its SQLSTATE or else by libpq's message."""
    at = f"{where}: {text}"
    code = sqlstate or _guess(text, needs_password)
    if code in ("28P01", "28P00"):
        hint = "Set PGPASSWORD, or add a line to ~/.pgpass, with the password of this user."
        return DefiniteError(f"Postgres refused the login at {at}", hint)
    if code == "08P01":
        return DefiniteError(f"connected to a connection pooler instead of Postgres at {at}", _POOLER_HINT)
    if code == "42501":
        return _no_privilege(at, user, replication)
    if code == "TLS":
        hint = "Check sslmode, sslrootcert, sslcert and sslkey of the connection, and the server's certificate."
        return DefiniteError(f"cannot establish a TLS connection to Postgres at {at}", hint)
    if code is None or code.startswith(_TRANSIENT):
        return TransientError(f"cannot reach Postgres at {at}", _NETWORK)
    return DefiniteError(f"Postgres refused the connection at {at}", "Check database, user and pg_hba.conf.")


def _no_privilege(at: str, user: str, replication: bool) -> DefiniteError:
    name = '"' + user.replace('"', '""') + '"' if user else "the role"
    if replication:
        hint = f"Run: ALTER ROLE {name} REPLICATION; (on Amazon RDS: GRANT rds_replication TO {name};)"
        return DefiniteError(f"Postgres refused replication at {at}", hint)
    return DefiniteError(f"Postgres refused the connection at {at}", f"Run: GRANT CONNECT ON DATABASE … TO {name};")


_WORDS = (
    ("password authentication failed", "28P01"),
    ("unsupported startup parameter", "08P01"),
    ("must be superuser or replication role", "42501"),
    ("permission denied", "42501"),
    ("too many", "53300"),
    ("remaining connection slots", "53300"),
    ("starting up", "57P03"),
    ("shutting down", "57P03"),
    ("in recovery mode", "57P03"),
    ("not yet accepting", "57P03"),
)


def _guess(text: str, needs_password: bool) -> str | None:
    """Guess the SQLSTATE from a message of libpq, or of a server whose SQLSTATE is not available."""
    if needs_password or "no password supplied" in text:
        return "28P01"
    known = next((code for words, code in _WORDS if words in text), None)
    if known is not None:
        return known
    if "FATAL" in text:
        return "28000"
    return "TLS" if any(word in text for word in _TLS_WORDS) else None


@contextmanager
def translate_errors(conninfo: str) -> Iterator[None]:
    """Translate errors of queries."""
    try:
        yield
    except psycopg.Error as error:
        raise connection_error(error, conninfo) from error


@contextmanager
def translate_prepare_errors(source: str, conninfo: str) -> Iterator[None]:
    """Translate errors of statements that create or alter objects for a source."""
    try:
        yield
    except psycopg.Error as error:
        text = error_text(error)
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57")):
            raise connection_error(error, conninfo) from error
        message = f"cannot prepare source {source} in Postgres: {text}"
        error_class = AlreadyExistsError if isinstance(error, psycopg.errors.DuplicateObject) else DefiniteError
        raise error_class(message, "Fix the error on the server, then retry.") from error
