"""Docs stay correct: the reference matches the code, and the commands and statements on the pages are valid."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from docs.generate import EXIT_CODES, FOLDER, pages
from docs.generate.detected import DETECTED, Detected
from typer.core import TyperArgument, TyperOption

import penstock
from penstock import errors
from penstock.catalog.states import SinkState, SourceState, TableState
from penstock.cli.main import app
from penstock.errors import UsageError
from penstock.executor import described_sink, described_source, parsed
from penstock.spark.jars import locked_jars
from penstock.sql.script import split_statements
from penstock.sql.statements import CreateSink, CreateSource
from tests.test_layers import MAY_IMPORT

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
WRITTEN = [*PAGES, *DOCS.glob("*.svg"), *DOCS.glob("generate/*.py"), ROOT / "zensical.toml"]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")

every_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(path: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    return [code for found, code in FENCE.findall(path.read_text(encoding="utf-8")) if found == language]


def prose(path: Path) -> str:
    """Return a page without its fenced blocks."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-") for heading in headings}


def section(command: str) -> str:
    """Return the section of the reference about one command."""
    text = (FOLDER / "cli.md").read_text(encoding="utf-8")
    return text.partition(f"## penstock {command}\n")[2].partition("\n## ")[0]


def option_names(command: Any) -> set[str]:
    """Return all spellings of a command's options."""
    return {name for p in command.params if isinstance(p, TyperOption) for name in p.opts} | {"--help"}


def typed_commands(path: Path) -> Iterator[list[str]]:
    """Yield the words of each ``penstock`` command in the shell blocks of a page."""
    for block in blocks(path, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0].split("/")[-1] == "penstock":
                yield words[1:]


def unknown_words(words: list[str]) -> list[str]:
    """Return the words of a command that the command line would reject."""
    if words[0] in ("--help", "--version"):
        return []
    if words[0] not in COMMANDS:
        return [words[0]]
    command = COMMANDS[words[0]]
    takes_value = {name for p in command.params if isinstance(p, TyperOption) and not p.is_flag for name in p.opts}
    room = sum(99 if p.nargs == -1 else 1 for p in command.params if isinstance(p, TyperArgument))
    rest, unknown = iter(words[1:]), []
    for word in rest:
        if word.startswith("-"):
            unknown += [] if word in option_names(command) else [word]
            next(rest, None) if word in takes_value else None
        elif room:
            room -= 1
        else:
            unknown.append(word)
    return unknown


