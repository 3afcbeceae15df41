"""What is said of a likeness that was computed in many ways."""

from typing import Any

from dualscope.core.rows import SummaryRow
from dualscope.core.words import PAPERS, SPECIFICATIONS
from dualscope.findings.specification_curve import curves

NAMES = list(SPECIFICATIONS)


def rows_of(
    learner: str, first: float, step: float, control: Any = None, variant: Any = "trained", role: Any = "hypothesis"
) -> list[SummaryRow]:
    """Of every specification, in their order."""
    return [
        {
            "model": "tiny", "variant": variant, "task": "sst2", "shots": 4, "learner": learner, "control": control,
            "role": role, "lr": None, "demo_labels": "gold", "corrupt": "both", "queries_from": None,
            "options": "{}",
            "dtype": "float32", "read_at": "prompt-end", "chat": False,
            "balanced": False, "gd_demonstrations": "same", "gd_order": "same", "subset": "all",
            "intervention": None, "family": None, "metric": "sim_aou_specified",
            "value": first + step * i, "low": 0.0, "high": 1.0,
            "reference": name, "seeds": 5, "queries": 9, "each": (),
        }
        for i, name in enumerate(NAMES)
    ]  # fmt: skip


def test_above_in_some_of_all_ways() -> None:
    rows = rows_of("gd", 0.0, 0.01) + rows_of("gd", 0.265, 0.0, "random-labels", role="null")
    rows += rows_of("gd", 0.1, 0.0, variant="untrained") + rows_of("dilution", 0.2, 0.0, role="null")
    rows += rows_of("gd", 0.9, 0.0, "redraw", role="ceiling")  # no control that takes anything away
    (curve,) = curves(rows)
    assert [point.own["value"] for point in curve.points] == sorted(p.own["value"] for p in curve.points)
    assert set(curve.points[0].controls) == {"random-labels", "untrained", "dilution"}
    assert curve.points[0].strongest is not None
    assert curve.points[0].strongest[0] == "random-labels"
    assert curve.words() == (
        "sst2, gd: 0.00 to 0.53 over 54 specifications; above every control in 27 of 54; the papers' is none of them."
    )


def test_no_control_and_no_value() -> None:
    rows = rows_of("gd", 0.3, 0.0)
    rows[0]["value"] = float("nan")
    (curve,) = curves(rows)
    assert len(curve.points) == 53
    assert PAPERS.name == NAMES[0]
    assert curve.words().endswith("53 specifications; no control was measured beside it.")
    assert curves([]) == []
