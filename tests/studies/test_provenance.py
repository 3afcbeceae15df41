"""What is known of a run: written again where it is damaged, and not overwritten by a neighbour."""

from pathlib import Path
from typing import Any

import pytest

from dualscope import run_study
from dualscope.studies import Study
from dualscope.studies.execute.runner import Runner
from dualscope.studies.provenance import known, record


@pytest.mark.parametrize("content", ["[1, 2]", "null", "3", "{", '{"where": 3, "episodes": [], "names": "x"}'])
def test_a_damaged_provenance_is_written_again(fields: dict[str, Any], tmp_path: Path, content: str) -> None:
    before = known(run_study(fields | {"seeds": 1}, tmp_path, device="cpu").run)
    for file in [tmp_path / "provenance.json", *(tmp_path / "provenance").iterdir()]:
        file.write_text(content)
    again = known(run_study(fields | {"seeds": 1}, tmp_path, device="cpu").run)
    assert {**again, "at": "", "devices": []} == {**before, "at": "", "devices": []}


def test_no_process_overwrites_what_another_knows(fields: dict[str, Any], tmp_path: Path) -> None:
    """Both have read what is known before either writes."""
    first, second = (Runner(Study.build(fields | {"seeds": [seed]}), tmp_path, device="cpu") for seed in (0, 1))
    plans = [runner.plan() for runner in (first, second)]
    for runner, plan in zip((first, second), plans, strict=True):
        record(runner.run, runner.resolver, plan, runner.weights, runner.where, runner.dtypes)
    assert len(known(first.run)["episodes"]) == 2
    assert len(first.run.read_json("provenance.json")["episodes"]) == 2
