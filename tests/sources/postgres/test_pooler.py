"""A connection through PgBouncer is recognized and rejected. Needs ``pgbouncer`` on the PATH."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import DefiniteError
from penstock.sources.postgres.connection import connect, connect_replication, find_pooler
from penstock.sources.postgres.spec import PostgresSource
from penstock.testing.waiting import until

BOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_pgbouncer = pytest.mark.skipif(BOUNCER is None, reason="pgbouncer is not installed")
LENIENT = "ignore_startup_parameters = extra_float_digits, options\n"


def listens(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "PgBouncer has exited"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def bouncer(server: EmbeddedPostgres, folder: Path, settings: str = "") -> Iterator[str]:
    """Run PgBouncer in front of the server; yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.chmod(0o755)
    (folder / "bouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n{settings}"
    )
    account = ["-u", "nobody"] if os.getuid() == 0 else []
    process = subprocess.Popen(
        [str(BOUNCER), *account, str(folder / "bouncer.ini")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: listens(process, port), "PgBouncer to listen")
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that PgBouncer's account may enter."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@needs_pgbouncer
def test_pgbouncer_that_rejects_our_settings_is_recognised(postgres_server: EmbeddedPostgres, folder: Path) -> None:
    with bouncer(postgres_server, folder) as url:
        for opened in (connect, connect_replication):
            with pytest.raises(DefiniteError, match="connected to a connection pooler instead of Postgres") as caught:
                opened(url)
            assert "Connect to Postgres directly" in caught.value.hint


@needs_pgbouncer
def test_pgbouncer_that_ignores_our_settings_is_recognised(postgres_server: EmbeddedPostgres, folder: Path) -> None:
    with bouncer(postgres_server, folder, LENIENT) as url:
        with pytest.raises(DefiniteError, match="a connection pooler"):
            connect_replication(url)
        with pytest.raises(DefiniteError, match="a connection pooler") as caught:
            PostgresSource.from_url(url, "x").create_instances(1)
        assert "Connect to Postgres directly" in caught.value.hint


def test_postgres_is_not_a_pooler(postgres_server: EmbeddedPostgres) -> None:
    with connect(postgres_server.url) as connection:
        assert find_pooler(connection) == []
