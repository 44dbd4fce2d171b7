"""One process at a time in a home."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.engine import locks as lock_module
from penstock.engine.locks import (
    hold_home,
    holder,
    making,
    making_if_free,
    source_holder,
    take_source,
)
from penstock.errors import DefiniteError, TransientError
from penstock.testing.waiting import PATIENCE

HOLD = """
import sys
from pathlib import Path
from penstock.engine.locks import hold_home
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
        assert "--home" in caught.value.hint
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


# -- who makes, and who has a source ---------------------------------------------------------------------------------


def test_one_makes_at_a_time(tmp_path: Path) -> None:
    with making(tmp_path):
        with making_if_free(tmp_path) as free:
            assert not free
        with pytest.raises(TransientError, match=f"pid {os.getpid()}"), making(tmp_path, 0.1):
            pass
    with making_if_free(tmp_path) as free:
        assert free


def test_who_wants_to_make_waits_for_who_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order, waits, try_lock = list[str](), threading.Event(), lock_module._try

    def tried(handle: int) -> bool:
        taken = try_lock(handle)
        if not taken:
            waits.set()
        return taken

    def second() -> None:
        with making(tmp_path, PATIENCE):
            order.append("second")

    monkeypatch.setattr(lock_module, "_try", tried)
    thread = threading.Thread(target=second)
    with making(tmp_path):
        thread.start()
        assert waits.wait(PATIENCE)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_source_has_one_that_runs_it(tmp_path: Path) -> None:
    lock = take_source(tmp_path, "shop")
    assert lock is not None
    assert source_holder(tmp_path, "shop") == os.getpid()
    assert take_source(tmp_path, "shop") is None
    other = take_source(tmp_path, "other")
    assert other is not None
    lock.let_go()
    other.let_go()
    lock.let_go()
    assert take_source(tmp_path, "shop") is not None


def test_a_process_that_inherits_a_source_has_it_too(tmp_path: Path) -> None:
    lock = take_source(tmp_path, "shop")
    assert lock is not None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[lock.handle]) as child:
        lock.let_go()
        assert take_source(tmp_path, "shop") is None
        child.kill()
    assert take_source(tmp_path, "shop", PATIENCE) is not None


def test_whoever_looks_keeps_nobody_out(tmp_path: Path) -> None:
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            holder(tmp_path)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(200):
            with hold_home(tmp_path):
                pass
    finally:
        over.set()
        thread.join()
