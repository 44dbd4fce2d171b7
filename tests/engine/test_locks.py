"""Locks: one process at a time runs a home."""

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
    lifecycle_lock,
    source_holder,
    take_source,
    try_lifecycle_lock,
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


def test_home_that_does_not_exist_has_no_holder(tmp_path: Path) -> None:
    assert holder(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


def test_second_process_is_rejected_and_the_error_names_the_holder(tmp_path: Path) -> None:
    with hold_home(tmp_path):
        assert holder(tmp_path) == os.getpid()
        with pytest.raises(DefiniteError, match=f"pid {os.getpid()}") as caught, hold_home(tmp_path):
            pass
        assert "--home" in caught.value.hint
        assert holder(tmp_path) == os.getpid()
    assert holder(tmp_path) is None
    with hold_home(tmp_path):
        pass


def test_lock_is_released_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), hold_home(tmp_path):
        raise KeyError
    assert holder(tmp_path) is None


def test_killed_process_releases_its_lock(tmp_path: Path) -> None:
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


def test_home_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DefiniteError, match="cannot be used"), hold_home(tmp_path / "file"):
        pass


# -- lifecycle lock and source locks ---------------------------------------------------------------------------------


def test_one_process_at_a_time_holds_the_lifecycle_lock(tmp_path: Path) -> None:
    with lifecycle_lock(tmp_path):
        with try_lifecycle_lock(tmp_path) as free:
            assert not free
        with pytest.raises(TransientError, match=f"pid {os.getpid()}"), lifecycle_lock(tmp_path, 0.1):
            pass
    with try_lifecycle_lock(tmp_path) as free:
        assert free


def test_lifecycle_lock_waits_for_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order, is_waiting, try_lock = list[str](), threading.Event(), lock_module._try

    def try_and_report(handle: int) -> bool:
        taken = try_lock(handle)
        if not taken:
            is_waiting.set()
        return taken

    def second() -> None:
        with lifecycle_lock(tmp_path, PATIENCE):
            order.append("second")

    monkeypatch.setattr(lock_module, "_try", try_and_report)
    thread = threading.Thread(target=second)
    with lifecycle_lock(tmp_path):
        thread.start()
        assert is_waiting.wait(PATIENCE)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_source_lock_has_one_holder(tmp_path: Path) -> None:
    lock = take_source(tmp_path, "shop")
    assert lock is not None
    assert source_holder(tmp_path, "shop") == os.getpid()
    assert take_source(tmp_path, "shop") is None
    other = take_source(tmp_path, "other")
    assert other is not None
    lock.release()
    other.release()
    lock.release()
    assert take_source(tmp_path, "shop") is not None


def test_child_process_inherits_a_source_lock(tmp_path: Path) -> None:
    lock = take_source(tmp_path, "shop")
    assert lock is not None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[lock.handle]) as child:
        lock.release()
        assert take_source(tmp_path, "shop") is None
        child.kill()
    assert take_source(tmp_path, "shop", PATIENCE) is not None


def test_asking_for_the_holder_does_not_block_the_lock(tmp_path: Path) -> None:
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            holder(tmp_path)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        for _ in range(200):
            with hold_home(tmp_path):
                pass
    finally:
        stop.set()
        thread.join()
