"""Transactions, and tables that are skipped, as ``penstock tail`` and ``SUBSCRIBE`` print them on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape

__all__ = ["print_skipped", "render"]

_WIDTH = 60
"""Longer values are truncated."""


def render(line: str) -> str:
    """Render a transaction, given as a line of JSON, for a terminal."""
    transaction = json.loads(line, parse_int=str, parse_float=str)
    shard = f"  shard {transaction['shard']}" if transaction.get("shard") else ""
    parts = [f"{transaction['lsn']}  {transaction['committed_at']}  xid {transaction['xid']}{shard}"]
    for table, changes in transaction["tables"].items():
        parts += [f"  {table}", *(f"    {change['op']:<8} {', '.join(_values(change))}" for change in changes)]
    return "\n".join(parts) + "\n"


def print_skipped(table: str, position: str, message: str, hint: str) -> None:
    """Report on stderr that a table is skipped; transactions of other tables continue on stdout."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]skipped:[/] {escape(table)} from {position}: {escape(message)}")
    if hint:
        console.print(f"[bold]hint:[/] {escape(hint)}")


def _values(change: dict[str, Any]) -> Iterator[str]:
    """Yield the columns of a change: the new value, and the old one if it is known and differs."""
    before, after = change["before"] or {}, change["after"]
    for name, value in (before if after is None else after).items():
        if name in change["unchanged"]:
            yield f"{name}: (unchanged)"
        elif after is not None and before.get(name) not in (None, value):
            yield f"{name}: {_short(before[name])} → {_short(value)}"
        else:
            yield f"{name}: {_short(value)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    plain = "".join(character if character.isprintable() else "·" for character in text)
    return plain if len(plain) <= _WIDTH else f"{plain[: _WIDTH - 1]}…"
