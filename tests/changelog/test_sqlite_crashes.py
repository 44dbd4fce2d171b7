"""kill -9 at any point: the embedded log holds what was published, and the next writer resumes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import seeds
from tests.changelog.writer_crashes import ROOT

pytestmark = pytest.mark.deep

KILLS = int(os.environ.get("PENSTOCK_TEST_KILLS", "150"))


def test_killed_writers_leave_a_consistent_log(tmp_path: Path) -> None:
    seed = seeds.seed()
    command = [sys.executable, "-m", "tests.changelog.writer_crashes", str(tmp_path / "shop.db"), str(KILLS), str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"seed {seed}: {done.stdout}")
    assert (done.returncode, done.stderr) == (0, ""), f"seed {seed}\n{done.stderr}"
