"""The start of the `penstock` command: what it imports, and the summaries in its help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from pyspark.sql import SparkSession
from tests.conftest import Database

from penstock.cli.main import SUMMARIES, app
from penstock.errors import TransientError
from penstock.home import open_home
from penstock.layout import event_log_path
from penstock.server.serving import serve

_HEAVY = ("pyspark", "py4j", "numba")
_HOME = ("pyarrow", "psycopg")
"""What the modules of a home import."""
_RUN = f"""
import sys
from penstock.cli.main import app
try:
    app(sys.argv[1:])
finally:
    print("imported:", *(name for name in {_HEAVY + _HOME} if name in sys.modules), file=sys.stderr)
"""


def imported(*arguments: str) -> str:
    """Run a command in a new process; return the slow packages that it imported, other than those of a home."""
    return " ".join(name for name in all_imported(*arguments).split() if name not in _HOME)


def all_imported(*arguments: str) -> str:
    """Run a command in a new process; return the slow packages that it imported, with those of a home."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert "imported:" in done.stderr, done.stderr
    return done.stderr.partition("imported:")[2].strip()


def test_help_imports_no_command() -> None:
    assert all_imported("--help") == ""


def test_status_needs_neither_spark_nor_kernels(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, at timestamptz, total numeric(12, 2))")
    home = open_home(tmp_path)
    home.create(database.url, "shop")
    try:
        assert imported("status", "--home", str(tmp_path)) == ""
        assert imported("status", "--json", "--home", str(tmp_path)) == ""
    finally:
        home.drop("shop")


def test_check_needs_neither_spark_nor_kernels(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, at timestamptz, total numeric(12, 2), words text[])")
    assert imported("check", database.url) == ""
    home = open_home(tmp_path)
    home.create(database.url, "shop")
    try:
        assert imported("check", "shop", "--home", str(tmp_path)) == ""
    finally:
        home.drop("shop")


def test_logs_need_nothing_of_a_home(tmp_path: Path) -> None:
    path = event_log_path(tmp_path)
    path.parent.mkdir()
    path.touch()
    assert all_imported("logs", "--home", str(tmp_path)) == ""


def test_statements_for_a_running_home_need_neither(tmp_path: Path) -> None:
    with serve(open_home(tmp_path / "home"), no_spark, "127.0.0.1:0"):
        assert imported("sql", "SHOW SOURCES", "--home", str(tmp_path / "home")) == ""


def test_status_of_a_running_home_comes_from_its_server(tmp_path: Path) -> None:
    with serve(open_home(tmp_path / "home"), no_spark, "127.0.0.1:0"):
        assert all_imported("status", "--home", str(tmp_path / "home")) == ""
        assert all_imported("status", "--json", "--home", str(tmp_path / "home")) == ""


def no_spark() -> SparkSession:
    raise TransientError("Spark is starting")


def test_summaries_are_those_of_the_commands() -> None:
    group: Any = typer.main.get_command(app)
    assert {name: command.help.partition("\n")[0] for name, command in group.commands.items()} == SUMMARIES


def test_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        app(["statu"])
    assert caught.value.code == 2
    assert "status" in capsys.readouterr().err
