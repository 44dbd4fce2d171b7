"""A Debezium that cannot run says so. What one writes that can is in `tests/debezium`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import Database

from penstock.errors import DefiniteError
from penstock.testing.debezium import start_debezium
from penstock.testing.kafka import start_kafka


@pytest.mark.deep
def test_what_it_cannot_follow_is_told(database: Database, tmp_path: Path) -> None:
    nowhere = database.server.url_for("nowhere")
    folder = tmp_path / "debezium"
    with start_kafka(tmp_path / "kafka") as broker, pytest.raises(DefiniteError, match="gave up") as caught:
        start_debezium(folder, postgres=nowhere, bootstrap=broker.bootstrap, tables=["public.notes"])
    assert "nowhere" in (folder / "debezium.log").read_text(encoding="utf-8")
    assert "debezium.log" in caught.value.hint
