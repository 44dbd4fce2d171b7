"""Transaction columns of messages: ids, positions, snapshot rows, ENDs; and rejected messages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import DefiniteError
from penstock.formats import Decoded, JsonFormat, decode_batch, resolve
from penstock.sources.kafka.transactions.instance import narrowed_metadata, narrowed_values
from penstock.sources.kafka.transactions.message_columns import (
    UNKNOWN,
    Ends,
    MessageColumns,
    MessageKind,
    Upstream,
    read_ends,
    read_ids,
    read_messages,
)
from penstock.sources.kafka.transactions.metadata import Routes

JSON = resolve(JsonFormat(columns="op STRING"))
UUID = "0e4d5dcd-a33b-11ea-80f1-02010a22a99e"
GTID, OTHER = f"{UUID}:10", f"1{UUID[1:]}:11"


def columns_of(*records: Any) -> MessageColumns:
    return read_messages("t", 0, np.arange(len(records)), decoded(narrowed_values(JSON), *records))


def ends(*records: Any) -> Ends:
    return read_ends("m", np.arange(len(records)), decoded(narrowed_metadata(JSON), *records))


def decoded(format_: Any, *records: Any) -> Decoded:
    values = [None if record is None else json.dumps(record).encode() for record in records]
    return decode_batch(pa.array(values, pa.large_binary()), format_)


def change(name: str, order: Any = 1, sequence: str | None = '["100","105"]') -> dict[str, Any]:
    return {"transaction": {"id": name, "total_order": order}, "source": {"sequence": sequence, "snapshot": "false"}}


def snapshot_row(snapshot: str, **source: Any) -> dict[str, Any]:
    return {"ts_ms": 70, "transaction": None, "source": {"snapshot": snapshot, **source}}


def end(name: str | None, status: str = "END", /, **counts: Any) -> dict[str, Any]:
    tables = [{"data_collection": table, "event_count": count} for table, count in counts.items()]
    return {"status": status, "id": name, "ts_ms": 7, "data_collections": tables or None}


def test_changes_snapshot_rows_and_ignored_messages() -> None:
    found = columns_of(
        snapshot_row("true", lsn=90),
        snapshot_row("last", lsn=90),
        change("5:105", 2),
        None,
        snapshot_row("incremental"),
    )
    assert found.kinds.tolist() == [
        MessageKind.COPIED,
        MessageKind.COPIED,
        MessageKind.CHANGE,
        MessageKind.PASSES,
        MessageKind.PASSES,
    ]
    assert found.before.tolist() == [90, 90, 100, -1, -1]
    assert found.snapshot.tolist() == [90, 90, -1, -1, -1]
    assert found.last.tolist() == [False, True, False, False, False]
    assert found.times.tolist() == [70, 70, -1, -1, -1]
    assert (found.which[2], found.order[2]) == (5, 2)


def test_records_may_be_wrapped() -> None:
    found = columns_of({"schema": {}, "payload": change("5:105")})
    assert (found.which[0], found.before[0], found.order[0]) == (5, 100, 1)
    assert ends({"payload": end("5:120", "END", **{"public.a": 3})}).counts.tolist() == [[3]]


def test_unknown_previous_commit() -> None:
    assert columns_of(change("5:105", sequence='[null,"105"]')).before.tolist() == [UNKNOWN]


def test_ends_count_by_table() -> None:
    found = ends(end("5:110", "BEGIN"), end("5:120", a=1, b=2), end("6:130"), end("7:140", b=4), None)
    assert (found.offsets.tolist(), found.which.tolist()) == ([1, 2, 3], [5, 6, 7])
    assert found.position.tolist() == [120, 130, 140]
    assert Routes(["x.b", "x.other"]).wanted(found).tolist() == [[2, 0], [0, 0], [4, 0]]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**snapshot_row("true", lsn=90), "ts_ms": None}, "a snapshot row has no time"),
        (change("5"), "cannot be ordered"),
        (change("5:105:7"), "cannot be ordered"),
        (change("5:99999999999999999999"), "cannot be ordered"),
        (change("00000025:00000d98:00a2"), "cannot be ordered"),
        (change("5:105", 0), "total_order"),
        (change("5:105", None), "total_order"),
        (change("5:105", sequence=None), "source.sequence"),
        (change("5:105", sequence="[]"), "source.sequence"),
        ({"transaction": 5}, "could not decode"),
    ],
)
def test_rejected_changes(record: Any, message: str) -> None:
    with pytest.raises(DefiniteError, match=message):
        columns_of(record)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (end("5:120", "COMMIT"), "neither BEGIN nor END"),
        ({"id": "5:120"}, "neither BEGIN nor END"),
        (end(None), "no id"),
        (end("5:120", a=None), "data_collections"),
        (end("lots"), "cannot be ordered"),
    ],
)
def test_rejected_metadata(record: Any, message: str) -> None:
    with pytest.raises(DefiniteError, match=message):
        ends(record)


def test_ids_of_each_upstream() -> None:
    for names, upstream, which, position in [
        (["571:53195829", "572:53195832"], Upstream.POSTGRES, [571, 572], [53195829, 53195832]),
        ([GTID, f"{UUID}:11"], Upstream.GTID, [10, 11], [10, 11]),
        (["file=mysql-bin.000003,pos=5"], Upstream.BINLOG, [(3 << 40) + 5], [(3 << 40) + 5]),
    ]:
        found = read_ids("t", pa.array(names))
        assert found is not None
        assert (found.upstream, found.which.tolist(), found.position.tolist()) == (upstream, which, position)


def test_gtids_of_two_servers_are_rejected() -> None:
    with pytest.raises(DefiniteError, match="several MySQL servers"):
        read_ids("t", pa.array([GTID, OTHER]))


def test_routes() -> None:
    found = ends(end("5:120", "END", **{"public.a": 1, "public.é": 2, "s.routed": 4, "gone": 8}))
    routes = Routes(["x.public.a", "x.public._", "elsewhere"], {"s.routed": "elsewhere"})
    assert routes.wanted(found).tolist() == [[1, 2, 4]]
    with pytest.raises(DefiniteError, match="is ambiguous"):
        Routes(["x.public.a", "y.public.a"]).wanted(found)
