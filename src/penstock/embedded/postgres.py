"""A Postgres of our own, for the demo and the tests: started in a second, gone without a trace.

::

    start_postgres() ─▶ home (mkdtemp, 0700) ─▶ guard ─▶ initdb ─▶ postgres, logging to home/server.log
                          ├── data/                               ├── 127.0.0.1:port
                          ├── server.log                          └── home/.s.PGSQL.port
                          └── install/   only when the server's account cannot read our environment

`EmbeddedPostgres.stop`, `start`, `restart` and `kill` work on one data directory; `close` (or leaving the ``with``
block) removes it. If this process dies first, however it dies, the guard does that (see `penstock.embedded.guard`).
`standby` starts another server that follows this one, and `promote` makes that one a primary.

Ports. A port that is free now may be taken when the server binds it, so the first start draws another one and tries
again. Ports are drawn below the range from which systems take ports for outgoing connections: a later start, which
has to use the same port again because URLs have been handed out, then finds it free.

Nothing is left outside of home: dynamic shared memory is files in ``data``, not in ``/dev/shm``. No copy of a fresh
data directory is kept either: initdb takes 0.5 s, a copy 0.1 s, which is not worth a cache that somebody has to clean.

Everybody on this machine can log in as superuser over 127.0.0.1 (``trust``): not a place for real data.
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
_PASSING = (_PORT_TAKEN, "is still in use")
"""What the log says when another try may succeed: a taken port; the dying children of a server that was killed."""

_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108  # only as parents for mkdtemp
_PORTS = range(20_000, 32_000)
_SOCKET_PATH_LIMIT = 103
_BUILTIN_LOCALE_SINCE = 17
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 60.0
_RETRY_FOR = 10.0


@dataclass
class EmbeddedPostgres:
    """One server on one data directory. Made by `start_postgres`; not safe to use from several threads at once."""

    home: Path
    """Holds everything that belongs to this server; removed by `close`."""
    port: int
    settings: dict[str, str]
    """What goes into the configuration at the next start."""
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
        """Superuser, database ``postgres``, no password."""
        return self.url_for("postgres")

    def url_for(self, database: str, user: str = "postgres") -> str:
        """Return the URL of one database for one user, without a password."""
        return f"postgresql://{quote(user, safe='')}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    @property
    def running(self) -> bool:
        """Whether the server process is there."""
        return self._process is not None and self._process.poll() is None

    def create_database(self, name: str) -> str:
        """Make an empty database; return its URL."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url_for(name)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run SQL as superuser, committed at once; return the rows of the (last) result, if it has any."""
        with psycopg.connect(self.url_for(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start the server, on the same port as before, and wait until it accepts connections."""
        give_up = time.monotonic() + _RETRY_FOR
        while not self.running:
            complaint = self._launch()
            if complaint is not None and (time.monotonic() > give_up or not _may_pass(complaint)):
                raise _start_error(complaint)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server and keep its data. Modes are those of ``pg_ctl stop``: smart, fast, immediate."""
        if mode not in _STOP_SIGNALS:
            message = f"there is no stop mode {mode!r}"
            raise UsageError(message, f"Use one of: {', '.join(_STOP_SIGNALS)}.")
        self._end(_STOP_SIGNALS[mode])

    def restart(self, **settings: str) -> None:
        """Stop (fast) and start, with `settings` changed from now on."""
        self.stop()
        self.settings.update(settings)
        self.start()

    def kill(self) -> None:
        """SIGKILL, the way a machine fails: no checkpoint, no goodbye; the next start recovers."""
        self._end(signal.SIGKILL)

    def standby(self, slot: str, **settings: str) -> EmbeddedPostgres:
        """Start a server of its own that follows this one through the physical slot `slot`, which is made here."""
        self.execute(f"SELECT pg_create_physical_replication_slot('{slot}', true)")
        source = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        following = {"primary_conninfo": source, "primary_slot_name": slot, "hot_standby_feedback": "on"}
        with _new_server({**self.settings, **following, **settings}, self._programs) as server:
            server._back_up(f"{source} application_name={slot}")
            server._first_start()
        return server

    def promote(self) -> None:
        """Let a standby become a primary, and wait until it takes writes."""
        self.execute("SELECT pg_promote()")

    def close(self) -> None:
        """Stop the server for good and remove everything. May be called again."""
        try:
            if self.running:
                self.stop("immediate")
        finally:
            self._guard.release()

    def __enter__(self) -> Self:
        """Leave a server that runs already to the block, whose end closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, whatever happened."""
        self.close()

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            message = f"Postgres in {self.home} does not stop: sessions or replication are still connected"
            raise TransientError(message, "Disconnect them, or use stop('immediate').") from None
        self._process = None

    def _launch(self) -> str | None:
        """Start the server process; return None once it is ready, what it wrote to its log if it ended instead."""
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
                message = f"Postgres in {self.home} is not ready after {_START_TIMEOUT:.0f} s"
                raise TransientError(message, "The machine may be too busy: try again.")
            time.sleep(0.01)
        self._process = None
        return self.log.read_bytes()[logged:].decode(errors="replace")

    def _ready(self, pid: int) -> bool:
        """Whether the pid file, which may be one left by a killed server, says that `pid` accepts connections."""
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"
        return False

    def _write_settings(self) -> None:
        settings = self.settings | {"port": str(self.port), "unix_socket_directories": str(self.home)}
        lines = [f"{name} = {_quoted(value)}\n" for name, value in settings.items()]
        _write(self.data / "penstock.conf", "".join(lines), self._account)

    def _create(self, hba: Sequence[str]) -> None:
        """Make the data directory."""
        options = ["--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
        if major_version(self._bin) >= _BUILTIN_LOCALE_SINCE:
            options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        self._make_data([self._bin / "initdb", "-D", self.data, *options])
        _write(self.data / "pg_hba.conf", "\n".join([*hba, *_TRUST, ""]), self._account)
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.write("\ninclude 'penstock.conf'\n")

    def _back_up(self, primary: str) -> None:
        """Make the data directory as a copy of another server's, to follow it. Any version's server can be copied."""
        program = binaries_for(self._account, self.home) / "pg_basebackup"
        self._make_data([program, "-D", self.data, "-d", primary, "--checkpoint=fast", "--no-sync", "--no-manifest"])
        _write(self.data / "standby.signal", "", self._account)

    def _make_data(self, command: Sequence[str | Path]) -> None:
        with self.log.open("wb") as log:
            made = _spawn(command, self._account, log.fileno()).wait()
        if made != 0:
            raise _start_error(self.log.read_text(errors="replace"))

    def _first_start(self) -> None:
        """Start, drawing another port whenever this one turns out to be taken."""
        for _ in range(20):
            self.port = _free_port()
            complaint = self._launch()
            if complaint is None:
                return
            if _PORT_TAKEN not in complaint:
                raise _start_error(complaint)
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

    `settings` add to or replace ours (``wal_level = logical`` among them); `hba` are lines of ``pg_hba.conf`` that come
    before the ones that trust everybody on this machine. Without `fsync` it is faster, and a power cut ruins it.
    `programs` is the ``bin`` of another installation, of Postgres 14 or newer, to be used instead of the wheel's.
    """
    with _new_server({**_SETTINGS, **({} if fsync else _UNSAFE), **(settings or {})}, programs) as server:
        server._create(hba)
        server._first_start()
    return server


@contextmanager
def _new_server(settings: dict[str, str], programs: Path | None) -> Iterator[EmbeddedPostgres]:
    """Make the home of a server, for the block to create and start it; everything is removed if that fails."""
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
    """Make a directory that the account can enter and whose path is short enough for a socket in it."""
    for parent in dict.fromkeys([tempfile.gettempdir(), *_TEMPORARY]):
        with contextlib.suppress(OSError):
            home = Path(tempfile.mkdtemp(prefix="penstock-pg-", dir=parent)).resolve()
            if _suits(home, account):
                return home
            shutil.rmtree(home)
    message = f"there is no temporary directory that Postgres (as {account.name or 'yourself'}) can use"
    raise DefiniteError(message, "Set TMPDIR to a directory with a short path that other users may enter.")


def _suits(home: Path, account: Account) -> bool:
    """Hand `home` to the account, and see whether it is of use to it."""
    if len(os.fsencode(home / ".s.PGSQL.65535")) > _SOCKET_PATH_LIMIT:
        return False
    try:
        account.own(home)
        return account.can('cd "$1"', home)
    except OSError:
        return False


def _free_port() -> int:
    """Draw a port that is free at this moment."""
    draw = random.SystemRandom()
    while True:
        port = draw.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def _spawn(command: Sequence[str | Path], account: Account, log: int) -> subprocess.Popen[bytes]:
    """Run a Postgres program as the account: in a session of its own, deaf to our environment."""
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
    """Write a value the way a configuration file wants it."""
    return "'" + value.replace("'", "''") + "'"


def _write(path: Path, text: str, account: Account) -> None:
    path.write_text(text)
    path.chmod(0o600)
    account.own(path)


def _may_pass(complaint: str) -> bool:
    """Wait a moment if the complaint is one of those that end by themselves."""
    if not any(sign in complaint for sign in _PASSING):
        return False
    time.sleep(0.1)
    return True


def _start_error(complaint: str) -> DefiniteError:
    last = "\n".join(complaint.strip().splitlines()[-12:])
    return DefiniteError(f"the embedded Postgres does not start:\n{last}", "Mend what it says: a setting, an hba line.")
