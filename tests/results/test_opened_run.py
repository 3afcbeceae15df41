"""A run as people hold it: its verdict, its figure, its table, and one sentence where something is missing."""

import sys
from pathlib import Path

import pytest

import dualscope
from dualscope import InputError, Run
from tests.report.made import make_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "mine")


def test_the_verdict_is_the_report_s(place: Path) -> None:
    run = Run.open(place)
    assert run.verdict.startswith(
        "Likeness of the whole change. Above every control that was measured: the likeness of gradient descent is .40"
    )
    assert repr(run) == f"Run.open({str(place)!r})"


def test_several_settings_have_a_line_each(tmp_path: Path) -> None:
    lines = Run.open(make_run(tmp_path / "two", demo_labels=["gold", "random"])).verdict.splitlines()
    assert [line.split(":")[0] for line in lines] == ["tiny, 4 shots", "tiny, 4 shots, random labels"]


def test_a_figure_by_layer(place: Path) -> None:
    pytest.importorskip("matplotlib")
    run = Run.open(place)
    assert [axes.get_title(loc="left") for axes in run.plot().axes] == ["sst2", "subj"]
    figure = run.plot("sim_am", task="subj")
    assert len(figure.axes) == 1
    with pytest.raises(InputError, match="did you mean sim_aou"):
        run.plot("sim_oau")
    with pytest.raises(InputError, match="did you mean subj"):
        run.plot(task="sub")


def test_a_table_in_notebooks(tmp_path: Path) -> None:
    run = Run.open(make_run(tmp_path / "evil", tasks=["<b>t"], model="<script>"))
    text = run._repr_html_()
    assert "<td>gd</td>" in text
    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert "<b>t" not in text


def test_a_name_that_is_nearly_right(place: Path) -> None:
    with pytest.raises(InputError, match="did you mean sim_aou"):
        Run.open(place).table(metric="sim_oau")


@pytest.mark.parametrize(("name", "use"), [("polars", "to_polars"), ("matplotlib.figure", "plot")])
def test_what_is_not_installed_is_one_sentence(
    place: Path, name: str, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"{use}\(\) needs {name.split('.')[0]}: pip install"):
        getattr(Run.open(place), use)()


def test_a_study_from_python_hands_over_the_same_kind_of_run(fields: dict[str, object], tmp_path: Path) -> None:
    outcome = dualscope.run_study(fields, tmp_path / "run", device="cpu")
    assert isinstance(outcome.run, Run)
    assert outcome.run.verdict
    assert "<table>" in outcome.run._repr_html_()
