"""Options that every command accepts, before or after its name: --home, --debug, --log-level, --log-format.

::

    penstock --home DIR --log-level debug status --json   ─▶   penstock status --home DIR --json

Each command declares --home and --debug itself. The log options concern `penstock run`, which declares them; they are
removed from the arguments of other commands, after a check of their values.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

from penstock.errors import UsageError

__all__ = ["LogFormatChoice", "LogLevelChoice", "wants_json", "with_global_options"]


class LogLevelChoice(enum.StrEnum):
    """The least important events that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormatChoice(enum.StrEnum):
    """The format of the log on stderr."""

    TEXT = "text"
    JSON = "json"


_CHOICES: dict[str, type[enum.StrEnum]] = {"--log-level": LogLevelChoice, "--log-format": LogFormatChoice}
_WITH_VALUE = ("--home", *_CHOICES)
_LOGGING_COMMANDS = {"run"}
"""Commands that declare the log options."""


def with_global_options(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of ``penstock`` with the global options after the command that accepts them."""
    before, after, given = _split(list(arguments))
    if not after:
        return [*before, *(part for option in given for part in option)]
    name, *rest = after
    if name not in _LOGGING_COMMANDS:
        given = [option for option in given if not _is_log_option(option)]
        rest = list(_without_log_options(rest))
    return [*before, name, *(part for option in given for part in option), *rest]


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether errors are to be printed as JSON."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return "--json" in arguments or "--log-format=json" in arguments or ("--log-format", "json") in pairs


def _split(arguments: list[str]) -> tuple[list[str], list[str], list[tuple[str, ...]]]:
    """Return the other options before the command, the command with its arguments, and the global options."""
    before, given, index = list[str](), list[tuple[str, ...]](), 0
    while index < len(arguments) and arguments[index].startswith("-"):
        option = arguments[index]
        if option in _WITH_VALUE and index + 1 < len(arguments):
            given.append((option, arguments[index + 1]))
            index += 1
        elif option == "--debug" or option.startswith(tuple(f"{name}=" for name in _WITH_VALUE)):
            given.append((option,))
        else:
            before.append(option)
        index += 1
    return before, arguments[index:], given


def _is_log_option(option: Sequence[str]) -> bool:
    name, _, value = option[0].partition("=")
    if name not in _CHOICES:
        return False
    _check(name, value or (option[1] if len(option) > 1 else ""))
    return True


def _without_log_options(arguments: list[str]) -> Iterator[str]:
    waiting = iter(arguments)
    for argument in waiting:
        name, equals, value = argument.partition("=")
        if argument == "--":
            yield argument
            yield from waiting
        elif name in _CHOICES:
            _check(name, value if equals else next(waiting, ""))
        else:
            yield argument


def _check(name: str, value: str) -> None:
    choices = [str(choice.value) for choice in _CHOICES[name]]
    if value not in choices:
        message = f'invalid value "{value}" of {name}'
        raise UsageError(message, f"Use one of: {', '.join(choices)}.")
