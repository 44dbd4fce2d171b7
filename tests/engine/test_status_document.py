"""The status as a document: what a running process sends is what another process shows."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from docs.generate.status import _example

from penstock.engine.status_document import HomeStatus


def test_a_document_is_the_status_that_it_was_made_of() -> None:
    status = _example()
    assert HomeStatus.from_json(json.loads(json.dumps(status.as_json()))) == status


@pytest.mark.parametrize(
    "change",
    [{"sources": [{"name": "shop"}]}, {"sources": [1]}, {"unheard_of": 1}, {"disk": {"free": 1}}],
)
def test_a_document_of_another_version_is_an_error(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a status of this version"):
        HomeStatus.from_json({**_example().as_json(), **change})


def test_the_document_is_imported_without_the_modules_of_a_home() -> None:
    code = "import sys, penstock.engine.status_document; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"pyarrow", "psycopg", "pyspark", "numba"}.intersection(loaded)
