"""A watch over a server of ours: it is killed when this process is gone, however that happened.

The kernel then closes the pipe on which the watch waits. A process id can be reused, so the watch looks whether that
process still has a word of ours on its command line.
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
    """Start a watch over `pid`, which has `word` on its command line; closing the watch's standard input ends it."""
    command = ["sh", "-c", _WATCH, "watch", str(pid), word]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


def end(process: subprocess.Popen[bytes], watch: subprocess.Popen[bytes] | None, how: signal.Signals) -> None:
    """End a server, by force where it takes too long, and then the watch over it."""
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
