"""Homes in every state that the page has to show, made from the classes of the engine.

`RichStatus.more` adds fields to the JSON document that the classes may not have.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.engine.status_document import DebtStatus, HomeStatus, ReaderStatus, SinkStatus, SourceStatus, TableStatus

__all__ = ["HOMES", "CannedHome", "RichStatus"]

GB, MB = 1 << 30, 1 << 20
PID = 48213
BEGIN = datetime.now(UTC) - timedelta(seconds=3600)
"""The time of second 0: the homes have a history of one hour."""

SHOP = {
    "customers": (48_112, 2.1),
    "orders": (1_204_553, 118.0),
    "order_lines": (3_981_200, 402.0),
    "payments": (1_187_004, 96.0),
    "products": (12_408, 0.2),
    "shipments": (902_118, 61.0),
    "inventory": (61_300, 233.0),
    "returns": (18_777, 0.0),
}
"""Rows and changes per second of each table of the shop."""
BANK = {"accounts": (250_000, 310.0), "transfers": (8_120_443, 155.0), "audit": (120_033, 12.0), "branches": (412, 0.0)}


@dataclass(frozen=True)
class RichStatus(HomeStatus):
    """A status with more fields: of the home, of sources by name, and of tables by name."""

    more: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document, with the further fields."""
        document = super().as_json()
        document.pop("more")
        for key, value in self.more.items():
            if key not in ("sources", "tables"):
                document[key] = value
        for source in document["sources"]:
            source.update(self.more.get("sources", {}).get(source["name"], {}))
            for table in source["tables"]:
                table.update(self.more.get("tables", {}).get(table["name"], {}))
        return document


class CannedHome:
    """A home whose status is a function of a clock that the reader moves, by `step` seconds for each read."""

    def __init__(self, make: Callable[[float], HomeStatus], path: str = "/srv/penstock/shop") -> None:
        self.path = Path(path)
        self.make = make
        self.seconds = 3600.0
        self.step = 1.0

    def status(self) -> HomeStatus:
        """Return the status a step later than the last time."""
        self.seconds += self.step
        return self.make(self.seconds)


# -- parts -------------------------------------------------------------------------------------------------------------


def wave(seconds: float, seed: int = 0) -> float:
    """Return a factor about 1 that changes smoothly, like the load of a shop."""
    slow = math.sin(seconds / 700 + seed) * 0.3 + math.sin(seconds / 173 + 2 * seed) * 0.16
    fast = math.sin(seconds / 41 + 3 * seed) * 0.09 + math.sin(seconds / 23 + seed) * 0.06
    peak = 1.3 * math.exp(-(((seconds - 2350 - 90 * seed) / 130) ** 2))
    return max(0.05, 1 + slow + fast + peak)


@functools.cache
def _sums(seed: int) -> list[float]:
    return list(itertools.accumulate(wave(second, seed) for second in range(7200)))


def counted(rate: float, seconds: float, seed: int) -> int:
    """Return how many changes there were until a second."""
    sums, whole = _sums(seed), int(seconds)
    return int(rate * (sums[whole] + (sums[whole + 1] - sums[whole]) * (seconds - whole)))


def lsn(seconds: float) -> str:
    """Return a position that rises with the time."""
    return f"4A/{int(0xA0000000 + seconds * 0x1A3F7):X}"


