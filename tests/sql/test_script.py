"""A script is split at the semicolons that end statements, and errors have the line of the file."""

from __future__ import annotations

import pytest

from penstock.sql.errors import SqlError, StartPosition
from penstock.sql.grammar import parse
from penstock.sql.script import split_statements
from tests.sql.kinds import KINDS


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        ("", []),
        (" ;; \n ; -- nothing;\n /* no;thing */ ;", []),
        ("SHOW SOURCES", ["SHOW SOURCES"]),
        ("SHOW SOURCES; SELECT 1;", ["SHOW SOURCES", "SELECT 1"]),
        ("VERIFY a; -- b;\nVERIFY c", ["VERIFY a", "VERIFY c"]),
        ("VERIFY a /* ; /* ; */ ; */ . b;VERIFY c", ["VERIFY a /* ; /* ; */ ; */ . b", "VERIFY c"]),
        ("SELECT ';', \";\", `;` FROM t; SELECT 2", ["SELECT ';', \";\", `;` FROM t", "SELECT 2"]),
        ("SELECT 'it\\'s; x'; SELECT 2", ["SELECT 'it\\'s; x'", "SELECT 2"]),
        ("REPAIR a.b WHERE x = 'back\\'; SELECT 2", ["REPAIR a.b WHERE x = 'back\\'", "SELECT 2"]),
        ("REPAIR a.b WHERE x = 'it''s;'; SELECT 2", ["REPAIR a.b WHERE x = 'it''s;'", "SELECT 2"]),
        ('ALTER SOURCES s ADD TABLE "a;b".`c;d`; SELECT 2', ['ALTER SOURCES s ADD TABLE "a;b".`c;d`', "SELECT 2"]),
        ("SELECT 1 -- it's\n; SELECT 2", ["SELECT 1 -- it's", "SELECT 2"]),
        ("SELECT 'open; SELECT 2", ["SELECT 'open; SELECT 2"]),
        ("SELECT 1 /* open; SELECT 2", ["SELECT 1 /* open; SELECT 2"]),
    ],
)
def test_where_statements_end(script: str, texts: list[str]) -> None:
    assert [piece.text for piece in split_statements(script)] == texts


def test_each_statement_has_its_start_position() -> None:
    script = "-- a file\n\n  SHOW SOURCES; SELECT 1;\r\n/* then */ VERIFY\n shop"
    assert [piece.begins for piece in split_statements(script)] == [
        StartPosition(3, 3),
        StartPosition(3, 17),
        StartPosition(4, 12),
    ]


def test_error_has_the_line_of_the_file() -> None:
    script = "SHOW SOURCES;\n\nSELECT 1; SHOW SORCES;\nCREATE SOURCES shop\r\n  FROM POSTGRS;\n"
    positions = []
    for piece in split_statements(script):
        try:
            parse(piece.text, KINDS, piece.begins)
        except SqlError as error:
            positions.append((error.line, error.column, error.excerpt))
    assert positions == [
        (3, 16, "  SHOW SORCES\n       ^"),
        (5, 8, "  FROM POSTGRS\n       ^"),
    ]


def test_unterminated_string_is_an_error_with_its_position() -> None:
    (piece,) = split_statements("\n VERIFY 'shop;\n")
    with pytest.raises(SqlError, match="line 2, column 9"):
        parse(piece.text, KINDS, piece.begins)
