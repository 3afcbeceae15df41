"""Tasks as people have them: columns of other names, label words that a model does not know, names in any script."""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from dualscope.tasks import Task
from dualscope.tasks.task_config import TaskConfig
from tests.models.tiny import tiny_tokenizer
from tests.tasks.spoilt import GOOD, save_model, spoil

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sentiment(folder: Path) -> Path:
    """The label is in a column of another name."""
    for split in ("train", "test"):
        rows = [{"sentence": f"a film {i}", "sentiment": "Positive" if i % 2 else "Negative"} for i in range(10)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize(
    "line", ["fields: {label: sentiment}", "label: sentiment", "fields: {label: [mood, sentiment]}"]
)
def test_the_labels_column_may_be_named_among_the_fields(sentiment: Path, line: str) -> None:
    (sentiment / "mine.yaml").write_text(GOOD + line + "\n")
    task = Task.load(sentiment / "mine.yaml")
    assert [example.label for example in task.train] == [0, 1] * 5


def test_a_field_of_the_template_may_be_called_label(sentiment: Path) -> None:
    spoil(sentiment, '"Sentence: {sentence} Label:"', '"{label}: {sentence} Label:"')
    path = sentiment / "mine.yaml"
    path.write_text(path.read_text() + "fields: {label: sentence}\nlabel: sentiment\n")
    assert Task.load(path).train[1].fields == {"label": "a film 1", "sentence": "a film 1"}


def test_what_is_missing_comes_with_the_line_to_write(sentiment: Path, refused: Callable[..., str]) -> None:
    message = refused()
    assert "the label needs the column 'label'; found sentence, sentiment; name it" in message
    assert "for example `label: sentiment`" in message
    spoil(sentiment, "{sentence}", "{text}")
    assert "the template's {text} needs the column 'text'" in (message := refused())
    assert "`fields: {text: sentence}`" in message
    (sentiment / "mine.yaml").write_text(GOOD + "fields: {label: sentiment}\nlabel: mood\n")
    assert "named twice, by `label: mood` and by `fields: {label: sentiment}`" in refused()


def test_label_words_and_texts_that_a_model_does_not_know(folder: Path, cli: Cli) -> None:
    save_model(folder / "model", tiny_tokenizer(), 256)
    code, output, _ = cli("validate", folder / "mine.yaml", "--model", folder / "model")
    assert code == 0
    assert "unknown to the model: 33.3% of the texts' tokens (" in output  # Sentence : text 3 Label :
    assert "warning" not in output
    spoil(folder, "[Negative, Positive]", "[Negative, Wonderful]")
    _, output, _ = cli("validate", folder / "mine.yaml", "--model", folder / "model")
    assert "warning: task 'mine': label word 'Wonderful' is unknown to this model (token '<unk>')" in output
    spoil(folder, "[Negative, Positive]", "[Negative, Very wonderful]")
    _, output, _ = cli("validate", folder / "mine.yaml", "--model", folder / "model")
    assert "label word 'Very wonderful' is partly unknown" in output
    spoil(folder, "[Negative, Positive]", "[Awful, Wonderful]")
    code, _, error = cli("validate", folder / "mine.yaml", "--model", folder / "model")
    assert code == 2
    assert "'Awful' and 'Wonderful' have the same tokens [0] in this model, which does not know these words" in error


def config(name: str) -> TaskConfig:
    return TaskConfig.model_validate(
        {
            "name": name,
            "source": {"files": {"train": "a.csv", "evaluation": "b.csv"}},
            "template": "{x}",
            "labels": ["a", "b"],
        }
    )


@pytest.mark.parametrize(
    "name", ["sst2", "настроение", "感情分析", "भावना", "مشاعر", "می‌خواهم", "ความรู้สึก", "émotion-2.1_b", "감정"]
)
def test_names_in_any_script(name: str) -> None:
    assert config(name).name == unicodedata.normalize("NFC", name)
    assert config(unicodedata.normalize("NFD", name)).name == config(name).name


@pytest.mark.parametrize("name", ["", "a b", "../up", "a/b", "-x", ".hidden", "a\x00", "a\u202eb", "x\n", "😀"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a name"):
        config(name)


def test_a_study_with_names_of_other_scripts(folder: Path, cli: Cli) -> None:
    from tests.models.tiny import tiny_model

    hf, tokenizer = tiny_model("gpt2")
    place = folder / "модель-小"
    hf.save_pretrained(place)
    tokenizer.save_pretrained(place)
    spoil(folder, "name: mine", "name: 感情")
    (folder / "mine.yaml").rename(folder / "感情.yaml")
    settings = {"shots": 2, "seeds": 1, "queries": 4, "lr": 0.1, "variant": "trained", "learner": "gd", "jobs": 1}
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    task, out = folder / "感情.yaml", folder / "測試"
    code, output, error = cli("run", "--model", place, "--task", task, *options, "--no-report", "--out", out)
    assert code == 0, error
    assert "модель-小" in output
    assert "感情" in (out / "summary.csv").read_text(encoding="utf-8")
