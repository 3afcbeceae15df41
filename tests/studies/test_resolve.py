"""Controls for every learner, from a study's file to the verdict: each learner is judged by its own."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dualscope import run_study
from dualscope.core.spec import LearnerSpec
from dualscope.findings.verdict import stored_cells, verdicts
from dualscope.studies import Study
from dualscope.studies.execute.runner import Runner
from dualscope.studies.provenance import known
from dualscope.studies.resolve import other_task
from dualscope.tasks import Task

PLUGIN = '''
from dualscope import LEARNERS, Learned, Learner
from dualscope.learners import Options


@LEARNERS.register("gd-redraw-mine")
class Mine(Learner[Options]):
    """A learner without a rate, whose name looks like another's."""

    def learn(self, bench, lr, options):
        return bench.learned("gd", 0.2)
'''


def written(folder: Path, fields: dict[str, Any]) -> Study:
    """The study by way of a file, as users give it."""
    (folder / "study.yaml").write_text(yaml.safe_dump({"preset": "quick", **fields}))
    return Study.resolve(file=folder / "study.yaml")


@pytest.mark.usefixtures("forget")
def test_own_controls_are_used_by_the_verdict(
    fields: dict[str, Any], task_files: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    study = written(
        tmp_path,
        fields
        | {
            "tasks": list(task_files),
            "plugins": [str(tmp_path / "mine.py")],
            "learners": ["lcgd", "gd-redraw-mine", "null-context"],
            "controls": [
                "random-labels",
                "other-task",
                "random-update",
                {"control": "redraw", "reference": "in-context"},
            ],
            "variants": ["trained"],
        },
    )
    result = run_study(study, tmp_path / "run", device="cpu")
    assert result.complete, result.failures
    asked = {(cell.learning.name, cell.learning.control, cell.role) for cell in result.cells}
    for learner in ("lcgd", "gd-redraw-mine"):
        for control in ("random-labels", "other-task", "random-update"):
            assert (learner, control, "null") in asked
        assert (learner, "redraw", "ceiling") in asked
    names = [Task.load(file).name for file in task_files]
    assert known(result.run)["other_tasks"] == dict(zip(names, reversed(names), strict=True))
    (found,) = verdicts(result.run, stored_cells(result.run, result.cells))
    rows = result.run.rows().to_pylist()
    for answer in found["answers"]:
        who = LearnerSpec.from_facts(answer["learning"])
        comparisons = {c["control"]: c for c in answer["comparisons"]}
        assert {"random-labels", "other-task", "random-update", "mismatched"} <= comparisons.keys()
        # The control's value is that of this learner's own rows, not of GD's.
        own = [
            row["value"]
            for row in rows
            if (row["learner"], row["task"]) == (f"{who.name}/random-labels", answer["task"])
            and (row["metric"], row["reference"], row["layer"]) == ("sim_aou", "in-context", None)
        ]
        assert abs(comparisons["random-labels"]["control_value"]["mean"] - sum(own) / len(own)) < 1e-9
    assert {answer["learning"]["learner"] for answer in found["answers"]} == {"lcgd", "gd-redraw-mine"}


@pytest.mark.usefixtures("forget")
def test_a_learner_without_a_rate_faces_what_one_with_a_rate_does(
    fields: dict[str, Any], task_files: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    study = fields | {
        "tasks": list(task_files),
        "plugins": [str(tmp_path / "mine.py")],
        "learners": ["gd", "gd-redraw-mine", "null-context", "zero-shot-offset"],
        "controls": ["random-labels", "other-task", "redraw"],
    }
    cells = Runner(Study.build(study), tmp_path / "run").plan().cells

    def faced(name: str) -> set[tuple[str | None, tuple[str, ...]]]:
        return {
            (cell.learning.control, tuple(b.name for b in cell.beside if b.name != "gd"))
            for cell in cells
            if cell.learning.name == name
        }

    assert {control for control, _ in faced("gd-redraw-mine")} == {control for control, _ in faced("gd")}
    beside = dict(faced("gd-redraw-mine"))
    assert beside[None] == ("null-context", "zero-shot-offset")


def test_another_task_has_other_label_words_whatever_the_order_of_the_list() -> None:
    def task(name: str, labels: tuple[str, str], words: int) -> Task:
        return Task.from_examples(
            [("word " * words, labels[i % 2]) for i in range(8)],
            labels=labels,
            name=name,
            template="Text: {text} Label:",
        )

    sst2 = task("sst2", ("Negative", "Positive"), 10)
    mr = task("mr", ("negative", "positive"), 10)
    subj = task("subj", ("objective", "subjective"), 12)
    news = task("news", ("World", "Sports"), 40)
    for tasks in ([sst2, mr, subj, news], [news, subj, mr, sst2], [mr, sst2, news, subj]):
        found = other_task(sst2, tasks)
        assert found is not None
        assert found.name == "subj"
    assert other_task(sst2, [sst2, mr]) is None
