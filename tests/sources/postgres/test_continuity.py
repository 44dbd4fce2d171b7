"""On which server capture may resume: every answer that Postgres can give, without a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from penstock.errors import DefiniteError, ProtocolError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.replication.continuity import Fork, parse_history, verify_continuity
from penstock.sources.postgres.replication.slot import SlotInUseError

SLOT = ("logical", "pgoutput", "shop", None, "reserved", "0/50", "0/40", True, False, False, True, None, None, None)
CONFIG = PostgresInstanceConfig(
    source="shop", connection="dbname=shop", publication="p", slot="s", tables=(), system="77", timeline=1
)


@dataclass
class Server:
    """Answers the queries of a replication connection as a server does."""

    system: str = "77"
    timeline: int = 1
    history: str | bytes | psycopg.Error | None = None
    standby: bool = False
    synchronized: bool | None = True
    slot: tuple[Any, ...] | None = SLOT
    version: int = 180_006
    end: str = "0/100"
    info: Any = field(init=False)
    cursor_factory: Any = None

    def __post_init__(self) -> None:
        self.info = SimpleNamespace(server_version=self.version)

    def execute(self, query: str, _parameters: Any = ()) -> Any:
        row = self._answer(query)
        return SimpleNamespace(fetchone=lambda: row, fetchall=lambda: [row])

    def _answer(self, query: str) -> tuple[Any, ...] | None:
        if query == "IDENTIFY_SYSTEM":
            return (self.system, self.timeline, "0/60", "shop")
        if query == "SELECT pg_is_in_recovery()":
            return (self.standby,)
        if "pg_current_wal_flush_lsn" in query:
            return (self.end,)
        if query == f"TIMELINE_HISTORY {self.timeline}":
            if isinstance(self.history, psycopg.Error):
                raise self.history
            return (f"{self.timeline:08X}.history", self.history)
        if "synced" in query:
            assert self.version >= 170_000, "there is no such column"
            return None if self.synchronized is None else (self.synchronized,)
        assert "pg_replication_slots" in query
        return self.slot


def verified(server: Server, durable: int = 0x50, **known: Any) -> PostgresInstanceConfig:
    config = CONFIG.model_copy(update=known)
    return verify_continuity(server, config, Lsn(durable)).config  # type: ignore[arg-type]


def test_same_server() -> None:
    assert verified(Server()) == CONFIG


def test_server_whose_wal_ends_before_the_log() -> None:
    assert verified(Server(end="0/50")) == CONFIG
    with pytest.raises(DefiniteError, match="its WAL ends at 0/4F, and the log reaches 0/50") as caught:
        verified(Server(end="0/4F"))
    assert "penstock drop shop" in caught.value.hint
    with pytest.raises(TransientError, match="has replayed up to 0/4F"):
        verified(Server(end="0/4F", standby=True), standby=True)


def test_start_of_the_timeline_is_recorded() -> None:
    """A source may be created on a server that was promoted before."""
    found = verified(Server(timeline=2, history="1\t0/30\tx\n"), timeline=2)
    assert (found.timeline, found.forked_at) == (2, 0x30)


@pytest.mark.parametrize("durable", [0x50, 0x70])
def test_promoted_standby_with_all_of_the_log_is_accepted(durable: int) -> None:
    found = verified(Server(timeline=2, history=b"1\t0/70\tno recovery target specified\n"), durable)
    assert found == CONFIG.model_copy(update={"timeline": 2, "forked_at": 0x70})
    again = verify_continuity(Server(timeline=2, history="1\t0/70\tx"), found, Lsn(0x90))  # type: ignore[arg-type]
    assert again.config == found


def test_two_promotions_since_the_last_connect() -> None:
    """The check uses the end of the recorded timeline; the start of the current one is recorded."""
    server = Server(timeline=4, history="1\t0/70\tx\n3\t0/90\tx\n")
    assert verified(server, 0x70).forked_at == 0x90
    with pytest.raises(DefiniteError, match=r"only up to 0/70"):
        verified(server, 0x71)


PROMOTED: dict[str, Any] = {"timeline": 2, "history": "1\t0/70\tx\n"}


@pytest.mark.parametrize(
    ("server", "known", "expected"),
    [
        (Server(system="78"), {}, "system identifier is 78, that of the log 77"),
        (Server(timeline=1), {"timeline": 2, "forked_at": 0x30}, "on an earlier timeline"),
        (Server(timeline=3, history="1\t0/30\tx"), {"timeline": 2}, "does not include the timeline of the log"),
        (Server(timeline=3, history="1\t0/30\tx\n2\t0/60\ty"), {"timeline": 2, "forked_at": 0x31}, "2 began at 0/30"),
        (Server(timeline=2, history="1\t0/30\tx"), {"timeline": 2, "forked_at": 0x31}, "2 began at 0/30"),
        (
            Server(timeline=2, history=psycopg.errors.UndefinedFile("gone")),
            {},
            "the history file of its timeline 2 is missing",
        ),
        (Server(timeline=2, history="1\t0/4F\tx"), {}, "ahead of the server after failover"),
        (Server(**PROMOTED, synchronized=False), {}, "was not synchronized"),
        (Server(**PROMOTED, synchronized=None, slot=None), {}, "was not synchronized"),
        (Server(**PROMOTED, version=160_015), {}, "was not synchronized"),
        (Server(**PROMOTED, slot=(*SLOT[:5], "0/51", *SLOT[6:])), {}, "the changes in between are lost"),
        (Server(**PROMOTED, slot=(*SLOT[:4], "lost", *SLOT[5:])), {}, "invalidated"),
        (Server(slot=None), {}, "no longer exists"),
    ],
)
def test_possible_loss_is_a_permanent_error(server: Server, known: dict[str, Any], expected: str) -> None:
    with pytest.raises(DefiniteError, match=expected) as caught:
        verified(server, **known)
    assert "penstock drop shop" in caught.value.hint


def test_temporary_conditions_are_transient_errors() -> None:
    with pytest.raises(TransientError, match="is a standby"):
        verified(Server(standby=True))
    with pytest.raises(SlotInUseError):
        verified(Server(slot=(*SLOT[:3], 4711, *SLOT[4:])))
    with pytest.raises(psycopg.OperationalError):
        verified(Server(timeline=2, history=psycopg.OperationalError("the connection is lost")))


def test_timeline_history_is_parsed() -> None:
    content = "1\t0/3000148\tno recovery target specified\n\n# a remark\n2\t16/B374D848\tbefore 2024-01-01 # noon\n"
    assert parse_history(content) == [Fork(1, Lsn(0x3000148)), Fork(2, Lsn.parse("16/B374D848"))]
    assert parse_history("") == []


@pytest.mark.parametrize("line", ["1", "one\t0/30\tx", "1\t0-30\tx", "1\t\t"])
def test_malformed_history_is_rejected(line: str) -> None:
    with pytest.raises(ProtocolError, match="timeline history"):
        parse_history(line)
