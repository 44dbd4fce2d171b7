"""A watch process that kills a test server when this process ends, however it ends.

The kernel then closes the pipe that the watch reads from. A process id can be reused, so the watch checks that the
process still has a given word on its command line.
"""

from __future__ import annotations

import signal
import subprocess

__all__ = ["end", "watched"]

_STOP_SECONDS = 20.0

_WATCH = """
trap '' INT TERM HUP QUIT
read -r line
if grep -qaF -- "$2" "/proc/$1/cmdline"; then kill -9 "$1"; fi
"""


def watched(pid: int, word: str) -> subprocess.Popen[bytes]:
    """Start a watch for `pid`, which has `word` on its command line; close the watch's standard input to end it."""
    command = ["sh", "-c", _WATCH, "watch", str(pid), word]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


def end(process: subprocess.Popen[bytes], watch: subprocess.Popen[bytes] | None, how: signal.Signals) -> None:
    """Stop a server, with SIGKILL after a timeout, and then its watch."""
    process.send_signal(how)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if watch is not None:
        assert watch.stdin is not None
        watch.stdin.close()
        watch.wait()
