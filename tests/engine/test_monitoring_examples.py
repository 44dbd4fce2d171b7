"""The dashboard and the alert rules of the examples name only metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.engine.metrics import descriptions

FOLDER = Path(__file__).parents[2] / "examples/monitoring"
GUIDE = Path(__file__).parents[2] / "docs/how-to/monitor-with-prometheus.md"
LABELS = {each.name: {*each.labels} for each in descriptions()} | {
    f"{each.name}_{part}": {*each.labels, *(["le"] if part == "bucket" else [])}
    for each in descriptions()
    if each.type == "histogram"
    for part in ("bucket", "sum", "count")
}
DURATION = re.compile(r"\d+[smhd]")
OTHERS = {"up": {"job", "instance"}}
"""Metrics and labels that Prometheus itself adds."""


def dashboard() -> Any:
    return json.loads((FOLDER / "grafana-dashboard.json").read_text())


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "prometheus-rules.yml").read_text())["groups"]
    assert set(group) == {"name", "rules"}
    return list(group["rules"])


def expressions() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']} {target['refId']}", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]["query"]
    for rule in rules():
        yield f"rule {rule['alert']}", rule["expr"]
    for query in re.findall(r"^\| [^|]*\? \| `(.*)` \|$", GUIDE.read_text(), re.MULTILINE):
        yield f"guide {query}", query


EXPRESSIONS = dict(expressions())
assert len(EXPRESSIONS) == len([*expressions()])


def test_the_guide_and_both_files_have_expressions() -> None:
    kinds = {name.split()[0] for name in EXPRESSIONS}
    assert kinds == {"panel", "variable", "rule", "guide"}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_metrics_and_labels_exist(name: str) -> None:
    text = EXPRESSIONS[name]
    assert all(text.count(a) == text.count(b) for a, b in ("()", "[]", "{}"))
    used = re.findall(r"\b(penstock_\w+|up)\b(?:\{([^}]*)\})?", text)
    assert used
    known = {label for metric, _ in used for label in (LABELS | OTHERS)[metric]}
    for metric, matchers in used:
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", matchers):
            assert label in (LABELS | OTHERS)[metric], (metric, label)
    for grouped in re.findall(r"\b(?:by|without) \(([^)]*)\)", text):
        assert set(re.split(r",\s*", grouped)) <= known, grouped
    for span in re.findall(r"\[([^\]]*)\]", text):
        assert span == "$__rate_interval" or DURATION.fullmatch(span)
    counters = re.findall(r"(?:rate|increase)\((\w+)", text)
    assert all(metric.endswith(("_total", "_bucket")) for metric in counters), "rates are of counters"
    bare = re.findall(r"(?<!rate\()(?<!increase\()\bpenstock_\w+_total\b", text)
    assert not bare, "a counter is used by its rate"


def test_every_metric_that_people_need_is_in_the_dashboard() -> None:
    """The dashboard shows each subject of the status at least once."""
    text = " ".join(expr for name, expr in EXPRESSIONS.items() if name.startswith("panel"))
    for prefix in ("source", "slot", "table", "reader", "sink", "process", "disk", "alarm", "errors", "merge"):
        assert f"penstock_{prefix}" in text


def test_panels_are_complete_and_do_not_overlap() -> None:
    places, ids = set[tuple[int, int]](), list[int]()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & places, panel["title"]
        assert place["x"] + place["w"] <= 24
        places |= cells
        ids.append(panel["id"])
        assert panel["type"] == "row" or (panel["title"] and panel["description"] and panel["targets"])
        assert len({target["refId"] for target in panel.get("targets", [])}) == len(panel.get("targets", []))
    assert len(set(ids)) == len(ids)


def test_legends_name_existing_labels() -> None:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            (metric, *_) = re.findall(r"penstock_\w+", target["expr"])
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= LABELS[metric], panel["title"]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_rules_are_valid(rule: dict[str, Any]) -> None:
    """The structure that Prometheus requires, and what each alert needs to be useful."""
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Penstock[A-Za-z]+", rule["alert"])
    assert DURATION.fullmatch(rule.get("for", "0s"))
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    metrics = re.findall(r"\b(?:penstock_\w+|up)\b", rule["expr"])
    known = {label for metric in metrics for label in (LABELS | OTHERS)[metric]} | {"instance", "job"}
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= known


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