def moment(seconds: float) -> str:
    """Return the time of a second."""
    return (BEGIN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def live_table(source: str, name: str, seconds: float, behind: int = 0) -> TableStatus:
    """Return a live table."""
    rows = 1_000 + 1_347 * len(name) ** 2 + int(seconds - 8)
    return TableStatus(f"{source}.{name}", f"public.{name}", "live", lsn(seconds - 8), behind, None, None, rows=rows)


def a_source(
    name: str, tables: Sequence[TableStatus], seconds: float, at: str = "db1.example.com/shop"
) -> SourceStatus:
    """Return a Postgres source that streams."""
    latency = round(6 + 5 * wave(seconds) + 30 * max(0.0, wave(seconds) - 1.7), 1)
    readers = [ReaderStatus("tables", lsn(seconds - 12), None)]
    return SourceStatus(
        *(name, "postgres", at, "ready", lsn(seconds - 9000), lsn(seconds), moment(seconds - 0.3), latency, 0),
        *(None, None, None, list(tables), readers),
    )


def slot(name: str, seconds: float, retained: int, safe: int | None = 8 * GB) -> dict[str, Any]:
    """Return the slot of a source, in the form of the status document."""
    return {
        "name": f"penstock_{name}",
        "active": True,
        "wal_status": "reserved",
        "retained_bytes": retained,
        "safe_bytes": safe,
        "confirmed": lsn(seconds - 1),
        "invalidated": None,
    }


def tables_more(source: str, tables: Mapping[str, tuple[int, float]], seconds: float) -> dict[str, Any]:
    """Return the further fields of the tables of a source."""
    return {
        f"{source}.{name}": {"changes": counted(rate, seconds, place)}
        for place, (name, (_, rate)) in enumerate(tables.items())
    }


SINKS = (
    ("orders_out", "shop", "orders", "orders at k1:9092", "upsert", "json", 118.0),
    ("cdc", "shop", None, "shop.* at k1:9092", "debezium", "avro", 912.0),
    ("ledger", "bank", "transfers", "risk.scoring:score", "changes", "dataframe", 155.0),
)


def sinks(seconds: float) -> list[SinkStatus]:
    """Return sinks that run."""
    return [
        SinkStatus(
            *(name, source, table, into, envelope, form, "running", lsn(seconds)),
            *(int(rate * 0.2 * wave(seconds)), round(80 + 60 * wave(seconds, 3), 1), counted(rate, seconds, 1)),
        )
        for name, source, table, into, envelope, form, rate in SINKS
    ]


# -- states ------------------------------------------------------------------------------------------------------------


def streaming(seconds: float) -> RichStatus:
    """Two databases, twelve live tables, three sinks."""
    behind = int(900 * wave(seconds, 2) * ((seconds % 10) / 10))
    shop = [live_table("shop", name, seconds, behind if rate > 50 else 0) for name, (_, rate) in SHOP.items()]
    bank = [live_table("bank", name, seconds, behind if rate > 50 else 0) for name, (_, rate) in BANK.items()]
    readers = [
        ReaderStatus("fraud-model", lsn(seconds - 4), None),
        ReaderStatus("query 7", lsn(seconds - 2), moment(seconds + 55)),
    ]
    first = a_source("shop", shop, seconds)
    second = a_source("bank", bank, seconds, "db2.example.com/bank")
    sources = [replace(first, readers=[*first.readers, *readers], lag_bytes=int(18_000 * wave(seconds))), second]
    more = {
        "disk": {"free_bytes": 214 * GB, "total_bytes": 480 * GB},
        "sources": {
            "shop": {"slot": slot("shop", seconds, int(22 * MB * wave(seconds))), "log_bytes": 412 * MB},
            "bank": {"slot": slot("bank", seconds, int(35 * MB * wave(seconds, 1))), "log_bytes": 1240 * MB},
        },
        "tables": {**tables_more("shop", SHOP, seconds), **tables_more("bank", BANK, seconds)},
    }
    return RichStatus(1, "/srv/penstock/shop", PID, sources, [], sinks(seconds), more=more)


def empty(seconds: float) -> RichStatus:
    """A home without sources."""
    return RichStatus(1, "/srv/penstock/new", PID, [], [], [])


def snapshot(seconds: float) -> RichStatus:
    """Some tables are live, some are being copied, one waits."""
    found = streaming(seconds)
    shop = found.sources[0]
    share = min(0.98, 0.31 + (seconds - 3600) / 400)
    pending = {"orders": share, "order_lines": share * 0.6}
    tables = []
    for table in shop.tables:
        local = table.name.partition(".")[2]
        if local in pending:
            rows = SHOP[local][0]
            progress = (int(rows * pending[local]), int(rows * 90 * pending[local]), rows, rows * 90)
            tables.append(TableStatus(table.name, table.upstream, "pending", None, 0, None, None, *progress))
        elif local == "returns":
            waits = "waiting for a transaction of pid 4711, open for 3 min"
            tables.append(TableStatus(table.name, table.upstream, "pending", None, 0, None, None, waiting=waits))
        else:
            tables.append(table)
    return replace(found, sources=[replace(shop, tables=tables)], sinks=[])


FAILURE = 'column "amount" of public.payments was changed from numeric(12,2) to text at 4A/1F00A2B8'
FAILURE_HINT = "Take a new snapshot of this table: `ALTER SOURCE shop RETRY TABLE public.payments`"


def failed_table(seconds: float) -> RichStatus:
    """One table has failed; the others go on."""
    found = streaming(seconds)
    shop = found.sources[0]
    tables = [
        replace(table, state="failed", error=FAILURE, hint=FAILURE_HINT) if table.name == "shop.payments" else table
        for table in shop.tables
    ]
    return replace(found, sources=[replace(shop, tables=tables), *found.sources[1:]])


def lost_postgres(seconds: float) -> RichStatus:
    """A server cannot be reached; capture retries."""
    found = streaming(seconds)
    error = "cannot reach Postgres at db1.example.com:5432/shop"
    hint = "Check that the server runs and accepts connections; capture connects again by itself."
    shop = replace(found.sources[0], error=error, hint=hint, lag_bytes=None, committed_at=moment(3420))
    more = dict(found.more)
    more["sources"] = {"bank": found.more["sources"]["bank"], "shop": {"log_bytes": 412 * MB, "slot": None}}
    more["tables"] = {**found.more["tables"], **tables_more("shop", SHOP, min(seconds, 3420.0))}
    return replace(found, sources=[shop, *found.sources[1:]], more=more)


def not_running(seconds: float) -> RichStatus:
    """No process runs the home."""
    found = streaming(seconds)
    return replace(found, running=None, sinks=[replace(sink, position=None, behind=None) for sink in found.sinks])


def many_tables(seconds: float) -> RichStatus:
    """200 tables, three of them failed, five being copied."""
    names = {f"tenant_{place:03}_events": (1000 * place, place % 17 / 3) for place in range(200)}
    tables = [live_table("saas", name, seconds, place % 40) for place, name in enumerate(names)]
    for place in (17, 88, 131):
        tables[place] = replace(tables[place], state="failed", error=FAILURE, hint=FAILURE_HINT)
    for place in range(190, 195):
        tables[place] = TableStatus(
            *(tables[place].name, tables[place].upstream, "pending", None, 0, None, None, place * 31, 1, 9000, 1)
        )
    source = a_source("saas", tables, seconds, "pg.example.com/saas")
    more = {
        "sources": {"saas": {"slot": slot("saas", seconds, 600 * MB), "log_bytes": 3 * GB}},
        "tables": tables_more("saas", names, 60),
    }
    return RichStatus(1, "/srv/penstock/saas", PID, [source], [], [], more=more)


def shards(seconds: float) -> RichStatus:
    """One source of four shards."""
    found = []
    for place in range(1, 5):
        name = f"app_s{place}"
        tables = [live_table(name, local, seconds, place) for local in ("users", "posts", "likes")]
        one = a_source(name, tables, seconds, f"db{place}.example.com/app")
        found.append(replace(one, part_of="app", shard=f"s{place}"))
    sink = SinkStatus(
        "posts_out", "app", "posts", "posts at k1:9092", "upsert", "json", "running", "4A/1 4A/2", 12, 90.0, 5
    )
    return RichStatus(1, "/srv/penstock/app", PID, found, [], [sink])


def topics(seconds: float) -> RichStatus:
    """A Kafka source: no slot, no lag in bytes, no latency."""
    table = TableStatus("clicks.clicks", "clicks", "live", "0/1F4", 3, None, None)
    source = a_source("clicks", [table], seconds, "clicks at k1:9092")
    source = replace(source, kind="kafka", lag_bytes=None, latency_ms=None, durable="0/1F7", valid="0/0", readers=[])
    return RichStatus(1, "/srv/penstock/clicks", PID, [source], [], [])


def wal_alarm(seconds: float) -> RichStatus:
    """A slot retains much WAL; there is an alarm, and an object left upstream."""
    found = streaming(seconds)
    since = moment(seconds - 1260)
    message = "slot penstock_bank retains 7.1 GB of WAL; it is invalidated at 8.0 GB"
    hint = (
        "Apply is slow or stopped: see the sinks and readers of bank, or raise `max_slot_wal_keep_size` on the server."
    )
    alarm = {"level": "warning", "code": "wal_retained", "message": message, "hint": hint, "since": since}
    more = dict(found.more)
    held = slot("bank", seconds, int(7.1 * GB), int(0.9 * GB)) | {"wal_status": "extended"}
    more["sources"] = {**found.more["sources"], "bank": {"slot": held, "log_bytes": 1240 * MB}}
    more["alarms"] = [{**alarm, "source": "bank", "table": None, "sink": None}]
    debt = DebtStatus("old", "db0.example.com/old", since, ["SELECT pg_drop_replication_slot('penstock_old');"], None)
    return replace(found, debts=[debt], more=more)


SCRIPT = "<script>alert(1)</script>"
ODD = (
    SCRIPT,
    '"><img src=x onerror=alert(1)>',
    'it\'s "quoted" & `ticked`',
    "注文明細テーブル",
    "טבלת_הזמנות",
    "Ünïcode_ñame_☕",
    "very_long_" + "x" * 190,
    "{{ 7 * 7 }}",
)


def odd_names(seconds: float) -> RichStatus:
    """Names and messages that a page must escape, of every script and length."""
    tables = [live_table("shop", name, seconds) for name in ODD]
    tables[0] = replace(tables[0], state="failed", error=f"error {SCRIPT}", hint=f"run `{SCRIPT}`")
    source = replace(a_source("shop", tables, seconds), at=SCRIPT, waiting=SCRIPT)
    sink = SinkStatus(SCRIPT, "shop", ODD[1], SCRIPT, "upsert", "json", "failed", error=SCRIPT, hint=SCRIPT)
    return RichStatus(1, f"/srv/{SCRIPT}", PID, [source], [], [sink])


def many_sources(seconds: float) -> RichStatus:
    """Twelve sources, each with a sink of its own; one of them with seven."""
    names = [f"region_{place}" for place in range(12)]
    sources = [
        a_source(name, [live_table(name, "orders", seconds)], seconds, f"{name}.example.com/shop") for name in names
    ]
    into = ("topic at k1:9092", "upsert", "json", "running", "4A/1", 0, 50.0, 10)
    found = [SinkStatus(f"out_{name}", name, None, *into) for name in names]
    found += [SinkStatus(f"more_{place}", "region_0", None, *into) for place in range(6)]
    return RichStatus(1, "/srv/penstock/regions", PID, sources, [], found)


HOMES: dict[str, Callable[[float], RichStatus]] = {
    make.__name__: make
    for make in (
        *(streaming, empty, snapshot, failed_table, lost_postgres, not_running, many_tables, shards, topics, wal_alarm),
        *(odd_names, many_sources),
    )
}
"""All states by name."""
