"""Signals to a command: the first one requests a clean stop, the second one ends it immediately."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from penstock.testing.waiting import PATIENCE

PROGRAM = """
import time
from penstock.cli.interrupt import Interrupt

with Interrupt() as interrupt:
    print("runs", flush=True)
    interrupt.wait(600)
    print("stops", interrupt.asked, flush=True)
    time.sleep(600)  # what is in flight takes long
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_does_not_wait_for_what_is_in_flight(sent: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(sent)
        assert process.stdout.readline() == "stops True\n"
        process.send_signal(sent)
        assert process.wait(PATIENCE) == 130
