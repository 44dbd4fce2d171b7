"""A transaction as one line of JSON, for ``penstock tail``; values as `penstock.changelog.json_rows` has them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from penstock.changelog.json_rows import json_rows
from penstock.changelog.transactions import Transaction

__all__ = ["VERSION", "transaction_json"]

VERSION = 1
"""Of this shape: it changes when a field changes its meaning or goes."""


def transaction_json(source: str, transaction: Transaction) -> str:
    """Return the line, without its end."""
    told = {
        "version": VERSION,
        "source": source,
        "shard": transaction.shard,
        "lsn": str(transaction.lsn),
        "xid": transaction.xid,
        "committed_at": transaction.committed_at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }
    tables = ",".join(f"{_text(name)}:[{','.join(_changes(table))}]" for name, table in transaction.tables.items())
    return f'{_text(told)[:-1]},"tables":{{{tables}}}}}'


def _changes(table: pa.Table) -> Iterator[str]:
    before, after = (_rows(table.column(name)) for name in ("before", "after"))
    kept = (table.column(name).to_pylist() for name in ("_op", "_ordinal", "_unchanged"))
    for op, ordinal, unchanged, old, new in zip(*kept, before, after, strict=True):
        told = _text({"op": op, "ordinal": ordinal, "unchanged": unchanged or []})
        yield f'{told[:-1]},"before":{old or "null"},"after":{new or "null"}}}'


def _rows(rows: pa.ChunkedArray) -> list[str | None]:
    return [text for chunk in rows.chunks for text in json_rows(chunk).to_pylist()]


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
