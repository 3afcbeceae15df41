"""Every answer that is none comes with a command."""

from typing import Any, get_args

import pytest

from dualscope.findings.answer import Word
from dualscope.findings.next_options import next_steps
from dualscope.findings.response_rule import ResponseWord

SILENT = {"labels ignored", "labels copied", "cannot tell", "inconclusive"}


def _answer(word: str, needed: int | None = None, task: str = "sst2") -> dict[str, Any]:
    likeness = {"missing": [], "decided_by": "dilution", "comparisons": [{"control": "dilution", "seeds_needed": 7}]}
    return {"task": task, "learner": "gd", "answer": word, "seeds_needed": needed, **likeness}


@pytest.mark.parametrize("word", get_args(ResponseWord))
@pytest.mark.parametrize("needed", [None, 9])
def test_a_response(word: str, needed: int | None) -> None:
    steps = next_steps([{"variant": "trained", "answers": [_answer(word, needed)]}], [])
    assert bool(steps) == (word in SILENT)
    if word == "cannot tell":
        assert steps[0].options == ({"--seeds": ["9"]} if needed else {"--demo-labels": ["abstract"]})


@pytest.mark.parametrize("word", get_args(Word))
def test_a_likeness(word: str) -> None:
    steps = next_steps([], [{"answers": [_answer(word)]}])
    assert [step.options for step in steps] == ([{"--seeds": ["7"]}] if word == "inconclusive" else [])


def test_one_command_serves_all_that_need_seeds() -> None:
    answers = [_answer("cannot tell", 8), _answer("cannot tell", 12, "mr"), _answer("cannot tell", 9, "rte")]
    (step,) = next_steps([{"variant": "trained", "answers": answers}], [])
    assert step.options == {"--seeds": ["12"]}
    assert step.tasks == ["sst2", "mr", "rte"]
