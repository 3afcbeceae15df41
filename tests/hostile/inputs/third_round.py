"""What a third round of attacks found: each was once a fault of ours (70), a hang, an exit with 1, or silent."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.inputs.bad import SMALL, Bad, Place

TASK = ("--task", "embedded-sst2", "--out", "{here}/run", *SMALL)
LONG = "m" * 300
RUN = ("run", *TASK, "--lr", "0.1")
DRY = (*RUN, "--dry-run")

OPTIONS = {
    "gd.epochs=.nan": "epochs",
    "gd.epochs=.inf": "epochs",
    "gd.epochs=2001-01-01": "epochs",
    "gd.epochs=" + "9" * 5000: "epochs|number",
    "gd.epochs=1" + "0" * 15: "epochs",
    "gd.layers=[]": "layers",
    "gd.epochs=&a [*a]": "alias",
    "gd.epochs={a: &a {b: *a}}": "alias",
}
COMMANDS: list[tuple[tuple[str, ...], str]] = [
    ((*DRY, "--model", LONG), "model 'mmm.*a name of 300 characters"),
    ((*DRY, "--model", f"owner/{LONG}"), "model 'owner.*a name of 306 characters"),
    ((*DRY, "--model", "http://example.com/model"), "http|address|model"),
    (
        ("run", "--task", "embedded-sst2", "--out", "s3://none-such-bucket/run", *SMALL, "--dry-run"),
        "s3|s3fs|credentials",
    ),
    (("run", "--task", "embedded-sst2", "--out", "http://127.0.0.1:1/run", *SMALL, "--dry-run"), "http"),
    (("report", "http://127.0.0.1:1/run"), "http"),
    (("report", "s3://none-such-bucket/run"), "s3|credentials"),
    (("train", "--out", "{here}/run", "--length", "1" + "0" * 8), "length|memory|large"),
    (("train", "--out", "{here}/run", "--width", "1" + "0" * 8), "width|memory|large"),
    (("train", "--out", "{here}/run", "--batch", "1" + "0" * 10), "batch|memory|large"),
    (("train", "--out", "{here}/run", "--workers", "1" + "0" * 9), "--workers"),
    (("train", "--out", "{here}/run", "--attention", "9" * 5000), "--attention.*a number of 5000 characters"),
    (("train", "--out", "{here}/run", "--attention", "[" * 9000), "--attention.*nested too deeply"),
    ((*DRY, "--model", "embedded", "--shots", "100000"), "100000 shots were asked for, and the split"),
    ((*DRY, "--adapter-mode", "active"), "adapter"),
    ((*DRY, "--model", "embedded", "--model", "embedded"), "models: 'embedded' is there twice"),
    (("export", "{here}", "--to", "csv", "--out", ""), "out"),
]


def _configured(**fields: Any) -> Callable[[Place], object]:
    def make(place: Place) -> None:
        file = place.model() / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    return make


def _two_columns(place: Place) -> None:
    place.task()
    for split in ("train", "test"):
        place.write(f"{split}.csv", "text,label,text\n" + "a film,0,a plot\nb film,1,b plot\n" * 30)
    place.write("mine.yaml", (place.folder / "mine.yaml").read_text().replace("jsonl", "csv"))


def _two_fields(place: Place) -> None:
    place.task()
    for split in ("train", "test"):
        place.write(f"{split}.jsonl", '{"text": "a film", "label": 0, "text": "a plot"}\n' * 30)


def _two_in_parquet(place: Place) -> None:
    place.task()
    columns = [pa.array(["a film", "b film"] * 30), pa.array([0, 1] * 30), pa.array(["a plot", "b plot"] * 30)]
    for split in ("train", "test"):
        pq.write_table(pa.table(columns, names=["text", "label", "text"]), place.folder / f"{split}.parquet")
    place.write("mine.yaml", (place.folder / "mine.yaml").read_text().replace("jsonl", "parquet"))


def _two_lines(place: Place) -> None:
    place.model().rename(place.folder / "mo\ndel")


def _study(text: str) -> Callable[[Place], object]:
    """A run folder with this study."""

    def make(place: Place) -> None:
        place.write("there/study.yaml", text)
        (place.folder / "there/cells").mkdir()

    return make


def _settings(text: str) -> Callable[[Place], object]:
    return lambda place: place.write("there/regression.yaml", text)


MANY = "a: &a [1, 1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1 or ''}, *a{i - 1 or ''}]\n" for i in range(1, 30))


def _newline(place: Place) -> None:
    place.task()
    text = (place.folder / "mine.yaml").read_text()
    place.write("mine.yaml", text.replace("name: mine", 'name: "mine\\nand yours"'))


HEAD = "from dualscope import LEARNERS, Learned, Learner\n@LEARNERS.register('mine')\n"
HEAD += "class Mine(Learner):\n    'Mine.'\n"
LEARN = "    def learn(self, bench, lr, options):\n        return Learned(bench.zero_shot)\n"
PLUGINS = {
    "an unknown role": (HEAD + "    role = 'judge'\n" + LEARN, "role"),
    "a raising __init__": (HEAD + "    def __init__(self):\n        raise ValueError('no')\n" + LEARN, "mine"),
    "a cleared environment": ("import os\nos.environ.clear()\n", "environment"),
    "a newline in its name": (HEAD.replace("'mine'", "'mi\\nne'") + LEARN, "name of a learner"),
    "a newline in a metric's name": (
        "from dualscope.metrics import simple_metric\n@simple_metric('a\\nb', 'f', 'about')\ndef m(case): ...\n",
        "name of a metric",
    ),
    "a newline in an intervention's name": (
        "from dualscope.learners.interventions import INTERVENTIONS\n"
        "@INTERVENTIONS.register('a\\nb')\nclass Mine: ...\n",
        "name of a",
    ),
    "a name of spaces": (HEAD.replace("'mine'", "'  '") + LEARN, "name of a learner"),
}


def _plugin(name: str, content: str, said: str) -> Bad:
    return Bad(
        f"third plugin {name}",
        (*DRY, "--model", "embedded", "--learner", "mine", "--plugin", "{here}/bad.py"),
        said,
        lambda place: place.write("bad.py", content),
    )


TABLE = [
    Bad(f"third option {text[:40]!r}", (*DRY, "--model", "embedded", "--option", text), said)
    for text, said in OPTIONS.items()
]
TABLE += [Bad(f"third {i} {' '.join(args)[:50]!r}", args, said) for i, (args, said) in enumerate(COMMANDS)]
TABLE += [_plugin(name, *more) for name, more in PLUGINS.items()]
TABLE += [
    Bad(
        "third epsilon infinity",
        (*RUN, "--model", "{here}/model"),
        "epsilon",
        _configured(layer_norm_epsilon=float("inf")),
    ),
    Bad(
        "third epsilon NaN", (*RUN, "--model", "{here}/model"), "epsilon", _configured(layer_norm_epsilon=float("nan"))
    ),
    Bad("third epsilon below 0", (*RUN, "--model", "{here}/model"), "epsilon", _configured(layer_norm_epsilon=-1.0)),
    Bad(
        "third yarn factor",
        (*RUN, "--model", "{here}/model"),
        "factor",
        _configured(rope_scaling={"rope_type": "yarn", "factor": -1.0, "original_max_position_embeddings": 64}),
    ),
    Bad("third two columns", ("validate", "{here}/mine.yaml"), "twice|column", _two_columns),
    Bad("third two fields", ("validate", "{here}/mine.yaml"), "line 1: the field 'text' is there twice", _two_fields),
    Bad("third two columns of Parquet", ("validate", "{here}/mine.yaml"), "'text' is there twice", _two_in_parquet),
    Bad("third newline in a model's name", (*DRY, "--model", "{here}/mo\ndel"), "cannot be a name", _two_lines),
    Bad("third newline in a given name", (*DRY, "--model", "a\nb={here}/model"), "cannot be a name", Place.model),
    Bad("third newline in a name", ("validate", "{here}/mine.yaml"), "name", _newline),
    Bad(
        "third train in cells",
        ("train", "--out", "{here}/there/cells"),
        "--out.*the run's own files",
        _study("seeds: 1"),
    ),
    Bad("third pack digits", ("pack", "{here}/there"), "study.yaml.*number of 5000", _study("seeds: " + "9" * 5000)),
    Bad("third pack aliases", ("pack", "{here}/there"), "study.yaml.*aliases", _study(MANY.replace("a29", "seeds"))),
    Bad("third pack binary", ("pack", "{here}/there"), r"study\.yaml", _study("seeds: \udcff")),
]
TABLE += [
    Bad(
        f"third regression {name}",
        ("regression", "ahn", "--out", "{here}/there", "--device", "cpu"),
        "regression.yaml: not a table of settings",
        _settings(text),
    )
    for name, text in (("digits", "seeds: " + "9" * 5000), ("aliases", MANY), ("binary", "seeds: \udcff"))
]
