"""The documented examples run: a plugin, and rows recomputed from trace files alone."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualscope import run_study
from dualscope.findings.summary import summarise
from dualscope.findings.verdict import stored_cells
from dualscope.learners import LEARNERS
from dualscope.metrics import METRICS
from dualscope.report.report_data import Data
from dualscope.report.sections import plugin_metrics_section as plugin_metrics
from dualscope.studies import Study
from dualscope.studies.execute.runner import Runner

REPOSITORY = Path(__file__).parents[2]
PLUGIN, RECOMPUTE = (REPOSITORY / "examples" / f"{name}.py" for name in ("plugin", "recompute"))


def test_the_plugin_of_the_docs(fields: dict[str, Any], forget: None, tmp_path: Path) -> None:
    study = fields | {"plugins": [str(PLUGIN)], "learners": ["gd", "gd-twice"]}
    result = run_study(study, tmp_path / "run", device="cpu")
    assert result.complete, result.failures
    rows = result.run.rows().to_pylist()
    assert {row["learner"] for row in rows if row["metric"] == "certainty"} >= {"zero-shot", "gd", "gd-twice"}
    norms = {row["learner"]: row["value"] for row in rows if row["metric"] == "accuracy"}
    assert set(norms) == {"zero-shot", "in-context", "gd", "gd-twice"}
    assert run_study(study, tmp_path / "run", device="cpu").computed == []
    summarise(result.run, stored_cells(result.run, result.cells))
    for _ in range(2):  # while the plugin is loaded, and where it is not known
        section = plugin_metrics.section(Data([tmp_path / "run"]))
        assert section is not None
        (chart,) = section.charts()
        assert chart.metrics == ("certainty",)
        assert {trace["name"] for trace in chart.panels[0].data} == set(norms)
        METRICS._items.pop("certainty", None)


def test_the_plugins_names_are_listed(cli: Callable[..., Any], forget: None) -> None:
    assert "gd-twice" not in cli("list", "learners").out
    for kind, name in (("learners", "gd-twice"), ("metrics", "certainty")):
        listed = cli("list", kind, "--plugin", PLUGIN)
        assert listed.code == 0
        assert f"\n{name} " in listed.out
    missing = cli("list", "learners", "--plugin", "nowhere.py")
    assert missing.code == 2
    assert "nowhere.py" in missing.err


def test_a_changed_plugin_makes_new_cells_of_its_own_learners(
    fields: dict[str, Any], forget: None, tmp_path: Path
) -> None:
    def ids(text: str) -> dict[str, set[str]]:
        forgetting = [name for name in sys.modules if name.startswith("dualscope_plugin_")]
        for name in forgetting:
            del sys.modules[name]
        LEARNERS._items.pop("gd-twice", None)
        file = tmp_path / "mine.py"
        file.write_text(text)
        study = Study.build(fields | {"plugins": [str(file)], "learners": ["gd", "gd-twice"]})
        cells = Runner(study, tmp_path / "run").plan().cells
        return {name: {c.id for c in cells if c.learning.name == name} for name in ("gd", "gd-twice")}

    source = PLUGIN.read_text().partition("@simple_metric")[0]
    first, second = ids(source), ids(source.replace("2.0", "3.0"))
    assert first["gd"] == second["gd"]
    assert not first["gd-twice"] & second["gd-twice"]


def test_the_plugin_is_short() -> None:
    code = [line for line in PLUGIN.read_text().splitlines() if line.strip()]
    assert len(code) <= 15
    code = [line for line in RECOMPUTE.read_text().splitlines() if line.strip()]
    assert len(code) <= 30


def test_rows_recomputed_from_traces(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(fields | {"save_traces": True}, tmp_path, device="cpu")
    monkeypatch.setattr(sys, "argv", [str(RECOMPUTE), str(tmp_path)])
    capsys.readouterr()
    runpy.run_path(str(RECOMPUTE), run_name="__main__")
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert {(line[0], line[1]) for line in lines} >= {("gd", "sim_aou"), ("gd", "sim_am"), ("zero-shot", "accuracy")}
    mine, stored = np.array([line[3:] for line in lines], float).T
    np.testing.assert_allclose(mine, stored, rtol=1e-5, atol=1e-6)
    assert len(runpy.run_path(str(RECOMPUTE))) > 0


def test_the_docs_show_the_plugin_as_it_is() -> None:
    assert PLUGIN.read_text() in (REPOSITORY / "docs/studies.md").read_text()