# -- the reference -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "text"), pages().items(), ids=lambda value: value if len(value) < 40 else "")
def test_the_reference_is_current(name: str, text: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == text, "run: python -m docs.generate"


@pytest.mark.parametrize("page", ["reference/tail.md", "reference/spark-source.md", "design.md"])
def test_pages_document_gaps_in_ordinals(page: str) -> None:
    """Ordinals are assigned before it is known which changes are rolled back; see `test_ordinals_rise_with_gaps`."""
    parts = re.split(r"\n(?=[-|])", (DOCS / page).read_text("utf-8"))
    passages = [part for part in parts if re.search(r"\| `_?ordinal`|\*ordinal\*", part)]
    assert passages
    assert [part for part in passages if not {"rises", "gaps"} <= set(re.findall(r"\w+", part))] == []


SOURCES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")}


@pytest.mark.parametrize(
    "line", [line for lines in DETECTED.values() for line in lines], ids=lambda line: line.what[:50]
)
def test_each_documented_detection_has_a_message_and_a_test(line: Detected) -> None:
    if line.says:
        joined = (re.sub(r'"\s*\n\s*f?"', "", text) for text in SOURCES.values())
        assert any(line.says in text for text in joined), "no message in src contains this text"
    path, _, name = line.test.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    name, _, case = name.partition("[")
    assert f"def {name}(" in text if name else "def test_" in text
    assert case.rstrip("]").partition("-")[2] in text


def test_every_page_of_the_reference_is_generated() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(pages())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_in_the_reference(name: str) -> None:
    text = section(name)
    options = {option for p in COMMANDS[name].params if isinstance(p, TyperOption) for option in p.opts}
    arguments = {str(p.name).upper() for p in COMMANDS[name].params if isinstance(p, TyperArgument)}
    assert {word for word in options | arguments if f"`{word}`" not in text} == set()
    assert f"penstock {name} " in text


def test_every_state_exit_code_and_error_is_in_the_reference() -> None:
    states = (FOLDER / "states.md").read_text(encoding="utf-8")
    assert [s for s in [*SourceState, *TableState, *SinkState] if f"| `{s.value}` |" not in states] == []
    text = (FOLDER / "errors.md").read_text(encoding="utf-8")
    raised = [name for name in errors.__all__ if name.endswith("Error")]
    assert {getattr(errors, name).exit_code for name in raised} <= set(EXIT_CODES)
    assert [code for code in EXIT_CODES if f"| {code} |" not in text] == []
    assert [name for name in raised if f"`{name}`" not in text] == []


def test_the_design_names_every_layer() -> None:
    text = (DOCS / "design.md").read_text(encoding="utf-8")
    layers = set(MAY_IMPORT) - {"__init__", "pyspark_penstock"}
    assert {layer for layer in layers if f"`{layer}`" not in text} == set()


def test_documented_package_coordinates_match_the_lock() -> None:
    text = (DOCS / "how-to" / "run-on-your-own-spark.md").read_text(encoding="utf-8")
    named = [jar for jar in locked_jars() if jar.artifact.startswith(("delta-spark", "spark-sql-kafka"))]
    assert len(named) == 2
    listed = ",".join(f"{jar.organisation}:{jar.artifact}:{jar.revision}" for jar in named)
    assert f"--packages {listed} " in text


# -- examples on pages -------------------------------------------------------------------------------------------------


@every_page
def test_python_examples_parse_and_use_existing_names(path: Path) -> None:
    for block in blocks(path, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                known = {"penstock": set(penstock.__all__), "home": dir(penstock.Home), "live": dir(penstock.Live)}
                names = known.get(node.value.id)
                extra = {"position", "positions", "timestamp"} if node.value.id == "live" else set()
                assert names is None or node.attr in {*names, *extra}, ast.unparse(node)


@every_page
def test_commands_are_valid(path: Path) -> None:
    unknown = {" ".join(words): unknown_words(words) for words in typed_commands(path) if words}
    assert {line: words for line, words in unknown.items() if words} == {}


@every_page
def test_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = {name for block in blocks(path, "sh") for name in re.findall(r"^make ([a-z]+)", block, re.MULTILINE)}
    assert shown <= targets


@every_page
def test_statements_are_valid(path: Path) -> None:
    for block in blocks(path, "sql"):
        for piece in split_statements(block):
            statement = parsed(piece.text, piece.begins)
            if isinstance(statement, CreateSource):
                described_source(statement)
            elif isinstance(statement, CreateSink):
                described_sink(statement)


def test_error_example_of_the_guide_matches_the_message() -> None:
    (shown,) = blocks(DOCS / "how-to" / "write-statements.md", "text")
    with pytest.raises(UsageError) as caught:
        parsed(
            "CREATE SOURCES shop FROM POSTGRES CONNECTION 'postgresql://db/shop'\n  WITH (retian history = '2 days')"
        )
    assert f"{caught.value}\n" == shown


def test_unknown_words_of_a_command_are_found() -> None:
    assert unknown_words(["fix", "shop"]) == ["fix"]
    assert unknown_words(["sql", "SELECT 1", "--as-if", "x"]) == ["--as-if", "x"]
    assert unknown_words(["run", "postgresql://u@h/d", "--name", "shop"]) == []


# -- links and paths ---------------------------------------------------------------------------------------------------


@every_page
def test_links_resolve(path: Path) -> None:
    for target in LINK.findall(prose(path)):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        page = (path.parent / name).resolve() if name else path
        assert page.is_file(), target
        assert not anchor or anchor in anchors(page), target


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    assert set(re.findall(r'"([\w/-]+\.md)"', text)) == {
        path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")
    }


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_local_path_is_mentioned(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.])/(?:work|root|home|Users|tmp)/\S*", text) == []
    assert str(ROOT) not in text
