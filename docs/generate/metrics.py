"""metrics.md, from the definitions of the metrics."""

from __future__ import annotations

from docs.generate.markdown import code, table

from penstock.engine.metrics import descriptions

__all__ = ["page"]

_GROUPS = {
    "The home": (
        "penstock_info",
        "penstock_running",
        "penstock_disk_",
        "penstock_debts",
        "penstock_alarm",
        "penstock_run_state",
        "penstock_spark_restarts",
    ),
    "Sources": ("penstock_source_", "penstock_capture_errors"),
    "Slots": ("penstock_slot_",),
    "Tables": ("penstock_table_",),
    "Readers": ("penstock_reader_",),
    "Sinks": ("penstock_sink_",),
    "Processes": ("penstock_process_",),
}
_RUNNING = "Durations, errors and restarts"
_TEXTS = {
    "Slots": "Only sources that read a replication slot have them. They have no sample while the server does not "
    "answer.",
    "Tables": "The label `table` is the name upstream.",
    "Processes": "The label `process` is `run` (the process of `penstock run`), `capture` (with the label `source`), "
    "`jvm` (Spark), `worker` (Python workers of Spark) or `other`.",
    _RUNNING: "They begin at zero when the process starts, and have samples only in `/metrics` of the process that "
    "runs the home, not in `penstock status --metrics`. A histogram has the series `_bucket`, `_sum` and `_count`.",
}
_INTRODUCTION = """\
`penstock run` serves these metrics at `/metrics`, in the text format of Prometheus; `penstock status --metrics` prints
them. [Monitor with Prometheus](../how-to/monitor-with-prometheus.md) has a dashboard and alert rules. A value that is
unknown, such as the lag while the server does not answer, has no sample.

Positions (`…_lsn`) are 64-bit numbers, and the samples of Prometheus are floating-point numbers: they are exact up to
LSN 200000/0 (8 PiB of WAL), and rounded to a few bytes beyond it. Use them to see whether a position moves, and the
metrics of lag for everything else."""


def page() -> str:
    parts = ["# Metrics", _INTRODUCTION]
    grouped: dict[str, list[list[str]]] = {title: [] for title in (*_GROUPS, _RUNNING)}
    for each in descriptions():
        is_status = each.type != "histogram"
        title = next((t for t, starts in _GROUPS.items() if is_status and each.name.startswith(starts)), _RUNNING)
        labels = ", ".join(map(code, each.labels))
        grouped[title].append([code(each.name), each.type, labels, f"{each.help}."])
    for title, rows in grouped.items():
        parts.append(f"## {title}")
        parts += [_TEXTS[title]] if title in _TEXTS else []
        parts.append(table(["metric", "type", "labels", "meaning"], rows))
    return "\n\n".join(parts)
