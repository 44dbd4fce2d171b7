"""status.md, from `HomeStatus`; a word on each field stands here."""

from __future__ import annotations

import json

from docs.generate.json_shapes import shape

from penstock.catalog.states import SourceState, TableState
from penstock.engine.status import DebtStatus, HomeStatus, ReaderStatus, SourceStatus, TableStatus

__all__ = ["page"]

_FIELDS: dict[type, dict[str, str]] = {
    HomeStatus: {
        "version": "Version of this shape: 1. It changes when a field changes its meaning or goes.",
        "home": "The folder.",
        "running": "Pid of the process that runs the home, or null.",
        "sources": "One object per source.",
        "debts": "What sources dropped by force left upstream; tried again at each start, gone when done.",
    },
    DebtStatus: {
        "source": "The source that was dropped.",
        "at": "Host, port and database.",
        "since": "When it was dropped.",
        "statements": "What to run there by hand, if the server is not coming back to where we find it.",
        "error": "Why the last try failed; null before the first.",
    },
    SourceStatus: {
        "name": "The source's name.",
        "kind": "`POSTGRES`.",
        "at": "Host, port and database.",
        "state": "See [states](states.md).",
        "valid": "The position after which the log holds every change.",
        "durable": "Every transaction up to this position is in the log, on disk.",
        "committed_at": "Commit time of the last transaction in the log.",
        "latency_ms": "From the commit of that transaction to its being readable here, in milliseconds. Two clocks: "
        "that of Postgres and ours.",
        "lag_bytes": "Bytes of WAL that Postgres has flushed beyond `durable`; null where it could not be asked.",
        "error": "What happened, if something did. With the state `ready` it is transient and is being retried.",
        "hint": "What to do about it.",
        "log": "Where the change log is; null where it is a file in the home.",
        "tables": "One object per table, the ones that are not captured included.",
        "readers": "Who still needs history, and from where on.",
        "part_of": "Of a [shard](../how-to/capture-shards.md), the name that you gave to all of them; else null.",
        "shard": "Of a shard, what its rows have in `penstock_shard`; else null.",
        "waiting": "While the home runs: what the source waits for, like an answer of Postgres (with the time of the "
        "last one) or the rest of a transaction, and why that may be; else null.",
        "valid_from": "From which moment on its tables are valid, where reading began in the middle of transactions; "
        "else null.",
    },
    ReaderStatus: {
        "name": "`tables` for the base tables, `reader NAME` for a stream that is registered; others have leases.",
        "position": "History after this position is kept for it.",
        "expires": "When its lease ends, unless it is renewed; null for a registered reader, which stays.",
    },
    TableStatus: {
        "name": "The name in queries, `source.table`.",
        "upstream": "The name in Postgres, `schema.table`.",
        "state": "See [states](states.md).",
        "position": "The position of its base table; null before its first copy.",
        "behind": "Images in the log beyond the base table (an update with an old row has two). Live views have them.",
        "error": "What happened, if something did.",
        "hint": "What to do about it.",
        "copied_rows": "Rows that its copy has taken so far; null when it is not being copied.",
        "copied_bytes": "The same in bytes, as Postgres sent them.",
        "estimated_rows": "About how many rows there are, by Postgres's estimate or what has come, if that is more.",
        "estimated_bytes": "About how many bytes, by the size of the table upstream or what has come.",
        "waiting": "What its copy waits for: the transaction that holds up a snapshot, with its pid and age.",
    },
}


def page() -> str:
    parts = [
        "# penstock status --json",
        "One document. Positions are LSNs as text, times are ISO 8601 in UTC.",
        f"```json\n{json.dumps(_example().as_json(), indent=2)}\n```",
    ]
    kinds = (("The home", HomeStatus), ("A source", SourceStatus), ("A table", TableStatus))
    more = (("A reader", ReaderStatus), ("A debt", DebtStatus))
    return "\n\n".join([*parts, *(shape(title, kind, _FIELDS[kind]) for title, kind in (*kinds, *more))])


def _example() -> HomeStatus:
    tables = [
        TableStatus("shop.orders", "public.orders", TableState.LIVE.value, "0/28F14C0", 757, None, None),
        TableStatus(
            "shop.visits",
            "public.visits",
            TableState.FAILED.value,
            None,
            0,
            "it has no primary key",
            'Run: ALTER TABLE "public"."visits" ADD PRIMARY KEY (…);',
        ),
    ]
    source = SourceStatus(
        name="shop",
        kind="POSTGRES",
        at="db.example.com:5432/shop",
        state=SourceState.READY.value,
        valid="0/2771D28",
        durable="0/2A9D5B0",
        committed_at="2026-11-15T07:15:58.101+00:00",
        latency_ms=6.2,
        lag_bytes=0,
        error=None,
        hint=None,
        log=None,
        tables=tables,
        readers=[ReaderStatus("tables", "0/28F14C0", None)],
    )
    return HomeStatus(1, ".penstock", 4711, [source])
