"""A watch over a server of ours: it is killed when this process is gone, however that happened.

The kernel then closes the pipe on which the watch waits. A process id can be reused, so the watch looks whether that
process still has a word of ours on its command line.
"""

from __future__ import annotations

import subprocess

__all__ = ["watched"]

_WATCH = """
trap '' INT TERM HUP QUIT
read -r line
if grep -qaF -- "$2" "/proc/$1/cmdline"; then kill -9 "$1"; fi
"""


def watched(pid: int, word: str) -> subprocess.Popen[bytes]:
    """Start a watch over `pid`, which has `word` on its command line; closing the watch's standard input ends it."""
    command = ["sh", "-c", _WATCH, "watch", str(pid), word]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
