"""The capture process across a failover: it continues without help, and the catalog stores the new timeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engine.test_capture_process import Home, capture_process
from tests.postgres_records import postgres_instance_of

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.sources.postgres.connection import connect_replication
from penstock.testing.postgres import chosen_version, start_postgres
from penstock.testing.waiting import until


@dataclass
class Pair:
    """A primary and its standby, as one database with two addresses."""

    primary: EmbeddedPostgres
    standby: EmbeddedPostgres
    name: str = "shop"

    @property
    def url(self) -> str:
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return (self.primary if self.primary.running else self.standby).execute(statement)

    def slot_is_synchronized(self) -> bool:
        self.primary.execute("SELECT pg_log_standby_snapshot()")
        return bool(self.standby.execute("SELECT 1 FROM pg_replication_slots WHERE synced AND NOT temporary"))


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        primary = stack.enter_context(start_postgres())
        standby = stack.enter_context(primary.standby("standby_1", sync_replication_slots="on"))
        primary.execute("ALTER SYSTEM SET synchronized_standby_slots = 'standby_1'")
        primary.execute("SELECT pg_reload_conf()")
        yield Pair(primary, standby)


@pytest.mark.skipif((chosen_version() or 18) < 17, reason="slots are synchronized from Postgres 17 on")
def test_capture_continues_on_the_promoted_standby(pair: Pair, tmp_path: Path) -> None:
    home = Home(tmp_path / "home", pair)
    with connect_replication(pair.primary.url) as replication:
        replication.execute("ALTER_REPLICATION_SLOT penstock_shop (FAILOVER true)")
    with capture_process(home) as process:
        home.insert(1)
        home.wait_for(1)
        until(pair.slot_is_synchronized, "the slot on the standby")
        pair.primary.kill()
        pair.standby.promote()
        home.insert(2)
        home.wait_for(1, 2)
        process.kill()  # the next process only has the catalog and a log that ends after the timeline switch
    assert postgres_instance_of(home.record).timeline == 2
    with capture_process(home):
        home.insert(3)
        home.wait_for(1, 2, 3)
