"""The prompt of ``penstock sql``: lines become statements, with history, completion, and short commands.

A statement may go over several lines, and ends with a semicolon at the end of one. What begins with a backslash is a
short command, and ends with its line.
"""

from __future__ import annotations

import os
import re
import readline
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.errors import PenstockError, UsageError
from penstock.nearest import nearest

__all__ = ["Prompt", "expanded"]

_FIRST, _NEXT = "penstock> ", "      ... "
_HISTORY_LINES = 2_000
_HELP = """\
\\s              the sources: SHOW SOURCES
\\d              all tables: SHOW TABLES
\\d source       the tables of a source: SHOW TABLES FROM source
\\d source.table the columns of a table
\\e              what is wrong: SHOW ERRORS
\\c source       the statement that makes a source: SHOW CREATE SOURCES source
\\?              this list
\\q              leave, as Ctrl-D does
Statements end with a semicolon; Tab completes words and names."""
_SECRET = re.compile(r"password|secret|token", re.IGNORECASE)
"""Lines that mention one are not kept: somebody may have typed it."""
_LEAVE, _SHOW_HELP = "\\q", "\\?"


class Prompt:
    """Reads statements and hands each to `answer`, until the end of input."""

    def __init__(self, answer: Callable[[str], None], complete: Callable[[str], Sequence[str]]) -> None:
        """`complete` gives what the word at the end of a text could become."""
        self._answer = answer
        self._complete = complete
        self._lines: list[str] = []

    def run(self) -> None:
        """Read and answer; what goes wrong is told, and the next one is read."""
        history = _history_file()
        with suppress(OSError):
            readline.read_history_file(history)
        readline.set_history_length(_HISTORY_LINES)
        readline.set_completer(self._candidate)
        readline.set_completer_delims(" \t\n(),='.")
        readline.parse_and_bind("tab: complete")
        sys.stderr.write("Spark SQL over live tables, and our statements; each ends with ;  \\? helps, \\q leaves.\n")
        try:
            while self._read_line():
                pass
        finally:
            readline.set_completer(None)
            with suppress(OSError):
                history.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(history)
                history.chmod(0o600)

    def _read_line(self) -> bool:
        try:
            line = input(_NEXT if self._lines else _FIRST)
        except EOFError:
            return False
        except KeyboardInterrupt:
            self._lines.clear()
            sys.stderr.write("\n")
            return True
        if not self._lines and line.strip() in (_LEAVE, "quit", "exit"):
            return False
        if _SECRET.search(line) and readline.get_current_history_length():
            readline.remove_history_item(readline.get_current_history_length() - 1)
        self._lines.append(line)
        short = len(self._lines) == 1 and line.lstrip().startswith("\\")
        if short or line.rstrip().endswith(";"):
            text = "\n".join(self._lines)
            self._lines.clear()
            self._try(text, short)
        return True

    def _try(self, text: str, short: bool) -> None:
        try:
            if text.strip() == _SHOW_HELP:
                sys.stdout.write(f"{_HELP}\n")
            else:
                self._answer(expanded(text) if short else text)
        except PenstockError as error:
            sys.stderr.write(f"{error}\n")

    def _candidate(self, word: str, number: int) -> str | None:
        before = "\n".join([*self._lines, readline.get_line_buffer()[: readline.get_endidx()]])
        with suppress(PenstockError, IndexError):
            return self._complete(before)[number]
        return None


def expanded(short: str) -> str:
    """Return the statement that a short command stands for."""
    command, _, about = short.strip().partition(" ")
    about = about.strip().rstrip(";")
    statements = {
        "\\s": "SHOW SOURCES",
        "\\d": f"SHOW TABLES FROM {about}" if about else "SHOW TABLES",
        "\\e": "SHOW ERRORS",
        "\\c": f"SHOW CREATE SOURCES {about}",
    }
    if command not in statements:
        message = f"there is no short command {command}"
        raise UsageError(message, f"{nearest(command, statements)} \\? lists them.".strip())
    if command == "\\d" and "." in about:
        return f"DESCRIBE {about}"
    return statements[command]


def _history_file() -> Path:
    """Return where the lines typed before are kept."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "penstock" / "history"
