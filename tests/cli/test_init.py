"""`penstock init`: a checked database becomes an SQL file that `penstock run` accepts, without any password in it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import penstock
from tests.conftest import Database

from penstock.executor import described_source, parsed
from penstock.sql.script import split_statements
from penstock.sql.statements import CreateSource


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute("CREATE TABLE public.orders (id bigint PRIMARY KEY)")
    return database


def statement(file: Path) -> CreateSource:
    (piece,) = split_statements(file.read_text(encoding="utf-8"))
    found = parsed(piece.text, piece.begins)
    assert isinstance(found, CreateSource)
    return found


def slots(database: Database) -> int:
    return int(database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")[0][0])


def test_the_file_captures_the_database(shop: Database, tmp_path: Path) -> None:
    done = penstock("init", shop.url, "--name", "shop", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "1 of 1 tables can be captured" in done.out
    assert done.out.splitlines()[-1] == "wrote penstock.sql; next: penstock run penstock.sql"
    source = described_source(statement(tmp_path / "penstock.sql"))
    assert source.name == "shop"
    assert shop.name in source.place()
    assert slots(shop) == 0, "nothing is created upstream"
    explained = penstock("sql", "-f", "penstock.sql", "--home", "none", cwd=tmp_path)
    assert explained.code == 0, explained.err
    assert penstock("drop", "shop", "--home", "none", cwd=tmp_path).code == 0


def test_the_file_contains_the_reference_and_never_the_password(shop: Database, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct horse\n")
    done = penstock("init", shop.url, "--password", "file:secret", "--file", "my file.sql", cwd=tmp_path)
    assert done.code == 0, done.err
    text = (tmp_path / "my file.sql").read_text()
    assert f"PASSWORD 'file:{secret}'" in text
    assert "correct horse" not in text + done.out + done.err
    assert done.out.splitlines()[-1] == "wrote my file.sql; next: penstock run 'my file.sql'"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["postgresql://penstock:hunter2@{host}/{name}"], 2),
        (["{url}", "--password", "hunter2"], 2),
        (["mysql://hunter2@host/shop"], 2),
        (["hunter2"], 2),
        ([], 2),
    ],
)
def test_invalid_input_is_rejected_without_printing_it(
    shop: Database, tmp_path: Path, arguments: list[str], code: int
) -> None:
    host = shop.url.partition("@")[2].partition("/")[0]
    given = [each.format(url=shop.url, host=host, name=shop.name) for each in arguments]
    done = penstock("init", *given, cwd=tmp_path).assert_error(code)
    assert "hunter2" not in done.out + done.err
    assert not list(tmp_path.iterdir())


def test_no_file_is_written_if_capture_cannot_start(shop: Database, tmp_path: Path) -> None:
    shop.execute(f'CREATE ROLE "{shop.name}_reader" LOGIN')
    try:
        done = penstock("init", shop.url.replace("postgres@", f"{shop.name}_reader@"), cwd=tmp_path)
    finally:
        shop.execute(f'DROP ROLE "{shop.name}_reader"')
    assert done.code == 1, done.err
    assert "REPLICATION" in done.out
    assert "hint: " in done.out
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_kept(shop: Database, tmp_path: Path) -> None:
    (tmp_path / "penstock.sql").write_text("mine")
    done = penstock("init", shop.url, cwd=tmp_path).assert_error(2)
    assert "penstock.sql already exists" in done.error
    assert (tmp_path / "penstock.sql").read_text() == "mine"


def test_url_and_reference_are_asked_for_at_a_terminal(shop: Database, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, f"{shop.url}\nenv:SHOP_PASSWORD\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "init"],
        cwd=tmp_path,
        env={**os.environ, "SHOP_PASSWORD": "correct horse"},
        stdin=theirs,
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert "Database URL" in done.stderr
    assert "PASSWORD 'env:SHOP_PASSWORD'" in (tmp_path / "penstock.sql").read_text()
