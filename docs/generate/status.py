"""status.md, from `HomeStatus` and the descriptions of its fields below."""

from __future__ import annotations

import json

from docs.generate.json_shapes import shape

from penstock.catalog.states import SinkState, SourceState, TableState
from penstock.engine.status_document import (
    AlarmStatus,
    DebtStatus,
    DiskStatus,
    HomeStatus,
    ProcessStatus,
    ReaderStatus,
    SinkStatus,
    SourceStatus,
    TableStatus,
)
from penstock.sources.upstream_status import SlotStatus

__all__ = ["page"]

_FIELDS: dict[type, dict[str, str]] = {
    HomeStatus: {
        "version": "Version of this format: 1. It changes if a field is removed or redefined.",
        "home": "The path of the home.",
        "running": "The pid of the process that runs the home, or null.",
        "sources": "One object per source.",
        "debts": "Upstream objects that could not be removed when a source was dropped with FORCE. Each start tries "
        "again to remove them.",
        "sinks": "One object per sink.",
        "process": "The process of `penstock run`, or null if the home is not running, or is run by the Python API.",
        "disk": "The file system of the home.",
        "alarms": "Conditions that need attention: see [monitoring](../how-to/monitor-with-prometheus.md#alarms).",
    },
    ProcessStatus: {
        "pid": "Its pid.",
        "state": "`starting`, `running`, `restarting Spark` or `stopping`. Capture runs in all of them but the last.",
        "since": "The time of the last change of `state`.",
        "started": "The time at which the process started.",
        "restarts": "How often Spark was lost, or could not be started, and was started again.",
        "alarm": "A message if Spark was lost repeatedly in the last ten minutes, or cannot start; otherwise null.",
    },
    DiskStatus: {
        "free_bytes": "Free space, in bytes.",
        "total_bytes": "Size, in bytes.",
    },
    AlarmStatus: {
        "level": "`warning`, or `critical`: data stops flowing, or is about to be lost.",
        "code": "What it is about; the codes are stable.",
        "message": "What is the case, for people to read.",
        "hint": "What to do about it.",
        "source": "The source that it is about, or null.",
        "table": "The table that it is about, by its name upstream, or null.",
        "sink": "The sink that it is about, or null.",
        "since": "When it began; the present time if no process runs the home.",
    },
    SlotStatus: {
        "name": "The name of the slot.",
        "active": "Whether a session reads it.",
        "wal_status": "As in `pg_replication_slots`: `reserved`, `extended`, `unreserved` (about to be invalidated) or "
        "`lost`; null if the slot does not exist.",
        "retained_bytes": "WAL that the server retains for it, in bytes.",
        "safe_bytes": "WAL that can be written until it may be invalidated, in bytes; null if there is no limit "
        "(`max_slot_wal_keep_size`).",
        "confirmed": "The position up to which the source has confirmed.",
        "invalidated": "Why the slot cannot be read any more; null if it can.",
    },
    SinkStatus: {
        "name": "The name of the sink.",
        "source": "The source that it reads.",
        "table": "The table that it reads; null for all tables of the source.",
        "into": "Its topics and brokers, or its function.",
        "envelope": "The envelope: `upsert`, `debezium`, `changes` or `transactions`.",
        "format": "The format: `json`, `avro` or `protobuf`; `dataframe` for a function.",
        "state": "See [states](states.md).",
        "position": "Every change up to this position is written; null if the home does not run.",
        "behind": "Row images in the log after that position; null if the home does not run.",
        "lag_ms": "Time from the commit of the last written transaction until it was written, in milliseconds.",
        "messages": "Messages written since the sink was started.",
        "error": "The error, if there is one. In the state `running` it is transient and is being retried.",
        "hint": "What to do about the error.",
    },
    DebtStatus: {
        "source": "The source that was dropped.",
        "at": "Host, port and database.",
        "since": "Time of the drop.",
        "statements": "The SQL that removes the objects by hand, in case the server does not return to this address.",
        "error": "Why the last attempt failed; null before the first one.",
    },
    SourceStatus: {
        "name": "The name of the source.",
        "kind": "The kind of source: `POSTGRES`, `KAFKA`, `FILE`, `LOAD GENERATOR`, or one of another package.",
        "at": "The upstream: for Postgres, host, port and database.",
        "state": "See [states](states.md).",
        "valid": "The log contains every change after this position.",
        "durable": "The log contains every transaction up to this position, on disk.",
        "committed_at": "Commit time of the last transaction in the log.",
        "latency_ms": "Time from the commit of that transaction until it was readable, in milliseconds. It compares "
        "two clocks: that of Postgres and that of this machine.",
        "lag_bytes": "WAL that Postgres has flushed after `durable`, in bytes; null if Postgres could not be queried.",
        "error": "The error, if there is one. In the state `ready` it is transient and is being retried.",
        "hint": "What to do about the error.",
        "log": "Location of the change log; null if it is a file in the home.",
        "tables": "One object per table, including tables that could not be captured.",
        "readers": "The readers that retain history.",
        "part_of": "For a [shard](../how-to/capture-shards.md), the name of the sharded source; otherwise null.",
        "shard": "For a shard, the value of `penstock_shard` in its rows; otherwise null.",
        "waiting": "While the home runs: what the source waits for, such as an answer from Postgres (with the time of "
        "the last one) or the rest of a transaction, and the possible reason; otherwise null.",
        "valid_from": "The time from which its tables are consistent, if capture began in the middle of a transaction; "
        "otherwise null.",
        "complete_until": "Every transaction that committed before this time is in the log.",
        "log_bytes": "Size of the change log, in bytes.",
        "retain_history": "The option `retain history`: how long history is retained, beyond what readers need.",
        "clock_skew_ms": "How far the clock of the server is ahead of the clock of this machine, in milliseconds; null "
        "if the server could not be queried.",
        "slot": "Its replication slot; null if it has none, or the server could not be queried.",
        "capture_errors": "The number of errors of capture by class, since the source was created, including transient "
        "ones.",
    },
    ReaderStatus: {
        "name": "`tables` for the base tables, `reader NAME` for a registered reader; others are leases.",
        "position": "History after this position is retained for it.",
        "expires": "When its lease expires unless it is renewed; null for a registered reader, which does not expire.",
        "lag_ms": "Age of the history that is retained for it: the time between its position and the end of the log, "
        "in milliseconds.",
    },
    TableStatus: {
        "name": "The name in queries, `source.table`.",
        "upstream": "The name upstream; in Postgres, `schema.table`.",
        "state": "See [states](states.md).",
        "position": "The position of its base table; null before its initial snapshot.",
        "behind": "Row images in the log after the position of the base table (an update with an old row has two). "
        "Live views include them.",
        "error": "The error, if there is one.",
        "hint": "What to do about the error.",
        "copied_rows": "Rows that its snapshot has copied so far; null if no snapshot is running.",
        "copied_bytes": "The same in bytes, as sent by Postgres.",
        "estimated_rows": "Estimated number of rows: the estimate of Postgres, or `copied_rows` if that is higher.",
        "estimated_bytes": "Estimated number of bytes: the size of the table upstream, or `copied_bytes` if that is "
        "higher.",
        "waiting": "What its snapshot waits for: the transaction that delays it, with its pid and age.",
        "changes": "Captured changes since the source was created; null before the first one.",
        "lag_ms": "How much older the last change in the base table is than the last one in the log, in milliseconds; "
        "null before its initial snapshot. Live views do not have this lag.",
        "reason": "The error because of which the table is being captured again without a request "
        "(`on schema change = 'resnapshot'`); otherwise null.",
        "readable_at": "The position of the last consistent state of a table that is being captured again: it is "
        "readable `AS OF` that position; null if there is none, or its history was removed.",
        "rows": "The number of rows in its base table when it was last counted, soon after a change; null before that.",
    },
}


