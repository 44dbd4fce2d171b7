"""A script is divided at the semicolons that end statements, and errors name the line of the file."""

from __future__ import annotations

import pytest

from penstock.sql.errors import Beginning, SqlError
from penstock.sql.grammar import parse
from penstock.sql.script import divided
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
    assert [piece.text for piece in divided(script)] == texts


def test_each_piece_knows_where_it_begins() -> None:
    script = "-- a file\n\n  SHOW SOURCES; SELECT 1;\r\n/* then */ VERIFY\n shop"
    assert [piece.begins for piece in divided(script)] == [Beginning(3, 3), Beginning(3, 17), Beginning(4, 12)]


def test_an_error_names_the_line_of_the_file() -> None:
    script = "SHOW SOURCES;\n\nSELECT 1; SHOW SORCES;\nCREATE SOURCES shop\r\n  FROM POSTGRS;\n"
    places = []
    for piece in divided(script):
        try:
            parse(piece.text, KINDS, piece.begins)
        except SqlError as error:
            places.append((error.line, error.column, error.excerpt))
    assert places == [
        (3, 11, "  SHOW SORCES\n  ^"),
        (5, 8, "  FROM POSTGRS\n       ^"),
    ]


def test_what_does_not_end_is_an_error_at_its_place() -> None:
    (piece,) = divided("\n VERIFY 'shop;\n")
    with pytest.raises(SqlError, match="line 2, column 9"):
        parse(piece.text, KINDS, piece.begins)
