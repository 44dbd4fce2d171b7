"""``penstock drop`` asks for confirmation on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Database

from penstock.home import open_home
from penstock.testing.waiting import PATIENCE


def drop_on_a_terminal(home: Path, answer: str, *options: str) -> tuple[int, str]:
    """Run the command on a terminal, and answer its question; return exit code and output."""
    terminal, inner = pty.openpty()
    command = [sys.executable, "-m", "penstock.cli", "--home", str(home), "drop", "shop", *options]
    process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, close_fds=True)
    os.close(inner)
    os.write(terminal, f"{answer}\n".encode())
    output = b""
    try:
        while found := os.read(terminal, 4096):
            output += found
    except OSError:  # the end of a terminal
        pass
    os.close(terminal)
    return process.wait(PATIENCE), output.decode()


@pytest.fixture
def home(tmp_path: Path, database: Database) -> Path:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    open_home(tmp_path / "home").create(database.url, "shop")
    return tmp_path / "home"


def test_confirmation(home: Path) -> None:
    code, output = drop_on_a_terminal(home, "n")
    assert (code, "Remove source shop" in output) == (1, True)
    assert open_home(home).names() == ["shop"]
    code, output = drop_on_a_terminal(home, "y")
    assert (code, "dropped shop" in output) == (0, True)
    assert open_home(home).names() == []


def test_yes_asks_nothing(home: Path) -> None:
    code, output = drop_on_a_terminal(home, "", "--yes")
    assert (code, "Remove source" in output) == (0, False)
