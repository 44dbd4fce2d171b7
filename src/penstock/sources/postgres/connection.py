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

A server, or what stands before it, may stop to answer and keep the connection open. The kernel finds out where nobody
takes in what was sent (keepalives, ``tcp_user_timeout``); where something does and passes nothing on, only the lack of
an answer tells. So who must not wait for ever asks over a connection that wants its answers within some seconds.

Connection poolers: recognised, and named.

Replication needs Postgres itself. PgBouncer and its like refuse the parameters of our connections, most of the time
(see `penstock.sources.postgres.connection`). One that lets them through is still no Postgres: it makes up the process
id that it gives to its clients, and `pg_backend_pid` gives another one. Some proxies of cloud providers do so as well,
but keep sessions whole and carry replication: they are told apart by whether the settings of our session hold, and a
replication connection is opened in any case.

Which SQLSTATE a refused login had.

The server sends one with every refusal. libpq keeps it to itself: it gives a text, in the server's language. Asked
for its shortest messages, it prints the SQLSTATE instead of the text; psycopg has no way to ask, so one more
attempt is made here, with the libpq that psycopg brings. Where that cannot be found, or nobody answers, there is none.

What a refused connection means: worth another try, or not before somebody acts, and then what.

::

    SQLSTATE, where the server sent one ─▶ the table below
    none: libpq's own words, which are English everywhere ─▶ password missing, TLS, else nobody there
"""

from __future__ import annotations

import ctypes
import functools
import re
import select
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.secret import check_reference, is_reference, resolve
from penstock.sources.findings import Finding, error, warning

__all__ = [
    "ANSWER_SECONDS",
    "POOLER_REMEDY",
    "connect",
    "connect_replication",
    "connection_error",
    "find_pooler",
    "forget_timeouts",
    "parse_url",
    "place",
    "refusal",
    "refusal_sqlstate",
]

ANSWER_SECONDS = 30.0
"""How long capture waits for an answer of the server before it takes it for gone, and connects again."""

_PINNED = "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601 -c extra_float_digits=3 -c bytea_output=hex"
_TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
_NO_TIMEOUTS = " ".join(f"-c {name}=0" for name in _TIMEOUTS)
_TRANSACTION_TIMEOUT = 170000
"""The server's version from which on there is ``transaction_timeout``."""
_CONNECT_SECONDS = 10
_TCP = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 30_000}
"""When the kernel gives a connection up; what the connection string says goes before."""
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
        hint = (
            "Leave it out of the URL, and set PGPASSWORD or put it into a password file (~/.pgpass),"
            " or name where it is: password=env:NAME or password=file:PATH."
        )
        raise UsageError(message, hint)
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


class _Connection(psycopg.Connection[Any]):
    """A connection that may want its answers within some seconds."""

    answers_within: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for an answer; without one in time, the connection is of no use any more, and is closed."""
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
    """Open a connection for SQL, in autocommit mode, its output format pinned."""
    return _open(conninfo, application, patient, answers_within, **settings)


def connect_replication(
    conninfo: str, application: str = "penstock", *, patient: bool = False, answers_within: float | None = None
) -> psycopg.Connection[Any]:
    """Open a connection that speaks the replication protocol."""
    return _open(conninfo, application, patient, answers_within, replication="database")


def forget_timeouts(connection: psycopg.Connection[Any]) -> None:
    """Lift every limit of time from a session."""
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
        sqlstate = refusal_sqlstate(make_conninfo(conninfo, **settings))
        raise _refused(error, conninfo, sqlstate, replication="replication" in extra) from None
    connection.answers_within = answers_within
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


_SESSION = "SELECT pg_backend_pid(), current_setting('IntervalStyle'), current_setting('extra_float_digits')"
_PINNED_BY_POOLER = ("iso_8601", "3")
"""What our sessions are given when they are opened."""


def find_pooler(connection: psycopg.Connection[Any]) -> list[Finding]:
    """Return an error if this connection ends at a pooler; a proxy that keeps our session whole is only told."""
    row = connection.execute(_SESSION).fetchone()
    if row is None or row[0] == connection.pgconn.backend_pid:
        return []
    if row[1:] == _PINNED_BY_POOLER:
        why = "a proxy stands between here and Postgres: sessions must not be shared there"
        return [warning("connection", why, POOLER_REMEDY)]
    why = "a connection pooler (like PgBouncer) stands between here and Postgres; it cannot carry a change stream"
    return [error("connection", why, POOLER_REMEDY)]


_ONLY_SQLSTATE = 3
_CODE = re.compile(rb":\s+([0-9A-Z]{5})\s*$", re.MULTILINE)
_DONE = (pq.PollingStatus.OK, pq.PollingStatus.FAILED)


def refusal_sqlstate(conninfo: str, seconds: float = 5.0) -> str | None:
    """Log in once more; return the SQLSTATE with which the server refuses, None where it does not answer or agrees."""
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
    """Find ``PQsetErrorVerbosity`` in the libpq of psycopg's wheel."""
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


POOLER_REMEDY = "Connect to Postgres itself: its own host and port, not those of the pooler."

_PASSING = ("08", "53", "57")
_NETWORK = "Check that the server runs and that host and port are right."
_TLS_WORDS = ("SSL", "certificate", "private key", "TLS")


def refusal(
    where: str, said: str, sqlstate: str | None, user: str, *, replication: bool, needs_password: bool
) -> PenstockError:
    """Turn a refused connection into an error of ours."""
    at = f"{where}: {said}"
    code = sqlstate or _guess(said, needs_password)
    if code in ("28P01", "28P00"):
        hint = "Set PGPASSWORD, or add a line to ~/.pgpass, with the right password for this user."
        return DefiniteError(f"Postgres refused the login at {at}", hint)
    if code == "08P01":
        return DefiniteError(f"a connection pooler answers, not Postgres, at {at}", POOLER_REMEDY)
    if code == "42501":
        return _no_privilege(at, user, replication)
    if code == "TLS":
        hint = "Check sslmode, sslrootcert, sslcert and sslkey of the connection, and the server's certificate."
        return DefiniteError(f"no secure connection to Postgres at {at}", hint)
    if code is None or code.startswith(_PASSING):
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


def _guess(said: str, needs_password: bool) -> str | None:
    """Without a SQLSTATE, go by the words: those of libpq, or of a server whose SQLSTATE could not be had."""
    if needs_password or "no password supplied" in said:
        return "28P01"
    known = next((code for words, code in _WORDS if words in said), None)
    if known is not None:
        return known
    if "FATAL" in said:
        return "28000"
    return "TLS" if any(word in said for word in _TLS_WORDS) else None
