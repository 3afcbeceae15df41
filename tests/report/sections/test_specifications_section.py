"""The section on specifications is there where they were measured, and draws every one."""

from math import nan
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from dualscope.core.rows import COLUMNS
from dualscope.core.words import SPECIFICATIONS
from dualscope.report.charts.chart import Chart, Note
from dualscope.report.report_data import Data
from dualscope.report.sections import specifications_section as specifications
from dualscope.studies.run_folder.storage import RunFolder
from tests.report.made import _queries, make_run
from tests.report.test_sections import named


def add_specified(folder: Path, seeds: int = 5) -> None:
    """Of gd and of gd under random labels, which is above it by half of the specifications."""
    run = RunFolder.open(folder)
    names = list(SPECIFICATIONS)
    for seed in range(seeds):
        for place, (control, role) in enumerate(((None, "hypothesis"), ("random-labels", "null"))):
            columns: dict[str, Any] = dict.fromkeys(COLUMNS) | {
                "model": "tiny", "variant": "trained", "task": "sst2", "seed": seed, "order": 0, "shots": 4,
                "shots_used": 4, "learner": "gd", "control": control, "role": role, "lr": 0.1, "demo_labels": "gold",
                "corrupt": "both", "options": "{}", "metric": "sim_aou_specified", "n": 1, "low": nan, "high": nan,
            }  # fmt: skip
            rows: Any = [
                columns | {"reference": name, "value": 0.005 * i if control is None else 0.1325}
                for i, name in enumerate(names)
            ]
            table = {"query": ["a"], "label": [0], "prediction": [0]}
            run.store(f"{256 + 2 * seed + place:020x}", rows, _queries(table))


def test_every_specification_is_drawn_beside_its_controls(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", tasks=["sst2"], learners=())
    assert specifications.section(Data([folder])) is None
    add_specified(folder)
    section = specifications.section(Data([folder]))
    assert section is not None
    (note,) = [item.text for item in section.items if isinstance(item, Note)]
    assert "0.00 to 0.27 over 54 specifications; above every control in 27 of 54" in note
    (chart,) = [item for item in section.items if isinstance(item, Chart)]
    (panel,) = chart.panels
    go.Figure(named(list(panel.data)), named(panel.layout))
    assert {trace["name"]: len(trace["y"]) for trace in panel.data} == {"gd": 54, "random-labels": 54}
    assert len(chart.table.rows) == 54
    assert "all" in chart.table.rows[0]
