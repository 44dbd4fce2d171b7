"""A source that several instances capture: each has its own record, log and process, and queries see one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pydantic import BaseModel

from penstock.engine.lifecycle import create_source
from penstock.errors import SourceExistsError, TransientError
from penstock.home import Home
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.interface import Kind, Source, SourceOptions
from penstock.sources.polling import PollingConfig, PollingFactory, PollingInstance
from penstock.sources.polling_steps import Step, inserted
from penstock.sources.row_tables import RowTable
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until

COLUMNS = pa.schema([("n", pa.int64())])
TABLE = TableName("counted", "numbers")


class CounterConfig(PollingConfig):
    number: int

    def place(self) -> str:
        return f"counter {self.number}"


class CounterSource(Source):
    """Counts in two instances: odd and even numbers."""

    NAME: ClassVar[str] = "COUNTER"
    SqlOptions: ClassVar[type[BaseModel]] = BaseModel
    WithOptions: ClassVar[type[SourceOptions]] = SourceOptions

    def create_instances(self, workers: int) -> Sequence[CounterConfig]:
        table = RowTable.of(TABLE, COLUMNS, ("n",))
        numbers = range(min(2, workers))
        return [CounterConfig(source=f"{self.name}_{number}", number=number, tables=(table,)) for number in numbers]


class CounterInstance(PollingInstance[CounterConfig]):
    def next_step(self, at: Lsn, noted: Mapping[str, Any]) -> Step | None:
        if at >= 3:
            return None
        if self._config.number == 1 and at == 2:
            message = "the second counter is stuck"
            raise TransientError(message, "Wait.")
        return Step([inserted(TABLE, pa.record_batch({"n": [2 * int(at) + self._config.number]}))])

    def pause(self) -> float:
        return 0.02


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: None) -> Home:
    kind = Kind(CounterSource, CounterConfig, lambda: PollingFactory(CounterInstance))
    monkeypatch.setattr("penstock.sources.kinds.kinds", lambda: {"COUNTER": kind})
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    return Home(tmp_path / "home")


def test_instances_run_separately_and_are_queried_as_one(home: Home) -> None:
    home.create_source(CounterSource.of("counted"))
    assert home.sources() == ["counted_0", "counted_1"]
    assert home.names() == ["counted"]
    store = MemoryTables()
    with home.run(store) as running:
        running.wait_live(PATIENCE)
        until(lambda: home.frontiers("counted_0").durable == 3, "all of the first instance")
        until(lambda: home.status().sources[1].error == "the second counter is stuck", "the error of the second")
        rows: Any = home.live(store).table("counted.numbers")
        found = {(row["penstock_shard"], row["n"]) for row in rows.to_pylist()}
        assert found == {("1", 0), ("1", 2), ("1", 4), ("2", 1), ("2", 3)}
        assert home.status().sources[0].error is None
    with pytest.raises(SourceExistsError):
        home.create_source(CounterSource.of("counted"))
    home.drop("counted")
    assert home.sources() == []


def test_name_of_an_instance_may_be_taken(home: Home) -> None:
    home.create_source(CounterSource.of("counted"))
    with pytest.raises(SourceExistsError, match="counted_1"):
        create_source(home.path, home._catalog, CounterSource.of("counted_1"))
    with closing(home._catalog.log("counted_1").reader()) as log:
        assert log.frontiers().durable == 0
