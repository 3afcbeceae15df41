"""What the learners on hidden states cannot do with a model, a task or an option is said, with exit code 2."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dualscope.core.errors import InputError
from dualscope.models import Model
from dualscope.models.architecture.parts import output_projection, written_by_heads
from dualscope.models.loading import load as loading
from tests.models.tiny import tiny_model
from tests.studies.conftest import write_task


@pytest.fixture
def refused(cli: Callable[..., Any], model_folder: str, tmp_path: Path) -> Callable[[str, dict[str, Any]], str]:
    """Runs a study of the small model, and gives what is said against it."""

    def run(task: str, more: dict[str, Any]) -> str:
        study = {"models": [model_folder], "tasks": [task], "seeds": 1, "shots": 4, "queries": 6, "lr": [0.1]}
        (tmp_path / "study.yaml").write_text(json.dumps(study | {"controls": []} | more))
        out = ("--out", tmp_path / "run", "--no-report", "--device", "cpu", "--jobs", 1)
        result = cli("run", tmp_path / "study.yaml", *out)
        said = " ".join(result.err.split())
        assert result.code == 2, (result.code, said, result.out)
        assert "Traceback" not in said
        return said

    return run


def test_too_few_spare_examples(refused: Callable[[str, dict[str, Any]], str], tmp_path: Path) -> None:
    task = write_task(tmp_path, "small", 0, ("Negative", "Positive"))
    lines = (tmp_path / "small-train.jsonl").read_text().split("\n")
    (tmp_path / "small-train.jsonl").write_text("\n".join(lines[:30]))
    said = refused(task, {"learners": ["kernel"]})
    assert "task 'small': a setting is chosen on at least 50 spare training examples, and 26 are left" in said
    assert "give the setting yourself" in said


@pytest.mark.parametrize("learner", ["task-vector", "kernel", "function-vector"])
def test_a_layer_that_does_not_exist(
    refused: Callable[[str, dict[str, Any]], str], task_files: tuple[str, str], learner: str
) -> None:
    more: dict[str, dict[str, Any]] = {"kernel": {"temperature": 0.1}, "function-vector": {"which": [[0, 0]]}}
    entry = {"learner": learner, "options": {"layer": 7, **more.get(learner, {})}}
    said = refused(task_files[0], {"learners": [entry]})
    assert f"learner '{learner}': option 'layer'" in said
    assert "layers 0 to 1, found 7" in said


def test_queries_of_a_task_with_other_classes(
    refused: Callable[[str, dict[str, Any]], str], task_files: tuple[str, str]
) -> None:
    said = refused(task_files[0], {"learners": ["gd"], "queries_from": task_files[1]})
    assert "queries_from: the classes of 'kinds' are Yes, No, those of 'moods' Negative, Positive" in said


def test_a_function_vector_of_three_demonstrations_and_nothing_spare(
    refused: Callable[[str, dict[str, Any]], str], tmp_path: Path
) -> None:
    listed = [{"text": text, "label": label} for text, label in zip(("good", "bad", "great"), (1, 0, 1), strict=True)]
    mine = {"name": "mine", "template": "Text: {text} Label:", "labels": ["Negative", "Positive"]}
    (tmp_path / "mine.yaml").write_text(json.dumps(mine | {"demonstrations": listed, "queries": listed[:2]}))
    said = refused(str(tmp_path / "mine.yaml"), {"learners": ["function-vector"], "shots": 3, "queries": 2})
    assert "task 'mine': the indirect effect of heads is taken of at least 4 spare training examples" in said
    assert "there are 3; give more, or name the heads yourself (option 'which')" in said


class Opaque(torch.nn.Module):
    """A projection that runs and shows no weights, as those of some quantised models."""

    def __init__(self, inside: torch.nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inside(given)
        return found


def test_a_model_whose_output_projection_cannot_be_read(
    refused: Callable[[str, dict[str, Any]], str], task_files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = loading.load

    def loaded(*args: Any, **options: Any) -> Model:
        model = load(*args, **options)
        for attention in model.attentions:
            attention.c_proj = Opaque(attention.get_submodule("c_proj"))
        return model

    monkeypatch.setattr(loading, "load", loaded)
    given = {"layer": 0, "which": [[0, 0]]}
    said = refused(task_files[0], {"learners": [{"learner": "function-vector", "options": given}]})
    assert "the output projection of layer 0 is a Opaque, whose weights cannot be cut into heads" in said


def test_heads_whose_output_projection_cannot_be_read() -> None:
    """Its message is what a run ends with, as those above are."""
    model = Model(*tiny_model("gpt2", seed=0, n_layer=1))
    heads = torch.zeros(1, model.n_heads, model.width // model.n_heads)
    assert written_by_heads(model, 0, heads).shape == (1, model.n_heads, model.width)
    model.attentions[0].c_proj = torch.nn.Identity()
    with pytest.raises(InputError, match=r"the output projection of layer 0 is a Identity, whose weights"):
        written_by_heads(model, 0, heads)
    del model.attentions[0].c_proj
    with pytest.raises(InputError, match=r"layer 0 has no 'c_proj', so what its heads write cannot be read"):
        output_projection(model, 0)
