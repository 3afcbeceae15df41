"""Published figures stand beside a run's own, are matched honestly, and never get into its numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

from dualscope.core.errors import InputError
from dualscope.report.published import publications
from dualscope.report.report_data import Data
from dualscope.report.sections import layers_section as layers
from dualscope.report.sections import published_section as published
from dualscope.report.sections import similarity_section as similarity
from dualscope.report.table import Badge, Number, Table
from tests.report.made import make_run


def compared(run: Path) -> list[tuple[Any, ...]]:
    section = published.section(Data([run]))
    assert section is not None
    tables = [item for item in section.items if isinstance(item, Table) and "difference" in item.columns]
    return [row for table in tables for row in table.rows]


def test_says_difference_and_whether_in_the_interval(plain_run: Path) -> None:
    rows = {(row[1], row[2], row[3], row[-1]): row for row in compared(plain_run)}
    row = rows["sst2", "gd", "sim_aou_norm", "Rethinking 2023, Table 2"]
    assert row[4].value == 0.1091
    assert row[6].value == pytest.approx(row[5].value - 0.1091)
    inside = row[5].low <= 0.1091 <= row[5].high
    assert row[7] == Badge("yes" if inside else "no", "yes" if inside else "no")
    assert rows["sst2", "gd, untrained", "sim_aou_norm (?)", "Revisited 2024, logs"][4].value == 0.114


def test_embedded_tasks_are_other_tasks(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tasks=["embedded-sst2", "embedded-subj"])
    assert compared(run) == []
    for make in (similarity.section, layers.section):
        section = make(Data([run]))
        assert section is not None
        names = [trace["name"] for chart in section.charts() for panel in chart.panels for trace in panel.data]
        assert names
        assert not [name for name in names if "published" in name]


def test_drawn_beside_and_labelled(plain_run: Path) -> None:
    section = similarity.section(Data([plain_run]))
    assert section is not None
    chart = next(chart for chart in section.charts() if chart.id == "similarity-sim_aou_norm")
    names = [trace["name"] for trace in chart.panels[0].data]
    assert "gd: fairseq 1.3B, published" in names
    assert not any("untrained" in name and "published" in name for name in names)  # uncertain: tables only
    everything = [e for row in chart.table.rows for e in row if isinstance(e, Number)]
    assert 0.1091 not in [e.value for e in everything]


def test_layers_are_stretched_to_the_model(plain_run: Path) -> None:
    section = layers.section(Data([plain_run]))
    assert section is not None
    chart = next(chart for chart in section.charts() if chart.id == "layers-sim_am_delta")
    traces = [t for t in chart.panels[0].data if "published" in t["name"]]
    assert len(traces) == 2
    assert all(len(t["x"]) == 24 and t["x"][-1] == 2 for t in traces)


def test_package_has_what_was_published(shared: Path) -> None:
    papers = json.loads((shared / "reference" / "papers.json").read_text())
    known = publications()

    def value(task: str, metric: str, learner: str, source: str) -> float:
        return next(f.value for f in known.find(task, metric, learner) if f.source == source)

    table = papers["rethinking_2023_table2"]
    for i, task in enumerate(table["columns"]):
        assert value(task, "sim_aou_norm", "gd", "rethinking-2") == table["sim_aou_norm_gd"][i]
        assert value(task, "sim_am", "lcgd", "rethinking-2") == table["sim_am.lcgd"][i]
    table = papers["rethinking_2023_table1"]
    for i, task in enumerate(table["columns"]):
        assert value(task, "accuracy", "in-context", "rethinking-1") == pytest.approx(table["icl_accuracy"][i] / 100)
        assert value(task, "jaccard", "gd", "rethinking-1") == pytest.approx(table["jaccard"][i] / 100)
    for row in papers["revisited_2024_runs"]["rows"]:
        found = [f for f in known.find(row["task"], "sim_am_delta", row["learner"]) if f.source == "revisited-runs"]
        assert list(found[0].per_layer) == row["sim_am_delta"]["per_layer"]
        assert (found[0].value, found[0].std) == (row["sim_am_delta"]["mean"], row["sim_am_delta"]["std"])
    assert all(f.uncertain for f in known.figures if f.source == "revisited-untrained")


def test_a_published_table_has_its_own_layout_with_these_runs_below(plain_run: Path) -> None:
    data = Data([plain_run])
    (table,) = published.tables(data, "rethinking-2")
    assert table.columns == ("", "model", "sst2", "sst5", "mr", "subj", "agnews", "cb", "average")
    at = next(i for i, row in enumerate(table.rows) if row[0] == "sim_aou_norm, gd")
    line, below = table.rows[at], table.rows[at + 1]
    assert [entry.value for entry in line[2:]] == [0.1091, 0.113, 0.219, 0.1932, 0.3053, 0.2013, 0.1901]  # type: ignore[union-attr]
    own = data.subjects[0].get("sst2", "gd", "sim_aou_norm")
    assert own is not None
    assert below[0] == ""
    assert below[2].value == own["value"]  # type: ignore[union-attr]
    assert below[-1].value is None  # type: ignore[union-attr]  # the run has some of the tasks alone
    titles = {one.title for one in published.tables(data)}
    assert "Rethinking 2023, Table 2: fairseq 1.3B, published, and here" in titles


def test_an_unknown_table_names_the_known(plain_run: Path) -> None:
    with pytest.raises(InputError, match=r"--published rethinking-9: .*rethinking-1"):
        published.tables(Data([plain_run]), "rethinking-9")
