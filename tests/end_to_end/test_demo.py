"""`penstock demo`, as a new user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.cluster import BRIEF
from penstock.testing.waiting import PATIENCE, until

pytestmark = pytest.mark.deep


def start_demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start the demo with its temporary files in a given folder, so that leftovers are found."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "demo", *options],
        env={**os.environ, **BRIEF, "PENSTOCK_APPLY_REST": "3", "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def left_running(folder: Path) -> list[str]:
    """Return the command lines of processes that use a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdigit() and str(folder) in command:
            found.append(command)
    return found


@pytest.mark.timeout(900)
def test_demo_verifies_every_table(short_folder: Path) -> None:
    demo = start_demo(short_folder, "--seconds", "2", "--rate", "20")
    output, _ = demo.communicate(timeout=2.5 * PATIENCE)
    assert demo.returncode == 0, output
    assert output.count("  equal") == 6, output
    assert "the same in all" in output
    assert "Traceback" not in output
    assert left_running(short_folder) == []
    assert [path.name for path in short_folder.iterdir() if path.name.startswith("penstock")] == []


@pytest.mark.timeout(900)
def test_ctrl_c_leaves_nothing_running(short_folder: Path) -> None:
    demo = start_demo(short_folder, "--seconds", "600")

    def is_capturing() -> bool:
        assert demo.poll() is None
        return any("penstock.engine.capture_process" in command for command in left_running(short_folder))

    until(is_capturing, "the capture process of the demo")
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130, output
    assert "all processes are stopped" in output
    assert left_running(short_folder) == []
    assert [path.name for path in short_folder.iterdir() if path.name.startswith("penstock")] == []
