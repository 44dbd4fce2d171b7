"""The interactive prompt of ``penstock sql``, with history, completion, and backslash commands.

A statement may span several lines, and ends with a semicolon at the end of a line. A backslash command is one line.
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
\\s              list sources: SHOW SOURCES
\\d              list all tables: SHOW TABLES
\\d source       list the tables of a source: SHOW TABLES FROM source
\\d source.table describe a table
\\e              list errors: SHOW ERRORS
\\c source       show the statement that creates a source: SHOW CREATE SOURCES source
\\?              show this help
\\q              quit (or Ctrl-D)
End statements with a semicolon. Tab completes keywords and names."""
_SECRET = re.compile(r"password|secret|token", re.IGNORECASE)
"""Lines that match are not stored in the history: they may contain a secret."""
_LEAVE, _SHOW_HELP = "\\q", "\\?"


class Prompt:
    """Reads statements and hands each to `answer`, until the end of input."""

    def __init__(self, answer: Callable[[str], None], complete: Callable[[str], Sequence[str]]) -> None:
        """`complete` returns the completions of the word at the end of a text."""
        self._answer = answer
        self._complete = complete
        self._lines: list[str] = []

    def run(self) -> None:
        """Read and execute statements; print an error and continue if one fails."""
        history = _history_file()
        with suppress(OSError):
            readline.read_history_file(history)
        readline.set_history_length(_HISTORY_LINES)
        readline.set_completer(self._candidate)
        readline.set_completer_delims(" \t\n(),='.")
        readline.parse_and_bind("tab: complete")
        sys.stderr.write("Spark SQL and Penstock statements; end each with a semicolon. \\? for help, \\q to quit.\n")
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
    """Return the statement of a backslash command."""
    command, _, about = short.strip().partition(" ")
    about = about.strip().rstrip(";")
    statements = {
        "\\s": "SHOW SOURCES",
        "\\d": f"SHOW TABLES FROM {about}" if about else "SHOW TABLES",
        "\\e": "SHOW ERRORS",
        "\\c": f"SHOW CREATE SOURCES {about}",
    }
    if command not in statements:
        message = f"invalid command {command}"
        raise UsageError(message, f"{nearest(command, statements)} Try \\? for help.".strip())
    if command == "\\d" and "." in about:
        return f"DESCRIBE {about}"
    return statements[command]


def _history_file() -> Path:
    """Return the path of the history file."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "penstock" / "history"
