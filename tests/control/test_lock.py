"""One process at a time in a home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.control.lock import hold_home, holder
from penstock.errors import DefiniteError

HOLD = """
import sys
from pathlib import Path
from penstock.control.lock import hold_home
with hold_home(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_nobody_holds_a_home_that_is_not_there(tmp_path: Path) -> None:
    assert holder(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


def test_a_second_one_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with hold_home(tmp_path):
        assert holder(tmp_path) == os.getpid()
        with pytest.raises(DefiniteError, match=f"pid {os.getpid()}") as caught, hold_home(tmp_path):
            pass
        assert "--home" in caught.value.remedy
        assert holder(tmp_path) == os.getpid()
    assert holder(tmp_path) is None
    with hold_home(tmp_path):
        pass


def test_it_is_let_go_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), hold_home(tmp_path):
        raise KeyError
    assert holder(tmp_path) is None


def test_another_process_that_is_killed_lets_go(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert holder(tmp_path) == process.pid
        with pytest.raises(DefiniteError, match=f"pid {process.pid}"), hold_home(tmp_path):
            pass
        process.kill()
    with hold_home(tmp_path):
        assert holder(tmp_path) == os.getpid()


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DefiniteError, match="cannot be used"), hold_home(tmp_path / "file"):
        pass
