"""A guard process that stops the embedded server and removes its directory when this process ends.

::

    this process ──── write end of a pipe ────▶ guard (sh, own session): blocked in `read`
         │                                          │ end of file: the process closed it or died, kill -9 included
         └── starts ──▶ server ◀── SIGQUIT, SIGKILL ┘ then: rm -rf home

Why this is correct. The kernel closes the write end however this process dies, and no other process has it: it is
close-on-exec, and a fork without exec closes it first. The guard is plain ``sh``: it starts in a millisecond, imports
nothing and does not depend on a virtualenv that may be deleted meanwhile. It has its own session, so Ctrl-C in the
terminal or a SIGTERM to the process group does not reach it, and it ignores these signals if they are sent to it.

A process id can be reused, so the guard signals the process in the pid file only while that process has the home on
its command line. It repeats stop-and-remove until the home stays removed: a server that was started just before this
process died may not have written its pid file yet. A normal end works the same way: `Guard.release` closes the pipe.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from penstock.errors import DefiniteError

__all__ = ["Guard"]

_SCRIPT = r"""
trap '' INT TERM HUP QUIT
home=$1 pidfile=$1/$2
read -r line

ours() {
    if [ -r /proc/self/cmdline ]; then grep -qaF -- "$home" "/proc/$1/cmdline"
    else ps -o command= -p "$1" | grep -qF -- "$home"
    fi
} 2>/dev/null

stop_server() {
    [ -f "$pidfile" ] || return
    read -r pid < "$pidfile"
    if [ -n "$pid" ] && ours "$pid"; then
        kill -QUIT "$pid"
        waited=0
        while ours "$pid" && [ $waited -lt 100 ]; do sleep 0.1; waited=$((waited + 1)); done
        if ours "$pid"; then kill -KILL "$pid"; fi
    fi
    # A server that was killed leaves its System V segment behind; the pid file names it.
    segment=$(sed -n '7s/.* //p' "$pidfile")
    if [ -n "$segment" ]; then ipcrm -m "$segment"; fi
} 2>/dev/null

tries=0
while [ $tries -lt 300 ]; do
    stop_server
    rm -rf -- "$home" 2>/dev/null
    if [ ! -e "$home" ]; then
        sleep 0.1
        if [ ! -e "$home" ]; then exit 0; fi
    fi
    tries=$((tries + 1))
    sleep 0.1
done
exit 1
"""

_RELEASE_TIMEOUT = 60.0

_held: set[int] = set()
"""The write ends of the pipes of all guards of this process."""


class Guard:
    """Guards `home`, and the server whose pid is in the first line of `pidfile` (relative to `home`)."""

    def __init__(self, home: Path, pidfile: str) -> None:
        self._home = home
        read_end, self._write_end = os.pipe()
        _held.add(self._write_end)
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "penstock-guard", str(home), pidfile],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(read_end)

    @property
    def pid(self) -> int:
        """The process id of the guard."""
        return self._process.pid

    def release(self) -> None:
        """Stop the server, remove the home, and wait until that is done. Can be called repeatedly."""
        if self._write_end in _held:
            _held.discard(self._write_end)
            os.close(self._write_end)
        if self._process.wait(_RELEASE_TIMEOUT) != 0:
            message = f"could not remove {self._home}"
            raise DefiniteError(message, f"Remove it manually: rm -rf {self._home}")


def _close_inherited() -> None:
    """Close the write ends in a forked child, which would otherwise keep the guards waiting."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited)
