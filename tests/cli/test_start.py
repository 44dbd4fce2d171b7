"""The start of the `penstock` command: what it imports, and the summaries in its help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.cli.main import SUMMARIES, app
from penstock.home import open_home

_HEAVY = ("pyspark", "py4j", "numba")
_RUN = f"""
import sys
from penstock.cli.main import app
try:
    app(sys.argv[1:])
finally:
    print("imported:", *(name for name in {_HEAVY} if name in sys.modules), file=sys.stderr)
"""


def imported(*arguments: str) -> str:
    """Run a command in a new process; return the slow packages that it imported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments], capture_output=True, text=True, env=environment, check=True
    )
    return done.stderr.partition("imported:")[2].strip()


def test_help_imports_no_command() -> None:
    assert imported("--help") == ""


def test_status_of_an_empty_home_starts_fast(tmp_path: Path) -> None:
    open_home(tmp_path)
    assert imported("status", "--home", str(tmp_path)) == ""


def test_summaries_are_those_of_the_commands() -> None:
    group: Any = typer.main.get_command(app)
    assert {name: command.help.partition("\n")[0] for name, command in group.commands.items()} == SUMMARIES


def test_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        app(["statu"])
    assert caught.value.code == 2
    assert "status" in capsys.readouterr().err
