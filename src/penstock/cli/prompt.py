r"""The prompt of ``penstock sql``: it has history, completion, and backslash commands.

A statement may span several lines, and ends with a semicolon at the end of a line. A backslash command is one line. The
commands have the names and the meanings that they have in psql: sources take the place of schemas.
"""

from __future__ import annotations

import os
import re
import readline
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.cli.sql_output import SqlOutput
from penstock.errors import PenstockError, UsageError
from penstock.name_suggestions import nearest

__all__ = ["Prompt"]

_FIRST, _NEXT = "penstock> ", "      ... "
_HISTORY_LINES = 2_000
_HELP = """\
\\?              show this help
\\h              list statements and where they are described
\\d              list all tables: SHOW TABLES
\\d source       list the tables of a source: SHOW TABLES FROM source
\\d source.table describe a table
\\dt             list all tables: SHOW TABLES
\\dn             list sources: SHOW SOURCES
\\x [on|off]     print each row as a record, one line per column
\\timing [on|off] print the time of execution
\\i FILE         execute the statements of a file
\\e              edit the last statement with $EDITOR, and execute it
\\p              print the statement that is being typed
\\r              discard the statement that is being typed
\\s              print the history
\\echo TEXT      print a text
\\! COMMAND      execute a command in a shell
\\conninfo       say where statements are executed
\\q              quit (or Ctrl-D)
End statements with a semicolon. Tab completes keywords and names. Ctrl-C cancels a running query."""
_STATEMENTS = """\
SELECT …, WITH …, DESCRIBE …, EXPLAIN …   Spark SQL over live tables, named source.table
CREATE, ALTER, DROP, EXPLAIN SOURCE       sources
CREATE, ALTER, DROP, EXPLAIN SINK         sinks
SHOW SOURCES, TABLES, SINKS, ERRORS, READERS, REPAIRS, CREATE SOURCE, CREATE SINK
SELECT * FROM penstock.sources            the status as tables: also penstock.tables, sinks, errors, readers
SUBSCRIBE source[.table]                  transactions as they commit, until Ctrl-C
VERIFY source[.table], REPAIR source.table
The reference of SQL statements describes each of them. Tab completes what can follow."""
_SECRET = re.compile(r"password|secret|token|redact[\s_]+key", re.IGNORECASE)
"""Lines that match are not stored in the history: they may contain a secret."""
_SWITCHES = {"on": True, "off": False}


class Prompt:
    """Reads statements and hands each to `answer`, until the end of input."""

    def __init__(
        self,
        answer: Callable[[str], None],
        complete: Callable[[str], Sequence[str]],
        read_script: Callable[[Path], str],
        output: SqlOutput | None = None,
        description: str = "",
    ) -> None:
        """Commands read files with `read_script`, and change settings of the `output`.

        `complete` returns the completions of the word at the end of a text.
        """
        self._answer = answer
        self._complete = complete
        self._read_script = read_script
        self._output = output or SqlOutput()
        self._description = description
        self._lines: list[str] = []
        self._last = ""
        self._ended = False

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
            while not self._ended:
                self._read_line()
        finally:
            readline.set_completer(None)
            with suppress(OSError):
                history.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(history)
                history.chmod(0o600)

    def _read_line(self) -> None:
        try:
            line = input(_NEXT if self._lines else _FIRST)
        except EOFError:
            self._ended = True
            return
        except KeyboardInterrupt:
            self._lines.clear()
            sys.stderr.write("\n")
            return
        if _SECRET.search(line) and readline.get_current_history_length():
            readline.remove_history_item(readline.get_current_history_length() - 1)
        if not self._lines and line.strip() in ("quit", "exit"):
            self._ended = True
        elif self._is_command(line):
            self._try(lambda: self._command(line))
        else:
            self._lines.append(line)
            if line.rstrip().endswith(";"):
                text = "\n".join(self._lines)
                self._lines.clear()
                self._last = text
                self._try(lambda: self._answer(text))

    def _is_command(self, line: str) -> bool:
        r"""Return whether a line is a command; inside a statement, only ``\p`` and ``\r`` are."""
        return line.strip() in ("\\p", "\\r") if self._lines else line.lstrip().startswith("\\")

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except PenstockError as error:
            sys.stderr.write(f"{error}\n")
        except KeyboardInterrupt:
            sys.stderr.write("\ncancelled\n")

    def _command(self, line: str) -> None:
        """Execute a backslash command."""
        name, _, argument = line.strip().partition(" ")
        argument = argument.strip().rstrip(";")
        commands: dict[str, Callable[[], None]] = {
            "\\?": lambda: _print(_HELP),
            "\\h": lambda: _print(_STATEMENTS),
            "\\d": lambda: self._describe(argument),
            "\\dt": lambda: self._describe(argument),
            "\\dn": lambda: self._answer("SHOW SOURCES"),
            "\\x": lambda: self._switch(name, "expanded", "Expanded display", argument),
            "\\timing": lambda: self._switch(name, "timing", "Timing", argument),
            "\\i": lambda: self._answer(self._read_script(Path(_required(name, argument)))),
            "\\e": self._edit,
            "\\p": lambda: _print("\n".join(self._lines) or self._last),
            "\\r": self._lines.clear,
            "\\s": _print_history,
            "\\echo": lambda: _print(argument),
            "\\!": lambda: _run_shell(argument),
            "\\conninfo": lambda: _print(self._description),
            "\\q": self._quit,
        }
        if name not in commands:
            message = f"invalid command {name}"
            raise UsageError(message, f"{nearest(name, commands)} Try \\? for help.".strip())
        commands[name]()

    def _describe(self, name: str) -> None:
        if "." in name:
            self._answer(f"DESCRIBE {name}")
        else:
            self._answer(f"SHOW TABLES FROM {name}" if name else "SHOW TABLES")

    def _switch(self, name: str, setting: str, title: str, argument: str) -> None:
        """Turn a setting of the output on or off; without an argument, change it."""
        if argument.lower() not in ("", *_SWITCHES):
            message = f'invalid value for {name}: "{argument}"'
            raise UsageError(message, "Use on or off.")
        value = _SWITCHES.get(argument.lower(), not getattr(self._output, setting))
        setattr(self._output, setting, value)
        _print(f"{title} is {'on' if value else 'off'}.")

    def _edit(self) -> None:
        """Edit the last statement, and execute it if the editor ended with success."""
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:  # mode 0700: statements may contain secrets
            file = Path(folder) / "statement.sql"
            file.write_text(f"{self._last}\n", encoding="utf-8")
            editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
            if subprocess.run([*editor, str(file)], check=False).returncode:
                return
            text = self._read_script(file).strip()
        if text:
            self._last = text
            self._answer(text)

    def _quit(self) -> None:
        self._ended = True

    def _candidate(self, word: str, number: int) -> str | None:
        before = "\n".join([*self._lines, readline.get_line_buffer()[: readline.get_endidx()]])
        with suppress(PenstockError, IndexError):
            return self._complete(before)[number]
        return None


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _print_history() -> None:
    for place in range(1, readline.get_current_history_length() + 1):
        _print(readline.get_history_item(place))


def _run_shell(command: str) -> None:
    sys.stdout.flush()
    subprocess.run(_required("\\!", command), shell=True, check=False)  # noqa: S602 - this is what the user asks for


def _required(name: str, argument: str) -> str:
    if not argument:
        message = f"{name}: missing argument"
        raise UsageError(message, "Try \\? for help.")
    return argument


def _history_file() -> Path:
    """Return the path of the history file."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "penstock" / "history"
