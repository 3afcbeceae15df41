"""The page on false likenesses: its figures are written by a script, from rows and from the guard's benchmark."""

from typing import Any

from benchmarks.guard import counts

from docs import fill_validity
from dualscope.learners import LEARNERS
from dualscope.learners.controls import COMBINATORS
from dualscope.metrics import METRICS


def row(learner: str, value: float, **rest: Any) -> dict[str, Any]:
    plain = {"control": None, "variant": "trained", "metric": "sim_aou", "layer": None, "head": None, "step": None}
    return plain | {"model": "m", "task": "t", "reference": "in-context", "learner": learner, "value": value} | rest


def test_figures_are_means_over_seeds() -> None:
    rows = [row("gd", 0.2), row("gd", 0.4), row("gd", 0.9, layer=3), row("dilution", 0.7)]
    rows += [row("gd/random-labels", 0.1, control="random-labels"), row("gd", 0.5, reference="gd")]
    head, _, line = fill_validity.figures(rows).splitlines()
    found = dict(zip((part.strip() for part in head.split("|")), (c.strip() for c in line.split("|")), strict=True))
    assert found["likeness"] == "+0.30"
    assert found["dilution, run"] == "+0.70"
    assert found["random labels"] == "+0.10"
    assert found["untrained"] == "–"


def test_every_column_is_measured_by_something() -> None:
    for learner, control, _, metric in fill_validity.COLUMNS.values():
        assert learner is None or learner in LEARNERS
        assert control is None or control in COMBINATORS
        assert metric in METRICS


def test_the_page_has_places_for_both_tables() -> None:
    text = fill_validity.PAGE.read_text(encoding="utf-8")
    for block in ("figures", "guard"):
        assert "here it is" in fill_validity.fill(text, block, "here it is")


def test_wrong_numbers_and_false_alarms_are_counted() -> None:
    def number(wrong: bool, flagged: bool, snr: float, off: float) -> dict[str, Any]:
        return {"wrong": wrong, "flagged": flagged, "snr": snr, "float32": 0.5 + off, "float64": 0.5}

    rows = [number(True, True, 0.5, 0.3), number(True, False, 2.0, 0.2), number(False, True, 4.0, 0.0025)]
    said = counts([*rows, *(9 * [number(False, False, 1e5, 1e-6)])])
    assert "12 numbers: 1 wrong and flagged, 1 wrong and not flagged, 10 right" in said
    assert "of which 1 flagged (10.0% false alarms)" in said
    assert "1 of these at a signal to noise below 10, off by 0.0025 (median)" in said
    assert said.endswith("the wrong ones have at most 2")
