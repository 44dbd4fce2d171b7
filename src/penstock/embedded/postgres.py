"""An embedded Postgres server for the demo and the tests, which starts in a second and is removed completely.

::

    start_postgres() ─▶ home (mkdtemp, 0700) ─▶ guard ─▶ initdb ─▶ postgres, logging to home/server.log
                          ├── data/                               ├── 127.0.0.1:port
                          ├── server.log                          └── home/.s.PGSQL.port
                          └── install/   only if the server's account cannot read this environment

`EmbeddedPostgres.stop`, `start`, `restart` and `kill` work on one data directory; `close` (or leaving the ``with``
block) removes it. If this process dies first, however it dies, the guard does that (see `penstock.embedded.guard`).
`standby` starts another server that follows this one, and `promote` makes that one a primary.

Ports. A port that is free now may be in use when the server binds it; the first start then tries another port. Ports
are chosen below the ephemeral range of the operating system, so that a later start, which must use the same port
because URLs refer to it, finds it free.

All files are in the home: dynamic shared memory uses files in ``data``, not in ``/dev/shm``. There is no cached data
directory: initdb takes 0.5 s and a copy 0.1 s, which does not justify a cache that has to be cleaned up.

Every user of this machine can log in as superuser over 127.0.0.1 (``trust``): do not store real data in it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from penstock.embedded.account import Account, server_account
from penstock.embedded.binaries import binaries_for, binaries_in_wheel, major_version
from penstock.embedded.guard import Guard
from penstock.errors import DefiniteError, TransientError, UsageError

__all__ = ["EmbeddedPostgres", "binaries", "start_postgres"]

_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "dynamic_shared_memory_type": "mmap",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_UNSAFE: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}
_TRUST = ("local all,replication all trust", "host all,replication all 127.0.0.1/32 trust")

_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_PORT_TAKEN = "could not create any TCP/IP sockets"
_TRANSIENT = (_PORT_TAKEN, "is still in use")
"""Log messages after which a retry may succeed: a port in use, or remaining children of a killed server."""

_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108  # only as parents for mkdtemp
_PORTS = range(20_000, 32_000)
_SOCKET_PATH_LIMIT = 103
_BUILTIN_LOCALE_SINCE = 17
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 60.0
_RETRY_FOR = 10.0


@dataclass
class EmbeddedPostgres:
    """One server on one data directory, created by `start_postgres`. Not thread-safe."""

    home: Path
    """The directory with all files of this server; removed by `close`."""
    port: int
    settings: dict[str, str]
    """The configuration settings for the next start."""
    log: Path
    _programs: Path | None
    _bin: Path
    _account: Account
    _guard: Guard
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.home / "data"

    @property
    def url(self) -> str:
        """The URL for the superuser and database ``postgres``, without a password."""
        return self.url_for("postgres")

    def url_for(self, database: str, user: str = "postgres") -> str:
        """Return the URL of one database for one user, without a password."""
        return f"postgresql://{quote(user, safe='')}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    @property
    def running(self) -> bool:
        """Whether the server process is running."""
        return self._process is not None and self._process.poll() is None

    def create_database(self, name: str) -> str:
        """Create an empty database; return its URL."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url_for(name)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Execute SQL as superuser, with autocommit; return the rows of the last result, if it has any."""
        with psycopg.connect(self.url_for(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start the server, on the same port as before, and wait until it accepts connections."""
        give_up = time.monotonic() + _RETRY_FOR
        while not self.running:
            error_log = self._launch()
            if error_log is not None and (time.monotonic() > give_up or not _is_transient(error_log)):
                raise _start_error(error_log)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server and keep its data. Modes are those of ``pg_ctl stop``: smart, fast, immediate."""
        if mode not in _STOP_SIGNALS:
            message = f"unrecognized stop mode {mode!r}"
            raise UsageError(message, f"Use one of: {', '.join(_STOP_SIGNALS)}.")
        self._end(_STOP_SIGNALS[mode])

    def restart(self, **settings: str) -> None:
        """Stop (fast) and start, with `settings` changed permanently."""
        self.stop()
        self.settings.update(settings)
        self.start()

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash, without a checkpoint; the next start recovers."""
        self._end(signal.SIGKILL)

    def standby(self, slot: str, **settings: str) -> EmbeddedPostgres:
        """Start a standby of this server, with the physical slot `slot`, which is created here."""
        self.execute(f"SELECT pg_create_physical_replication_slot('{slot}', true)")
        source = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        following = {"primary_conninfo": source, "primary_slot_name": slot, "hot_standby_feedback": "on"}
        with _new_server({**self.settings, **following, **settings}, self._programs) as server:
            server._back_up(f"{source} application_name={slot}")
            server._first_start()
        return server

    def promote(self) -> None:
        """Promote a standby, and wait until it accepts writes."""
        self.execute("SELECT pg_promote()")

    def close(self) -> None:
        """Stop the server and remove all its files. Can be called repeatedly."""
        try:
            if self.running:
                self.stop("immediate")
        finally:
            self._guard.release()

    def __enter__(self) -> Self:
        """Return the running server; the end of the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the server."""
        self.close()

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            message = f"Postgres in {self.home} did not stop: sessions or replication are still connected"
            raise TransientError(message, "Disconnect them, or use stop('immediate').") from None
        self._process = None

    def _launch(self) -> str | None:
        """Start the server process; return None when it is ready, or its log output if it exited."""
        self._write_settings()
        with self.log.open("ab") as log:
            logged = log.tell()
            self._process = _spawn([self._bin / "postgres", "-D", self.data], self._account, log.fileno())
        give_up = time.monotonic() + _START_TIMEOUT
        while self._process.poll() is None:
            if self._ready(self._process.pid):
                return None
            if time.monotonic() > give_up:
                self._end(signal.SIGKILL)
                message = f"Postgres in {self.home} was not ready after {_START_TIMEOUT:.0f} s"
                raise TransientError(message, "Try again; the machine may be overloaded.")
            time.sleep(0.01)
        self._process = None
        return self.log.read_bytes()[logged:].decode(errors="replace")

    def _ready(self, pid: int) -> bool:
        """Return whether `pid` accepts connections, by the pid file, which may be a stale one of a killed server."""
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"
        return False

    def _write_settings(self) -> None:
        settings = self.settings | {"port": str(self.port), "unix_socket_directories": str(self.home)}
        lines = [f"{name} = {_quoted(value)}\n" for name, value in settings.items()]
        _write(self.data / "penstock.conf", "".join(lines), self._account)

    def _create(self, hba: Sequence[str]) -> None:
        """Create the data directory."""
        options = ["--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
        if major_version(self._bin) >= _BUILTIN_LOCALE_SINCE:
            options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        self._make_data([self._bin / "initdb", "-D", self.data, *options])
        _write(self.data / "pg_hba.conf", "\n".join([*hba, *_TRUST, ""]), self._account)
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.write("\ninclude 'penstock.conf'\n")

    def _back_up(self, primary: str) -> None:
        """Create the data directory of a standby as a backup of a primary, of any version."""
        program = binaries_for(self._account, self.home) / "pg_basebackup"
        self._make_data([program, "-D", self.data, "-d", primary, "--checkpoint=fast", "--no-sync", "--no-manifest"])
        _write(self.data / "standby.signal", "", self._account)

    def _make_data(self, command: Sequence[str | Path]) -> None:
        with self.log.open("wb") as log:
            status = _spawn(command, self._account, log.fileno()).wait()
        if status != 0:
            raise _start_error(self.log.read_text(errors="replace"))

    def _first_start(self) -> None:
        """Start the server; try another port if one is in use."""
        for _ in range(20):
            self.port = _free_port()
            error_log = self._launch()
            if error_log is None:
                return
            if _PORT_TAKEN not in error_log:
                raise _start_error(error_log)
        raise _start_error(_PORT_TAKEN)


def binaries() -> Path:
    """Return the directory of ``psql``, ``pg_recvlogical``, ``pgbench`` and the other programs of Postgres."""
    return binaries_in_wheel()


def start_postgres(
    *,
    settings: Mapping[str, str] | None = None,
    hba: Sequence[str] = (),
    fsync: bool = True,
    programs: Path | None = None,
) -> EmbeddedPostgres:
    """Start a new, empty server.

    `settings` extend or override the default ones, such as ``wal_level = logical``. `hba` are lines of ``pg_hba.conf``
    before those that trust all local users. Without `fsync` the server is faster, but a power failure corrupts it.
    `programs` is the ``bin`` directory of another installation, Postgres 14 or later, to use instead of the wheel's.
    """
    with _new_server({**_SETTINGS, **({} if fsync else _UNSAFE), **(settings or {})}, programs) as server:
        server._create(hba)
        server._first_start()
    return server


@contextmanager
def _new_server(settings: dict[str, str], programs: Path | None) -> Iterator[EmbeddedPostgres]:
    """Create the home of a server, for the block to initialize and start it; remove everything if that fails."""
    account = server_account()
    home = _make_home(account)
    guard = Guard(home, "data/postmaster.pid")
    try:
        yield EmbeddedPostgres(
            home=home,
            port=0,
            settings=settings,
            log=home / "server.log",
            _programs=programs,
            _bin=binaries_for(account, home, programs),
            _account=account,
            _guard=guard,
        )
    except BaseException:
        guard.release()
        raise


def _make_home(account: Account) -> Path:
    """Create a directory that the account can access, with a path short enough for a Unix-domain socket."""
    for parent in dict.fromkeys([tempfile.gettempdir(), *_TEMPORARY]):
        with contextlib.suppress(OSError):
            home = Path(tempfile.mkdtemp(prefix="penstock-pg-", dir=parent)).resolve()
            if _is_usable(home, account):
                return home
            shutil.rmtree(home)
    message = f"no temporary directory is accessible to Postgres (user {account.name or 'of this process'})"
    raise DefiniteError(message, "Set TMPDIR to a directory with a short path that other users can access.")


def _is_usable(home: Path, account: Account) -> bool:
    """Make the account the owner of `home`, and return whether it can access it."""
    if len(os.fsencode(home / ".s.PGSQL.65535")) > _SOCKET_PATH_LIMIT:
        return False
    try:
        account.own(home)
        return account.can('cd "$1"', home)
    except OSError:
        return False


def _free_port() -> int:
    """Return a random port that is free at this time."""
    draw = random.SystemRandom()
    while True:
        port = draw.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def _spawn(command: Sequence[str | Path], account: Account, log: int) -> subprocess.Popen[bytes]:
    """Run a Postgres program as the account, in its own session and with a clean environment."""
    return subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
        start_new_session=True,
        **account.identity,
    )


def _quoted(value: str) -> str:
    """Return a value quoted for a configuration file."""
    return "'" + value.replace("'", "''") + "'"


def _write(path: Path, text: str, account: Account) -> None:
    path.write_text(text)
    path.chmod(0o600)
    account.own(path)


def _is_transient(error_log: str) -> bool:
    """Return whether an error is transient, after a short pause if it is."""
    if not any(sign in error_log for sign in _TRANSIENT):
        return False
    time.sleep(0.1)
    return True


def _start_error(error_log: str) -> DefiniteError:
    last = "\n".join(error_log.strip().splitlines()[-12:])
    return DefiniteError(
        f"the embedded Postgres did not start:\n{last}", "Fix the setting or hba line that it reports."
    )
