"""A Debezium that cannot run reports an error. `tests/debezium` tests its output."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import Database

from penstock.errors import DefiniteError
from penstock.testing.debezium import start_debezium
from penstock.testing.kafka import start_kafka


@pytest.mark.deep
def test_missing_database_is_reported(database: Database, tmp_path: Path) -> None:
    nowhere = database.server.url_for("nowhere")
    folder = tmp_path / "debezium"
    with start_kafka(tmp_path / "kafka") as broker, pytest.raises(DefiniteError, match="exited or failed") as caught:
        start_debezium(folder, postgres=nowhere, bootstrap=broker.bootstrap, tables=["public.notes"])
    assert "nowhere" in (folder / "debezium.log").read_text(encoding="utf-8")
    assert "debezium.log" in caught.value.hint
