"""Where the server listens: a TCP socket, a Unix socket, and the file that tells other commands where they are.

::

    TCP          127.0.0.1:7878, or the next free port; or the address after --listen. An address that other machines
                 can reach requires a token
    Unix socket  run/server.sock in the home, mode 0600: only its owner can connect. If that path is too long for a
                 socket, in a new private folder below the temporary folder
    run/server.json  pid, url and socket path, mode 0600

A process that was killed leaves the last two behind. They are valid only while a process accepts connections on the
Unix socket, so no other proof of life is needed.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.errors import DefiniteError, UsageError
from penstock.layout import run_path
from penstock.private_file import create_folder, replace_file

__all__ = ["Address", "Listener", "check_listen", "listening", "running_server"]

_PORT = 7878
_PORTS = 100
"""How many ports are tried by default."""
_BACKLOG = 128
_LONGEST_SOCKET_PATH = 100
"""Linux allows 107 bytes, macOS 103."""
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<name>[^:\[\]\s/]+)):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True)
class Address:
    """Where the server of a home listens: its process, the URL of the status page, and the path of the Unix socket."""

    pid: int
    url: str
    socket: str


@dataclass(frozen=True)
class Listener:
    """The open sockets of a server; `hosts` are the names of a loopback address in Host headers."""

    address: Address
    tcp: socket.socket
    unix: socket.socket
    hosts: frozenset[str]


def running_server(home: Path) -> Address | None:
    """Return the address of the server of a home, or None if none is running."""
    address = _recorded(home)
    return address if address is not None and _accepts(address.socket) else None


def check_listen(listen: str | None, has_token: bool) -> None:
    """Raise `UsageError` if an address is invalid, or requires a token that is missing."""
    if listen is not None:
        _resolved(listen, has_token)


@contextmanager
def listening(home: Path, listen: str | None, has_token: bool) -> Iterator[Listener]:
    """Open the sockets of the server of a home and record their address, while the ``with`` block lasts."""
    tcp, hosts = _open_tcp(listen, has_token)
    with tcp, _open_unix(home) as (unix, path):
        host, port = tcp.getsockname()[:2]
        address = Address(os.getpid(), f"http://{_named(host)}:{port}", str(path))
        replace_file(_record_path(home), json.dumps(asdict(address)))
        try:
            yield Listener(address, tcp, unix, hosts)
        finally:
            _record_path(home).unlink(missing_ok=True)


def _open_tcp(listen: str | None, has_token: bool) -> tuple[socket.socket, frozenset[str]]:
    hosts = {"127.0.0.1", "localhost", "::1"}
    if listen is not None:
        family, where, name = _resolved(listen, has_token)
        return _bound(family, where, listen), frozenset({*hosts, name, where[0]})
    for port in range(_PORT, _PORT + _PORTS):
        with suppress(DefiniteError):
            return _bound(socket.AF_INET, ("127.0.0.1", port), f"127.0.0.1:{port}"), frozenset(hosts)
    message = f"the ports {_PORT} to {_PORT + _PORTS - 1} of 127.0.0.1 are in use"
    raise DefiniteError(message, "Choose another port: --listen 127.0.0.1:PORT")


def _resolved(listen: str, has_token: bool) -> tuple[socket.AddressFamily, tuple[str, int], str]:
    """Return the family and the socket address, and the name of its host."""
    found = _ADDRESS.fullmatch(listen)
    if found is None or int(found["port"]) > 65535:
        message = f"invalid address to listen on: {listen}"
        raise UsageError(message, "Write HOST:PORT, such as --listen 127.0.0.1:7878 or --listen [::1]:7878.")
    name = (found["six"] or found["name"]).lower()
    try:
        family, _, _, _, where = socket.getaddrinfo(name, int(found["port"]), type=socket.SOCK_STREAM)[0]
    except OSError as error:
        message = f"cannot listen on {listen}: {error.strerror}"
        raise UsageError(message, "Use an address of this machine, such as --listen 127.0.0.1:7878.") from error
    host = str(where[0])
    if not has_token and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        message = f"listening on {listen} requires a token, because other machines can connect"
        hint = (
            f"Create one: (umask 077; openssl rand -hex 32 > token), then: penstock run --listen {listen} "
            "--token-file token"
        )
        raise UsageError(message, hint)
    return family, (host, int(where[1])), name


def _bound(family: socket.AddressFamily, where: tuple[str, int], listen: str) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only then
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(where)
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            message = f"cannot listen on {listen}: another process uses this port"
            raise DefiniteError(message, "Choose another port, or port 0 for any free one.") from error
        message = f"cannot listen on {listen}: {error.strerror}"
        raise DefiniteError(message, "Choose another address or port (--listen).") from error
    return opened


def _named(host: str) -> str:
    """Return a bound address as the host of a URL that works on this machine."""
    found = ipaddress.ip_address(host.partition("%")[0])
    if found.is_unspecified:
        return "127.0.0.1" if found.version == 4 else "[::1]"
    return str(found) if found.version == 4 else f"[{found}]"


@contextmanager
def _open_unix(home: Path) -> Iterator[tuple[socket.socket, Path]]:
    """Open the Unix socket; remove what a killed process left behind."""
    _remove_stale(home)
    path = run_path(home).absolute() / "server.sock"
    folder = None
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
        folder = Path(tempfile.mkdtemp(prefix="penstock-"))  # mode 0700
        path = folder / "server.sock"
    try:
        with _bound_unix(path) as opened:
            yield opened, path
    finally:
        path.unlink(missing_ok=True)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _bound_unix(path: Path) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        create_folder(path.parent)
        path.unlink(missing_ok=True)
        opened.bind(str(path))
        path.chmod(0o600)  # before listen: no connection is accepted earlier
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        message = f"the socket {path} cannot be used: {error.strerror}"
        raise DefiniteError(message, "Use a home on a local file system (--home).") from error
    return opened


def _remove_stale(home: Path) -> None:
    left = _recorded(home)
    if left is not None and Path(left.socket).is_socket() and not _accepts(left.socket):
        path = Path(left.socket)
        path.unlink(missing_ok=True)
        if path.parent.name.startswith("penstock-"):
            with suppress(OSError):
                path.parent.rmdir()


def _record_path(home: Path) -> Path:
    return run_path(home) / "server.json"


def _recorded(home: Path) -> Address | None:
    try:
        found = json.loads(_record_path(home).read_text(encoding="utf-8"))
        return Address(int(found["pid"]), str(found["url"]), str(found["socket"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
