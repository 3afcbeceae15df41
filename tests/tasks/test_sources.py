"""The same examples, whatever they are kept in: local files, a data folder, the hub's layout, a generator."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualscope import InputError, Task
from dualscope.tasks import GENERATORS, Episode, catalog_names, spare

TEXTS = ["plain", 'a "quoted" one, with a comma', "naïve 东京 🎉", "two\nlines", "sep\u2028arated", "tab\there", "1.50"]
LABELS = [0, 1, 1, 0, 1, 0, 1]
TASK = """\
name: mine
source: {source}
splits: {{train: train, evaluation: {evaluation}}}
template: "{{sentence}} Label:"
labels: [Negative, Positive]
"""


def write(path: Path, columns: dict[str, list[Any]]) -> None:
    """The columns in the format that the file's name asks for."""
    if path.suffix == ".jsonl":
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        import csv

        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))


def task_file(folder: Path, source: str, evaluation: str = "test", more: str = "") -> Path:
    path = folder / "mine.yaml"
    path.write_text(TASK.format(source=source, evaluation=evaluation) + more, encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_local_files(tmp_path: Path, suffix: str) -> None:
    for name in "ab":
        write(tmp_path / f"{name}{suffix}", {"sentence": TEXTS, "label": LABELS})
    task = Task.load(task_file(tmp_path, f"{{files: {{train: a{suffix}, test: b{suffix}}}}}"))
    assert [e.fields["sentence"] for e in task.train] == TEXTS
    assert [e.label for e in task.train] == LABELS
    assert [e.id for e in task.evaluation][:2] == ["test:0", "test:1"]


def test_windows_line_ends_and_byte_order_marks(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfsentence,label\r\nfine,1\r\n\r\nbad,0\r\n")
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"sentence": "fine", "label": 1}\r\n\r\n')
    task = Task.load(task_file(tmp_path, "{files: {train: a.csv, test: a.jsonl}}"))
    assert [(e.fields["sentence"], e.label) for e in task.train] == [("fine", 1), ("bad", 0)]
    assert [(e.fields["sentence"], e.label) for e in task.evaluation] == [("fine", 1)]


@pytest.mark.parametrize(
    ("labels", "more"),
    [
        (["Negative", "Positive"], ""),  # the label words themselves
        (["0", "1"], ""),  # as csv files give numbers
        ([0.0, 1.0], ""),  # as data frames give numbers
        ([False, True], ""),
        (["neg", "pos"], "label_values: [neg, pos]\n"),
        ([1, 2], "label_values: [1, 2]\n"),
        ([-1, 1], "label_values: [-1, 1]\n"),
        (["-1", "1"], "label_values: [-1, 1]\n"),
        ([False, True], "label_values: [false, true]\n"),
    ],
)
def test_labels_of_every_kind(tmp_path: Path, labels: Any, more: Any) -> None:
    write(tmp_path / "a.jsonl", {"sentence": ["x", "y"], "label": labels})
    task = Task.load(task_file(tmp_path, "{files: {train: a.jsonl, test: a.jsonl}}", more=more))
    assert [e.label for e in task.train] == [0, 1]


def test_alternative_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", {"text": ["x"], "gold": [1]})
    write(tmp_path / "b.jsonl", {"sentence": ["y"], "label": [0]})
    more = "fields: {sentence: [sentence, text]}\nlabel: [label, gold]\n"
    task = Task.load(task_file(tmp_path, "{files: {train: a.jsonl, test: b.jsonl}}", more=more))
    assert (task.train[0].fields, task.train[0].label) == ({"sentence": "x"}, 1)
    assert (task.evaluation[0].fields, task.evaluation[0].label) == ({"sentence": "y"}, 0)


def test_one_split_for_both(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", {"sentence": TEXTS, "label": LABELS})
    task = Task.load(task_file(tmp_path, "{files: {train: a.jsonl}}", evaluation="train"))
    assert task.evaluation is task.train


@pytest.mark.parametrize("other", ["a.jsonl", "./a.jsonl", "../{folder}/a.jsonl", "link.jsonl"])
def test_one_file_under_two_names_never_overlaps(tmp_path: Path, other: Any) -> None:
    write(tmp_path / "a.jsonl", {"sentence": TEXTS, "label": LABELS})
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    other = other.format(folder=tmp_path.name)
    task = Task.load(task_file(tmp_path, f"{{files: {{train: a.jsonl, test: {other}}}}}"))
    episode = Episode.draw(task, shots=3, queries=2)
    demonstrations, queries = ({e.id for e in some} for some in (episode.demonstrations, episode.queries))
    assert not demonstrations & queries
    left = {e.id for e in spare(task, [episode])}
    assert left == {f"train:{i}" for i in range(len(TEXTS))} - demonstrations - queries
    written = Task.load(task_file(tmp_path, "{files: {train: a.jsonl}}", evaluation="train"))
    assert task.digest == written.digest


def test_a_tsv_with_quotes_that_do_not_pair_up(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('sentence\tlabel\n"fine" he said\t1\n"bad\t0\nan "odd" one\t0\n')
    task = Task.load(task_file(tmp_path, "{files: {train: a.tsv}}", evaluation="train"))
    with pytest.warns(UserWarning, match=r"a.tsv: the quotes do not pair up"):
        found = [(e.fields["sentence"], e.label) for e in task.train]
    assert found == [('"fine" he said', 1), ('"bad', 0), ('an "odd" one', 0)]


def test_braces_in_texts_and_templates(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", {"sentence": ["{0} {sentence} {{"], "label": [0]})
    path = task_file(tmp_path, "{files: {train: a.jsonl}}", evaluation="train")
    path.write_text(path.read_text().replace("{sentence} Label", "{{set}} {sentence} Label"))
    task = Task.load(path)
    assert task.prompt(task.train[0]) == "{set} {0} {sentence} {{ Label:"


def test_digest_follows_what_the_model_sees(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", {"sentence": TEXTS, "label": LABELS})
    path = task_file(tmp_path, "{files: {train: a.jsonl, test: a.jsonl}}")
    digest = Task.load(path).digest
    assert Task.load(path).digest == digest
    path.write_text(path.read_text() + "note: nobody sees this\n")
    assert Task.load(path).digest == digest
    for old, new in (("Label:", "Answer:"), ("Positive", "Good")):
        before = path.read_text()
        path.write_text(before.replace(old, new))
        assert Task.load(path).digest != digest
        path.write_text(before)
    write(tmp_path / "a.jsonl", {"sentence": TEXTS[:-1], "label": LABELS[:-1]})
    assert Task.load(path).digest != digest


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_data_folder_in_place_of_the_hub(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "sst2").mkdir()
    for split in ("train", "validation"):
        write(tmp_path / "sst2" / f"{split}{suffix}", {"text": TEXTS, "label": LABELS})
    task = Task.load("sst2", data=tmp_path)
    assert task.prompt(task.train[0]) == "Sentence: plain Label:"
    assert [e.label for e in task.evaluation] == LABELS


def test_data_folder_needs_no_datasets(tmp_path: Path) -> None:
    """--data must work where `datasets` is slow to import, broken or absent."""
    import subprocess
    import sys

    (tmp_path / "mr").mkdir()
    for split in ("train", "validation"):
        write(tmp_path / "mr" / f"{split}.jsonl", {"text": TEXTS, "label": LABELS})
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "from dualscope import Task, Episode\n"
        f"Episode.draw(Task.load('mr', data={str(tmp_path)!r}), shots=2)\n"
        "assert 'torch' not in sys.modules and 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def parity() -> str:
    """A generator, registered once."""
    if "test-parity" not in GENERATORS:

        @GENERATORS.register("test-parity")
        def parity(n: int, rng: np.random.Generator) -> list[dict[str, str | int]]:
            numbers = rng.permutation(10 * n)[:n]
            return [{"sentence": str(number), "label": int(number % 2)} for number in numbers]

    return "test-parity"


def test_generated(tmp_path: Path, parity: Any) -> None:
    source = f"{{generator: {{name: {parity}, seed: 3, train: 20, evaluation: 10}}}}"
    task = Task.load(task_file(tmp_path, source, evaluation="evaluation"))
    assert (len(task.train), len(task.evaluation)) == (20, 10)
    assert not {e.fields["sentence"] for e in task.train} & {e.fields["sentence"] for e in task.evaluation}
    assert Task.load(tmp_path / "mine.yaml").digest == task.digest
    other = Task.load(task_file(tmp_path, source.replace("seed: 3", "seed: 4"), evaluation="evaluation"))
    assert other.digest != task.digest


def test_a_generator_that_makes_too_few(tmp_path: Path) -> None:
    if "test-lazy" not in GENERATORS:
        GENERATORS.add("test-lazy", lambda n, rng: [{"sentence": "x", "label": 0}])
    source = "{generator: {name: test-lazy, train: 2, evaluation: 2}}"
    with pytest.raises(InputError, match="made 1 examples, 4 were asked for"):
        _ = Task.load(task_file(tmp_path, source, evaluation="evaluation")).train


def test_the_catalog() -> None:
    papers = {"sst2", "sst5", "mr", "subj", "agnews", "cb"}
    assert papers | {"rte", "trec", "dbpedia_14", "boolq", "imdb", "cola"} <= set(catalog_names())
    for name in catalog_names():
        task = Task.load(name)
        assert task.name == name
        assert task.template.endswith(":")


@pytest.mark.parametrize(
    ("name", "dataset", "template", "labels"),
    [
        ("sst2", "nyu-mll/glue", "Sentence: {sentence} Label:", "Negative Positive"),
        ("sst5", "SetFit/sst5", "Sentence: {text} Label:", "terrible bad neutral good great"),
        ("mr", "cornell-movie-review-data/rotten_tomatoes", "Review: {text} Sentiment:", "Negative Positive"),
        ("subj", "SetFit/subj", "Input: {text} Type:", "objective subjective"),
        (
            "agnews",
            "fancyzhx/ag_news",
            "Classify the news articles into the categories of World, Sports, Business, and Technology. "
            "Article: {text} Answer:",
            "World Sports Business Technology",
        ),
        (
            "cb",
            "aps/super_glue",
            "{premise} Question: {hypothesis}. True, False, or Neither? Answer:",
            "True False Neither",
        ),
    ],
)
def test_the_papers_tasks_are_as_published(name: str, dataset: Any, template: Any, labels: Any) -> None:
    task = Task.load(name)
    source = task.config.source
    assert source is not None
    assert source.hub is not None
    assert source.hub.dataset == dataset
    assert task.template == template
    assert task.labels == tuple(labels.split())


@pytest.mark.shared
@pytest.mark.parametrize("name", ["sst2", "sst5", "mr", "subj", "agnews", "cb"])
def test_real_data(name: str, shared: Path) -> None:
    task = Task.load(name, data=shared / "data")
    assert {e.label for e in task.train} == set(range(len(task.labels)))
    assert "{" not in task.template.format_map(task.evaluation[0].fields).split("Label")[-1]


@pytest.fixture
def hub_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set as the hub keeps it: Parquet files by configuration, and a card that names them."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    repository = tmp_path / "repository"
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    for split, labels in (("train", LABELS), ("validation", LABELS[::-1]), ("test", [-1] * len(LABELS))):
        path = repository / "reviews" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = datasets.Dataset.from_dict({"sentence": TEXTS, "label": labels}, features=features)
        data.to_parquet(path)
    splits = "".join(f"  - split: {split}\n    path: reviews/{split}-*\n" for split in ("train", "validation", "test"))
    (repository / "README.md").write_text(
        f"---\nconfigs:\n- config_name: reviews\n  data_files:\n{splits}---\n# Reviews\n"
    )
    return repository


HUB = "{hub: {dataset: ./repository, config: reviews}}"


@pytest.mark.parametrize("offline", [False, True])
def test_the_hubs_layout(tmp_path: Path, hub_repository: Path, offline: bool) -> None:
    task = Task.load(task_file(tmp_path, HUB, evaluation="validation"), offline=offline)
    assert [e.fields["sentence"] for e in task.train] == TEXTS
    assert [e.label for e in task.train] == LABELS
    assert [e.label for e in task.evaluation] == LABELS[::-1]


def test_class_names_of_the_hub(tmp_path: Path, hub_repository: Path) -> None:
    more = "label_values: [pos, neg]\n"  # another order than the data set's
    task = Task.load(task_file(tmp_path, HUB, evaluation="validation", more=more))
    assert [e.label for e in task.train] == [1 - label for label in LABELS]


@pytest.mark.parametrize("more", ["", "label_values: [neg, pos]\n"])
def test_hub_split_without_labels_is_named(tmp_path: Path, hub_repository: Path, more: Any) -> None:
    task = Task.load(task_file(tmp_path, HUB, evaluation="test", more=more))
    with pytest.raises(InputError, match="the split 'test' has no labels"):
        _ = task.evaluation


def test_unknown_split_of_the_hub(tmp_path: Path, hub_repository: Path) -> None:
    task = Task.load(task_file(tmp_path, HUB, evaluation="dev"))
    with pytest.raises(InputError, match=r"repository .reviews., split dev: cannot be loaded"):
        _ = task.evaluation


def test_a_loading_script_is_never_run(tmp_path: Path, hub_repository: Path) -> None:
    ran = tmp_path / "ran"
    (hub_repository / "repository.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    (hub_repository / "README.md").unlink()
    with contextlib.suppress(InputError):
        _ = Task.load(task_file(tmp_path, "{hub: {dataset: ./repository}}", evaluation="validation")).train
    assert not ran.exists()


def test_offline_leaves_the_libraries_as_they_were(
    tmp_path: Path, hub_repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    import huggingface_hub.constants as hub

    def settings() -> list[object]:
        config = datasets.config
        return [hub.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE, config.HF_UPDATE_DOWNLOAD_COUNTS]

    before = settings()
    _ = Task.load(task_file(tmp_path, HUB, evaluation="dev"), offline=True).train
    with pytest.raises(InputError):
        _ = Task.load(task_file(tmp_path, HUB, evaluation="dev"), offline=True).evaluation
    assert settings() == before