def page() -> str:
    parts = [
        "# penstock status --json",
        "The command prints one JSON document. Positions are LSNs as text; times are ISO 8601 in UTC.",
        f"```json\n{json.dumps(_example().as_json(), indent=2)}\n```",
    ]
    kinds = (("The home", HomeStatus), ("A source", SourceStatus), ("A table", TableStatus))
    more = (
        *(("The process", ProcessStatus), ("A slot", SlotStatus), ("A reader", ReaderStatus), ("A debt", DebtStatus)),
        *(("A sink", SinkStatus), ("The disk", DiskStatus), ("An alarm", AlarmStatus)),
    )
    return "\n\n".join([*parts, *(shape(title, kind, _FIELDS[kind]) for title, kind in (*kinds, *more))])


def _example() -> HomeStatus:
    tables = [
        TableStatus(
            *("shop.orders", "public.orders", TableState.LIVE.value, "0/28F14C0", 757, None, None),
            changes=182_004,
            lag_ms=2140.5,
            rows=120_412,
        ),
        TableStatus(
            "shop.visits",
            "public.visits",
            TableState.FAILED.value,
            None,
            0,
            "table has no primary key: UPDATE and DELETE fail once the table is published",
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
        readers=[ReaderStatus("tables", "0/28F14C0", None, 86_402_140.5)],
        complete_until="2026-11-15T07:16:01.224+00:00",
        log_bytes=41_975_808,
        retain_history="1 day",
        clock_skew_ms=0.4,
        slot=SlotStatus("penstock_shop", True, "reserved", 2_097_152, None, "0/2A9D5B0"),
        capture_errors={"TransientError": 2},
    )
    sink = SinkStatus(
        name="orders_out",
        source="shop",
        table="orders",
        into="orders at k1:9092",
        envelope="upsert",
        format="json",
        state=SinkState.RUNNING.value,
        position="0/2A9D5B0",
        behind=0,
        lag_ms=41.5,
        messages=1312,
    )
    started = "2026-11-15T06:02:11.420+00:00"
    process = ProcessStatus(4711, "running", "2026-11-15T06:02:18.913+00:00", started, 0)
    disk = DiskStatus(1_612_709_888, 63_278_391_296)
    alarm = AlarmStatus(
        level="warning",
        code="disk_low",
        message="1.5 GB of 58.9 GB are free on the file system of the home",
        hint="Free some space. Below 512 MB, capture and apply pause until there is more.",
        since="2026-11-15T07:02:11+00:00",
    )
    return HomeStatus(1, ".penstock", 4711, [source], sinks=[sink], process=process, disk=disk, alarms=[alarm])
