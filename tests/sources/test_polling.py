"""Polling instances: the steps of a source kind, and how they are captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pydantic import BaseModel
from tests.sources import source_capture
from tests.sources.source_capture import SourceCapture

from penstock.errors import DefiniteError, TransientError
from penstock.model import Image, TableName
from penstock.positions import Lsn
from penstock.sources.interface import Kind, Source, SourceOptions
from penstock.sources.polling import PollingConfig, PollingFactory, PollingInstance
from penstock.sources.polling_steps import Notes, Step, deleted, inserted, upserted
from penstock.sources.row_tables import RowTable

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
NAMES = TableName("scripted", "names")
SCRIPT: list[Callable[[Mapping[str, Any]], Step | None]] = []


class ScriptedConfig(PollingConfig):
    def place(self) -> str:
        return "a script"


class ScriptedSource(Source):
    NAME: ClassVar[str] = "SCRIPTED"
    SqlOptions: ClassVar[type[BaseModel]] = BaseModel
    WithOptions: ClassVar[type[SourceOptions]] = SourceOptions

    def create_instances(self, workers: int) -> Sequence[ScriptedConfig]:
        return [ScriptedConfig(source=self.name, tables=(RowTable.of(NAMES, COLUMNS, ("id",)),))]

    def place(self) -> str:
        return "a script"


class ScriptedInstance(PollingInstance[ScriptedConfig]):
    def next_step(self, at: Lsn, progress: Mapping[str, Any]) -> Step | None:
        return SCRIPT.pop(0)(progress) if SCRIPT else None

    def pause(self) -> float:
        return 0.01


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceCapture]:
    scripted_kind = Kind(ScriptedSource, ScriptedConfig, lambda: PollingFactory(ScriptedInstance))
    monkeypatch.setattr(source_capture, "kind", lambda name: scripted_kind)
    yield SourceCapture(tmp_path, ScriptedSource.of("scripted"))
    SCRIPT.clear()


def rows(*ids: int, name: str = "x") -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": pa.array([name] * len(ids))})


def test_inserts_upserts_and_deletes(scripted: SourceCapture) -> None:
    keys = pa.record_batch({"id": pa.array([1], pa.int64())})
    steps = [inserted(NAMES, rows(1, 2)), upserted(NAMES, rows(2, name="y")), deleted(NAMES, keys)]
    SCRIPT.append(lambda progress: Step(steps, {"seen": 3}))
    scripted.run_until(lambda: scripted.durable() == 1)
    images = scripted.images("names")
    assert images.column("_ordinal").to_pylist() == [0, 1, 2, 3]
    assert [Image(kind) for kind in images.column("_image").to_pylist()] == [
        *(Image.INSERTED, Image.INSERTED, Image.UPDATED, Image.DELETED_KEY),
    ]
    assert scripted.rows("names")[-1] == {"id": 1, "name": None}


def test_progress_is_available_in_the_next_run(scripted: SourceCapture) -> None:
    found: list[Mapping[str, Any]] = []
    SCRIPT.append(lambda progress: Step([inserted(NAMES, rows(1))], {"a": 1, "b": [2]}))
    SCRIPT.append(lambda progress: Step([inserted(NAMES, rows(2))], {"a": 3}))
    scripted.run_until(lambda: scripted.durable() == 2)
    SCRIPT.append(lambda progress: found.append(dict(progress)))
    scripted.run_until(lambda: bool(found))
    assert found == [{"a": 3, "b": [2]}]


def test_rows_that_do_not_match_fail_the_table(scripted: SourceCapture) -> None:
    SCRIPT.append(lambda progress: Step([inserted(NAMES, pa.record_batch({"id": ["secret"]}))]))
    scripted.run_until(lambda: scripted.durable() == 1)
    error = scripted.table("names").error
    assert error is not None
    assert error.message == "the source produced rows that do not match the columns of table scripted.names"
    assert scripted.images("names").num_rows == 0


def test_transient_error_ends_the_run_and_captures_nothing(scripted: SourceCapture) -> None:
    def breaks(progress: Mapping[str, Any]) -> Step:
        def changes() -> Iterator[Any]:
            yield inserted(NAMES, rows(1))
            message = "the line is bad"
            raise TransientError(message)

        return Step(changes(), {"a": 1})

    SCRIPT.append(breaks)
    with pytest.raises(TransientError, match="the line is bad"):
        scripted.run_until(lambda: False)
    found: list[Mapping[str, Any]] = []
    SCRIPT.append(lambda progress: found.append(dict(progress)))
    scripted.run_until(lambda: bool(found))
    assert found == [{}]
    assert scripted.durable() == 0


def test_source_describes_its_tables(scripted: SourceCapture) -> None:
    assert [schema.columns for schema in scripted.source.describe()] == [COLUMNS]
    assert scripted.source.check().ready
    assert scripted.config.cleanup() == scripted.config.cleanup_statements() == []


class TestNotes:
    """Stored beside the log, and kept consistent with it."""

    def test_progress_beyond_the_log_is_discarded(self, tmp_path: Path) -> None:
        notes = Notes(tmp_path)
        notes.begin(0, Lsn(0))
        for at in (1, 2, 3):
            notes.note(0, Lsn(at), {"a": at, f"only {at}": True})
        notes.close()
        assert Notes(tmp_path).recall(0, Lsn(2)) == {"a": 2, "only 1": True, "only 2": True}
        assert Notes(tmp_path).recall(0, Lsn(2)) == {"a": 2, "only 1": True, "only 2": True}

    @pytest.mark.parametrize(("generation", "at"), [(0, 3), (1, 2), (0, 1)])
    def test_progress_of_another_log_is_rejected(self, tmp_path: Path, generation: int, at: int) -> None:
        notes = Notes(tmp_path)
        notes.begin(0, Lsn(2))
        with pytest.raises(DefiniteError, match="is unknown"):
            notes.recall(generation, Lsn(at))

    def test_begin_discards_all_progress(self, tmp_path: Path) -> None:
        notes = Notes(tmp_path)
        notes.begin(0, Lsn(0))
        notes.note(0, Lsn(1), {"a": 1})
        notes.begin(1, Lsn(1))
        assert notes.recall(1, Lsn(1)) == {}

    def test_damaged_file_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "notes.db").write_bytes(b"nothing of ours" * 500)
        with pytest.raises(DefiniteError, match="is damaged"):
            Notes(tmp_path)
