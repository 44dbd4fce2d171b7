"""``penstock logs``."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.global_options import LogLevelChoice
from penstock.cli.interrupt import Interrupt
from penstock.cli.options import DebugOption, HomeOption
from penstock.errors import UsageError
from penstock.event_log import FILES, LEVELS, as_text
from penstock.layout import event_log_path

__all__ = ["logs"]

_POLL_SECONDS = 0.2


def logs(
    home: HomeOption = Path(".penstock"),
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events as they occur, until Ctrl-C.")
    ] = False,
    level: Annotated[
        LogLevelChoice, typer.Option("--level", help="The least important events to print.")
    ] = LogLevelChoice.DEBUG,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Print the last events only; 0 prints all.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event.")] = False,
    debug: DebugOption = False,
) -> None:
    """Print the log of a home: what `penstock run` did, oldest first, with times in UTC.

    Events below the level of `penstock run --log-level` are not in the log.

    Example: penstock logs --follow --level warning
    """
    path = event_log_path(home)
    if not path.exists():
        message = f"there is no log at {path}"
        raise UsageError(message, "Name the home with --home, or start it: penstock run")
    wanted = LEVELS[LEVELS.index(level.value) :]
    kept: deque[dict[str, Any]] = deque(maxlen=lines or None)
    with Interrupt() as interrupt, _Follower(path) as newest:
        kept.extend(event for file in _older(path) for event in _events(file.read_text(encoding="utf-8"), wanted))
        kept.extend(_events(newest.read(), wanted))
        for event in kept:
            _print(event, as_json)
        while follow and not interrupt.wait(_POLL_SECONDS):
            for event in _events(newest.read(), wanted):
                _print(event, as_json)


def _print(event: dict[str, Any], as_json: bool) -> None:
    typer.echo(json.dumps(event, ensure_ascii=False) if as_json else as_text(event))


def _older(path: Path) -> list[Path]:
    files = [path.with_name(f"{path.name}.{number}") for number in range(FILES, 0, -1)]
    return [file for file in files if file.exists()]


def _events(text: str, wanted: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # a line that a killed process did not finish
            continue
        if event["level"] in wanted:
            yield event


class _Follower:
    """Reads what is appended to a file, also across its rotation."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _Follower:
        self._file = self._path.open("rb")
        self._rest = b""
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self) -> str:
        """Return the whole lines that were appended since the last call."""
        data = self._rest + self._file.read()
        if self._is_rotated():
            self._file.close()
            self._file = self._path.open("rb")
            data += self._file.read()
        whole, newline, self._rest = data.rpartition(b"\n")
        return (whole + newline).decode(errors="replace")

    def _is_rotated(self) -> bool:
        try:
            return self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:  # in the middle of the rotation
            return False
