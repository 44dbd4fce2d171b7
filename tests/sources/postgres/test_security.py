"""Logins and TLS against a real server: SQL and replication connections support the same settings as libpq."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.sources.postgres.tls_front import TlsFront, tls_front

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.sources.postgres.connection import connect, connect_replication, parse_url
from penstock.sources.postgres.replication.slot import export_snapshot
from penstock.sources.postgres.spec import PostgresSource
from penstock.testing.kafka import lock_key, make_authority, make_certificate
from penstock.testing.postgres import start_postgres

SECRET = "p4ss word'\\"
Opener = Callable[[str], psycopg.Connection[Any]]
both = pytest.mark.parametrize("opened", [connect, connect_replication], ids=["sql", "replication"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a server, of a client, and of an unknown authority."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = tmp_path_factory.mktemp("certificates")
    make_authority(made)
    make_authority(made, "stranger")
    make_certificate(made, "server", "db", alternative="DNS:localhost")
    make_certificate(made, "client", "machine")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    """A server that requires a password of the role ``person``, and none of the role ``machine``."""
    hba = ["host all,replication person 127.0.0.1/32 scram-sha-256"]
    with start_postgres(fsync=False, hba=hba) as started:
        quoted = SECRET.replace("'", "''")
        started.execute(f"CREATE ROLE person LOGIN REPLICATION PASSWORD '{quoted}'")
        started.execute("CREATE ROLE machine LOGIN REPLICATION")
        yield started


@pytest.fixture
def front(server: EmbeddedPostgres, folder: Path) -> Iterator[TlsFront]:
    """TLS in front of the server, without client certificates."""
    with tls_front(folder, server.port) as front:
        yield front


@pytest.fixture
def mutual(server: EmbeddedPostgres, folder: Path) -> Iterator[TlsFront]:
    """TLS in front of the server, with required client certificates."""
    with tls_front(folder, server.port, client=True) as front:
        yield front


@pytest.fixture(autouse=True)
def isolated_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGPASSWORD", "PGSERVICE", "PGSERVICEFILE", "PGSSLMODE", "PGHOST", "PGUSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))


def url(front: TlsFront, user: str, *, host: str = "localhost", **settings: Any) -> str:
    extra = "".join(f" {name}={value}" for name, value in {"sslmode": "verify-full", **settings}.items())
    return parse_url(f"host={host} hostaddr=127.0.0.1 port={front.port} user={user} dbname=postgres{extra}")


# -- passwords -------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("kind", ["env", "file"])
def test_password_reference(
    front: TlsFront,
    folder: Path,
    opened: Opener,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    (tmp_path / "password").write_text(SECRET + "\n")
    reference = "env:SHOP_PASSWORD" if kind == "env" else f"file:{tmp_path}/password"
    conninfo = url(front, "person", sslrootcert=folder / "ca.crt", password=reference)
    assert reference in conninfo
    opened(conninfo).close()
    assert [version is not None for version, _ in front.seen] == [True]


@both
def test_password_file(
    front: TlsFront, folder: Path, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pgpass"
    escaped = SECRET.replace("\\", "\\\\")
    path.write_text(f"localhost:{front.port}:*:person:{escaped}\n")
    path.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(path))
    opened(url(front, "person", sslrootcert=folder / "ca.crt")).close()


@both
def test_service_file(
    front: TlsFront, folder: Path, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "services"
    path.write_text(
        f"[shop]\nhost=localhost\nhostaddr=127.0.0.1\nport={front.port}\nuser=person\ndbname=postgres\n"
        f"password={SECRET}\nsslmode=verify-full\nsslrootcert={folder}/ca.crt\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(path))
    conninfo = parse_url("service=shop")
    opened(conninfo).close()
    assert [version is not None for version, _ in front.seen] == [True]
    assert SECRET not in conninfo


def test_password_reference_must_be_resolvable(front: TlsFront, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for reference, expected in (
        ("env:NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE"),
        (f"file:{tmp_path}/nothing", "cannot be read"),
        (f"file:{tmp_path}/empty", "is empty"),
    ):
        with pytest.raises(DefiniteError, match=expected) as caught:
            connect(url(front, "person", password=reference))
        assert caught.value.hint


def test_source_stores_the_reference_and_never_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    for source in (
        PostgresSource.from_url("postgresql://me@h/shop", password="env:SHOP_PASSWORD"),
        PostgresSource.from_url("postgresql://me@h/shop?password=env:SHOP_PASSWORD"),
    ):
        assert (source.password, "env:" in source.connection) == ("env:SHOP_PASSWORD", False)
        assert SECRET not in source.model_dump_json() + repr(source) + source.conninfo()
        assert "env:SHOP_PASSWORD" in source.conninfo()
        assert PostgresSource.model_validate_json(source.model_dump_json()) == source


def test_literal_password_is_rejected_and_not_repeated() -> None:
    makers: list[Callable[[], PostgresSource]] = [
        lambda: PostgresSource.from_url("postgresql://me@h/shop", password=SECRET),
        lambda: PostgresSource.from_url("postgresql://me@h/shop", password="env:no good"),
        lambda: PostgresSource(name="x", connection="host=h", publication="p", slot="s", password=SECRET),
        lambda: PostgresSource(name="x", connection=f"host=h password={SECRET[:4]}", publication="p", slot="s"),
    ]
    for make in makers:
        with pytest.raises(UsageError) as caught:
            make()
        assert SECRET[:4] not in str(caught.value)
        assert "env:NAME" in caught.value.hint


def test_relative_password_file_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = PostgresSource.from_url("postgresql://me@h/shop", password="file:secret")
    assert source.password == f"file:{tmp_path}/secret"


# -- TLS -------------------------------------------------------------------------------------------------------------


@both
def test_client_certificate(mutual: TlsFront, folder: Path, opened: Opener) -> None:
    files: dict[str, Any] = {
        "sslcert": folder / "client.crt",
        "sslkey": folder / "client.key",
        "sslrootcert": folder / "ca.crt",
    }
    opened(url(mutual, "machine", **files)).close()
    ((version, name),) = mutual.seen
    assert name == "machine"
    assert str(version).startswith("TLS")


@both
def test_key_with_a_passphrase(
    mutual: TlsFront, folder: Path, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_key(folder / "client.key", tmp_path / "locked.key", "open sesame")
    monkeypatch.setenv("KEY_PASSPHRASE", "open sesame")
    files: dict[str, Any] = {"sslcert": folder / "client.crt", "sslrootcert": folder / "ca.crt"}
    opened(url(mutual, "machine", sslkey=tmp_path / "locked.key", sslpassword="env:KEY_PASSPHRASE", **files)).close()
    assert [name for _, name in mutual.seen] == ["machine"]


def test_source_uses_the_same_security_for_all_its_connections(
    mutual: TlsFront, folder: Path, server: EmbeddedPostgres
) -> None:
    files: dict[str, Any] = {
        "sslcert": folder / "client.crt",
        "sslkey": folder / "client.key",
        "sslrootcert": folder / "ca.crt",
    }
    server.execute("DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO machine")
    server.execute("GRANT CREATE ON DATABASE postgres TO machine")
    config = PostgresSource.from_url(url(mutual, "machine", **files), "secured").create_instances(1)[0].prepare()
    with export_snapshot(config.connection):
        pass
    config.cleanup()
    assert {name for _, name in mutual.seen} == {"machine"}
    assert len(mutual.seen) == 6


@both
@pytest.mark.parametrize(
    ("host", "settings"),
    [
        ("localhost", {"sslrootcert": "stranger.crt"}),
        ("db.example", {"sslrootcert": "ca.crt"}),
        ("localhost", {"sslrootcert": "missing.crt"}),
        ("localhost", {"sslrootcert": "ca.crt", "sslcert": "client.crt", "sslkey": "missing.key"}),
    ],
    ids=["another authority", "another host", "no authority", "no key"],
)
def test_tls_failure_is_a_permanent_error(
    front: TlsFront, folder: Path, opened: Opener, host: str, settings: dict[str, str]
) -> None:
    files: dict[str, Any] = {name: folder / file for name, file in settings.items()}
    with pytest.raises(DefiniteError, match="cannot establish a TLS connection") as caught:
        opened(url(front, "machine", host=host, **files))
    assert "sslrootcert" in caught.value.hint


def test_server_without_tls_is_a_permanent_error(postgres_server: EmbeddedPostgres) -> None:
    with pytest.raises(DefiniteError, match="cannot establish a TLS connection"):
        connect(f"{postgres_server.url}?sslmode=require")


@both
def test_missing_client_certificate_is_a_permanent_error(mutual: TlsFront, folder: Path, opened: Opener) -> None:
    with pytest.raises(DefiniteError, match="cannot establish a TLS connection"):
        opened(url(mutual, "machine", sslrootcert=folder / "ca.crt"))


# -- several hosts ---------------------------------------------------------------------------------------------------


@both
def test_several_hosts(postgres_server: EmbeddedPostgres, opened: Opener) -> None:
    address = f"127.0.0.1:1,127.0.0.1:{postgres_server.port}"
    with opened(f"postgresql://postgres@{address}/postgres?target_session_attrs=read-write") as connection:
        assert connection.info.port == postgres_server.port
    with pytest.raises(TransientError):
        opened(f"postgresql://postgres@{address}/postgres?target_session_attrs=standby")


# -- errors are classified by SQLSTATE -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("28P01", DefiniteError),
        ("28000", DefiniteError),
        ("3D000", DefiniteError),
        ("42501", DefiniteError),
        ("53300", TransientError),
        ("57P03", TransientError),
        ("08006", TransientError),
    ],
)
def test_server_language_does_not_matter(sqlstate: str, kind: type[PenstockError]) -> None:
    from penstock.sources.postgres.connection import connection_failure

    error = connection_failure("h:1/d", "致命的: だめ", sqlstate, "me", replication=True, needs_password=False)
    assert type(error) is kind
    assert error.hint


def test_sqlstate_of_a_failed_login(server: EmbeddedPostgres) -> None:
    from penstock.sources.postgres.connection import login_sqlstate

    def sqlstate_for(**settings: str) -> str | None:
        extra = " ".join(f"{name}={value}" for name, value in settings.items())
        return login_sqlstate(f"host=127.0.0.1 port={server.port} {extra}")

    assert sqlstate_for(user="person", dbname="postgres", password="wrong") == "28P01"
    assert sqlstate_for(user="postgres", dbname="nowhere") == "3D000"
    assert sqlstate_for(user="nobody", dbname="postgres") == "28000"
    assert sqlstate_for(user="postgres", dbname="postgres") is None
    assert login_sqlstate("host=127.0.0.1 port=1 user=me") is None
