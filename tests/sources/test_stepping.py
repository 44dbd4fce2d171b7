"""Instances that take steps: what a kind of its own has to say, and what the rest does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pydantic import BaseModel
from tests.sources import running
from tests.sources.running import Captured

from penstock.errors import DefiniteError, TransientError
from penstock.model import Image, TableName
from penstock.positions import Lsn
from penstock.sources.interface import Kind, Source, SourceOptions
from penstock.sources.polling import SteppingConfig, SteppingFactory, SteppingInstance
from penstock.sources.polling_steps import Notes, Step, deleted, inserted, upserted
from penstock.sources.row_tables import RowTable

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
NAMES = TableName("told", "names")
SCRIPT: list[Callable[[Mapping[str, Any]], Step | None]] = []


class ToldConfig(SteppingConfig):
    def place(self) -> str:
        return "a script"


class ToldSource(Source):
    NAME: ClassVar[str] = "TOLD"
    SqlOptions: ClassVar[type[BaseModel]] = BaseModel
    WithOptions: ClassVar[type[SourceOptions]] = SourceOptions

    def create_instances(self, workers: int) -> Sequence[ToldConfig]:
        return [ToldConfig(source=self.name, tables=(RowTable.of(NAMES, COLUMNS, ("id",)),))]

    def place(self) -> str:
        return "a script"


class ToldInstance(SteppingInstance[ToldConfig]):
    def next_step(self, at: Lsn, noted: Mapping[str, Any]) -> Step | None:
        return SCRIPT.pop(0)(noted) if SCRIPT else None

    def pause(self) -> float:
        return 0.01


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Captured]:
    made = Kind(ToldSource, ToldConfig, lambda: SteppingFactory(ToldInstance))
    monkeypatch.setattr(running, "kind", lambda name: made)
    yield Captured(tmp_path, ToldSource.of("told"))
    SCRIPT.clear()


def rows(*ids: int, name: str = "x") -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": pa.array([name] * len(ids))})


def test_rows_come_change_and_go(told: Captured) -> None:
    keys = pa.record_batch({"id": pa.array([1], pa.int64())})
    steps = [inserted(NAMES, rows(1, 2)), upserted(NAMES, rows(2, name="y")), deleted(NAMES, keys)]
    SCRIPT.append(lambda noted: Step(steps, {"seen": 3}))
    told.run_until(lambda: told.durable() == 1)
    images = told.images("names")
    assert images.column("_ordinal").to_pylist() == [0, 1, 2, 3]
    assert [Image(kind) for kind in images.column("_image").to_pylist()] == [
        *(Image.INSERTED, Image.INSERTED, Image.UPDATED, Image.DELETED_KEY),
    ]
    assert told.rows("names")[-1] == {"id": 1, "name": None}


def test_what_was_noted_is_there_in_the_next_run(told: Captured) -> None:
    found: list[Mapping[str, Any]] = []
    SCRIPT.append(lambda noted: Step([inserted(NAMES, rows(1))], {"a": 1, "b": [2]}))
    SCRIPT.append(lambda noted: Step([inserted(NAMES, rows(2))], {"a": 3}))
    told.run_until(lambda: told.durable() == 2)
    SCRIPT.append(lambda noted: found.append(dict(noted)))
    told.run_until(lambda: bool(found))
    assert found == [{"a": 3, "b": [2]}]


def test_rows_that_do_not_fit_end_the_table(told: Captured) -> None:
    SCRIPT.append(lambda noted: Step([inserted(NAMES, pa.record_batch({"id": ["secret"]}))]))
    told.run_until(lambda: told.durable() == 1)
    error = told.table("names").error
    assert error is not None
    assert error.message == "rows came for told.names that do not fit its columns"
    assert told.images("names").num_rows == 0


def test_a_transient_error_ends_the_run_and_takes_nothing(told: Captured) -> None:
    def breaks(noted: Mapping[str, Any]) -> Step:
        def changes() -> Iterator[Any]:
            yield inserted(NAMES, rows(1))
            message = "the line is bad"
            raise TransientError(message)

        return Step(changes(), {"a": 1})

    SCRIPT.append(breaks)
    with pytest.raises(TransientError, match="the line is bad"):
        told.run_until(lambda: False)
    found: list[Mapping[str, Any]] = []
    SCRIPT.append(lambda noted: found.append(dict(noted)))
    told.run_until(lambda: bool(found))
    assert found == [{}]
    assert told.durable() == 0


def test_a_source_says_what_it_makes(told: Captured) -> None:
    assert [schema.columns for schema in told.source.describe()] == [COLUMNS]
    assert told.source.check().ready
    assert told.config.cleanup() == told.config.by_hand() == []


class TestNotes:
    """Beside a log, and yet in step with it."""

    def test_what_is_beyond_the_log_is_forgotten(self, tmp_path: Path) -> None:
        notes = Notes(tmp_path)
        notes.begin(0, Lsn(0))
        for at in (1, 2, 3):
            notes.note(0, Lsn(at), {"a": at, f"only {at}": True})
        notes.close()
        assert Notes(tmp_path).recall(0, Lsn(2)) == {"a": 2, "only 1": True, "only 2": True}
        assert Notes(tmp_path).recall(0, Lsn(2)) == {"a": 2, "only 1": True, "only 2": True}

    @pytest.mark.parametrize(("generation", "at"), [(0, 3), (1, 2), (0, 1)])
    def test_notes_of_another_log_are_refused(self, tmp_path: Path, generation: int, at: int) -> None:
        notes = Notes(tmp_path)
        notes.begin(0, Lsn(2))
        with pytest.raises(DefiniteError, match="is not known"):
            notes.recall(generation, Lsn(at))

    def test_a_beginning_forgets_everything(self, tmp_path: Path) -> None:
        notes = Notes(tmp_path)
        notes.begin(0, Lsn(0))
        notes.note(0, Lsn(1), {"a": 1})
        notes.begin(1, Lsn(1))
        assert notes.recall(1, Lsn(1)) == {}

    def test_a_file_that_is_damaged_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "notes.db").write_bytes(b"nothing of ours" * 500)
        with pytest.raises(DefiniteError, match="is damaged"):
            Notes(tmp_path)
