"""Tokens, and writing watermarks."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.options import Watermarks
from penstock.sources.postgres.replication import watermark as module
from penstock.sources.postgres.replication.heartbeat import Beat
from penstock.sources.postgres.replication.interference import MarkerKind
from penstock.sources.postgres.replication.meta_tables import create_meta_tables
from penstock.sources.postgres.replication.watermark import MalformedTokenError, Mark, Watermark, write_watermark

US = "a1" * 16
LOW = Watermark(US, "b2" * 16, 3, Mark.LOW)

ids = st.text("0123456789abcdef", min_size=8, max_size=64)
numbers = st.integers(1, 2**63 - 1)
tokens = st.builds(Watermark, ids, ids, numbers, st.sampled_from(Mark)) | st.builds(Beat, ids, numbers)


@given(tokens)
def test_token_round_trips(token: Watermark | Beat) -> None:
    assert type(token).parse(token.token()) == token
    other = Beat if isinstance(token, Watermark) else Watermark
    with pytest.raises(MalformedTokenError):
        other.parse(token.token())


@given(tokens, st.data())
def test_garbled_token_is_rejected_or_another_token(token: Watermark | Beat, data: st.DataObject) -> None:
    text = token.token()
    at = data.draw(st.integers(0, len(text)))
    garbled = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 3)) :]
    try:
        assert type(token).parse(garbled).token() == garbled
    except MalformedTokenError:
        assert garbled != text


@given(st.text() | st.recursive(st.none() | st.booleans() | st.text(), lambda v: st.lists(v)).map(json.dumps))
def test_garbage_is_rejected(text: str) -> None:
    for kind in (Watermark, Beat):
        with pytest.raises(MalformedTokenError):
            kind.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        LOW.token() + " ",
        LOW.token().replace(":3,", ": 3,"),
        LOW.token().replace(":3,", ":true,"),
        LOW.token().replace(":3,", ":3.0,"),
        LOW.token().replace(":3,", ":0,"),
        LOW.token().replace(":3,", ":9223372036854775808,"),
        LOW.token().replace(":3,", f":{'9' * 5000},"),
        LOW.token().replace("low", "LOW"),
        LOW.token().replace("low", "mid"),
        LOW.token().replace('"v":1', '"v":2'),
        LOW.token().replace('"v":1', '"v":1,"v":1'),
        LOW.token().replace("}", ',"more":1}'),
        LOW.token().replace("a1", "A1"),
        LOW.token().replace("a1" * 16, ""),
    ],
)
def test_almost_valid_token_is_rejected(text: str) -> None:
    with pytest.raises(MalformedTokenError):
        Watermark.parse(text)


@pytest.mark.parametrize("kind", list(Watermarks))
def test_watermark_is_committed_before_the_returned_position(database: Any, kind: Watermarks) -> None:
    with database.connect() as connection:
        if kind is Watermarks.TABLE:
            create_meta_tables(connection, [MarkerKind.WATERMARK.table], US)
        slot = "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')"
        connection.execute(slot, [database.name])
        lsn = write_watermark(connection, kind, LOW)
        changes = "SELECT lsn::text, data FROM pg_logical_slot_get_changes(%s, %s, NULL)"
        found = connection.execute(changes, [database.name, str(lsn)]).fetchall()
    assert sum(LOW.token() in data for _, data in found) == 1
    assert found[-1][1].startswith("COMMIT")
    assert Lsn.parse(found[-1][0]) <= lsn


def test_missing_row_is_a_permanent_error(database: Any) -> None:
    with database.connect() as connection:
        with pytest.raises(DefiniteError, match="is gone"):
            write_watermark(connection, Watermarks.TABLE, LOW)
        create_meta_tables(connection, [MarkerKind.WATERMARK.table], US)
        connection.execute("DELETE FROM dblog_meta.watermarks")
        with pytest.raises(DefiniteError, match=r"row of dblog_meta.watermarks.* is gone"):
            write_watermark(connection, Watermarks.TABLE, LOW)


def test_locked_row_is_a_transient_error(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.1)
    with database.connect() as connection, database.connect(autocommit=False) as other:
        create_meta_tables(connection, [MarkerKind.WATERMARK.table], US)
        other.execute("SELECT * FROM dblog_meta.watermarks FOR UPDATE")
        with pytest.raises(TransientError, match="locked"):
            write_watermark(connection, Watermarks.TABLE, LOW)
        other.rollback()
        write_watermark(connection, Watermarks.TABLE, LOW)
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        assert connection.execute("SELECT token FROM dblog_meta.watermarks").fetchall() == [(LOW.token(),)]
