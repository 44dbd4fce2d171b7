"""cli.md, from the typer app."""

from __future__ import annotations

import enum
import inspect
from pathlib import Path
from typing import Any

import typer
from docs.generate.markdown import code, table
from typer.core import TyperArgument, TyperOption

from penstock.cli.main import app

__all__ = ["page"]


def page() -> str:
    group: Any = typer.main.get_command(app)
    parts = [
        "# Command line",
        group.help,
        "```sh\n" + "\n".join(["penstock --help", "penstock --version"]) + "\n```",
        _options(group),
        "`--home`, `--debug`, `--log-level` and `--log-format` are accepted before or after the command. The log "
        "options concern [`penstock run`](../how-to/operate-a-running-home.md#logs).",
        "Errors are printed to stderr, with a hint if there is something to do; with `--json` as a JSON object, "
        '`{"error": {"message": …, "hint": …, "code": …}}`, whose code is the exit code. See also the '
        "[exit codes](errors.md#exit-codes).",
    ]
    parts += [_command(name, command) for name, command in group.commands.items()]
    return "\n\n".join(part for part in parts if part)


def _command(name: str, command: Any) -> str:
    text = inspect.cleandoc(command.help or "")
    prose, *examples = text.split("Example:")
    arguments = [p for p in command.params if isinstance(p, TyperArgument)]
    usage = " ".join(["penstock", name, "[OPTIONS]", *(_argument_usage(p) for p in arguments)])
    parts = [f"## penstock {name}", prose.strip(), f"```text\n{usage}\n```"]
    if examples:
        lines = "\n".join(" ".join(example.split()) for example in examples)
        parts.append(f"```sh\n{lines}\n```")
    if arguments:
        rows = [[code(p.name.upper()), p.help or ""] for p in arguments]
        parts.append(table(["argument", "meaning"], rows))
    return "\n\n".join([*parts, _options(command)])


def _argument_usage(parameter: Any) -> str:
    name = str(parameter.name).upper()
    return name if parameter.required else f"[{name}]{'…' if parameter.nargs == -1 else ''}"


def _options(command: Any) -> str:
    shown = [p for p in command.params if isinstance(p, TyperOption) and p.name not in _COMPLETION]
    rows = []
    for parameter in shown:
        names = ", ".join(code(o) for o in sorted(parameter.opts, key=lambda o: (o.startswith("--"), o)))
        value = "" if parameter.is_flag else _value(parameter)
        rows.append([names, value, _default(parameter), _help(parameter)])
    return table(["option", "value", "default", "meaning"], rows) if rows else ""


_COMPLETION = {"install_completion", "show_completion"}


def _value(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if kind == list[str]:
        return "text, repeatable"
    if issubclass(kind, enum.Enum):
        return ", ".join(code(str(choice.value)) for choice in kind)
    return {int: "number", str: "text", Path: "path"}[kind]


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.is_flag or value is None:
        return ""
    return code(str(value.value if isinstance(value, enum.Enum) else value))


def _help(parameter: Any) -> str:
    variable = parameter.envvar
    text = parameter.help or ""
    if parameter.min is not None:
        text += f" At least {parameter.min}."
    return f"{text} Environment variable: {code(str(variable))}." if variable else text
