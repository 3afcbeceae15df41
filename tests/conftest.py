"""What several tests share: tokenizers trained here and now, a tiny task, the command line, outside data."""

import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings

from dualscope.core.registry import Registry
from dualscope.tasks import Task

# A background shell ignores Ctrl-C, and every process that it starts inherits that: tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).parent.parent
CHROMIUM = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-quic --no-first-run "
    "--disable-component-update --disable-sync"
)
TEMPLATE = "Sentence: {sentence} Label:"

settings.register_profile("dualscope", deadline=None)  # a busy machine is no failure
settings.load_profile("dualscope")


def pytest_collection_finish() -> None:
    """All that was imported stays: collecting garbage, which a study does often, need not look at it again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # else libraries that count their objects call them leaked at the end


@pytest.fixture(scope="session")
def shared() -> Path:
    """Data sets and models that are not part of the project; the test skips where they are absent."""
    folder = Path(os.environ.get("DUALSCOPE_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("outside data is absent; DUALSCOPE_SHARED may name its folder")
    return folder


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    """Lines of made-up words, quotes and accents, to train tokenizers on."""
    rng = np.random.default_rng(0)
    syllables = ["ba", "no", "ti", "re", "lo", "sha", "un", "é", "ki", "st", "ing", "er"]
    words = ["".join(rng.choice(syllables, size=rng.integers(1, 4))) for _ in range(300)]
    words += ["Sentence:", "Label:", "Negative", "Positive", '"', "'s", ",", ".", "naïve", "东京"]
    return [" ".join(rng.choice(words, size=12)) for _ in range(400)]


@pytest.fixture(scope="session")
def byte_tokenizer(corpus: list[str]) -> Any:
    """Byte-level BPE, GPT-2's kind: any text can be written, a space belongs to the word after it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return _wrap(tokenizer)


@pytest.fixture(scope="session")
def metaspace_tokenizer(corpus: list[str]) -> Any:
    """Unigram over metaspaces, SentencePiece's kind: a space is put before every text, rare signs are unknown."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return _wrap(tokenizer, unk_token="<unk>")


@pytest.fixture(scope="session")
def prepending_tokenizer(corpus: list[str]) -> Any:
    """BPE that puts a space before every text even where one is there already: Llama 2's kind."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    # Without a pre-tokenizer a line is one word: cut it up, or whole lines would become tokens.
    words = [f"▁{word}" for line in corpus for word in line.split()] + ["▁", "▁▁"]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<s>", "</s>", "<unk>"], show_progress=False)
    normalizer, tokenizer.normalizer = tokenizer.normalizer, normalizers.NFC()
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.normalizer = normalizer
    return _wrap(tokenizer, unk_token="<unk>")


@pytest.fixture(scope="session", params=["byte_tokenizer", "metaspace_tokenizer", "prepending_tokenizer"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """Each kind in turn."""
    return request.getfixturevalue(request.param)


def _wrap(tokenizer: Any, **special: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", model_max_length=10**30, **special
    )


@pytest.fixture(scope="session")
def tiny_task_file(tmp_path_factory: pytest.TempPathFactory, corpus: list[str]) -> Path:
    """A task of 60 + 40 examples in local files."""
    folder = tmp_path_factory.mktemp("tiny-task")
    rng = np.random.default_rng(1)
    for split, n in (("train", 60), ("test", 40)):
        rows = [
            {"sentence": " ".join(rng.choice(corpus).split()[: rng.integers(2, 9)]), "label": int(rng.integers(2))}
            for _ in range(n)
        ]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    path = folder / "tiny.yaml"
    path.write_text(
        f"""name: tiny
source:
  files: {{train: train.jsonl, test: test.jsonl}}
splits: {{train: train, evaluation: test}}
template: "{TEMPLATE}"
labels: [Negative, Positive]
""",
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="session")
def tiny_task(tiny_task_file: Path) -> Task:
    return Task.load(tiny_task_file)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window, which sends nothing of its own."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium is installed, and in continuous integration the browser tests must run")
        pytest.skip("no Chromium is installed; the page is not looked at in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=CHROMIUM.split())
        yield opened
        opened.close()


@contextmanager
def forgetting(registry: Registry[Any]) -> Iterator[None]:
    items, aliases = dict(registry._items), dict(registry._aliases)
    try:
        yield
    finally:
        registry._items, registry._aliases = items, aliases


@pytest.fixture
def forget() -> Iterator[None]:
    """What a test registers, other tests do not see."""
    from dualscope.learners import LEARNERS
    from dualscope.metrics import METRICS

    with forgetting(LEARNERS), forgetting(METRICS):
        yield
    for name in [name for name in sys.modules if name.startswith("dualscope_plugin_")]:
        del sys.modules[name]


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """The command line as a person meets it: ``cli("list", "tasks")`` gives exit code, output and errors."""

    def run(*arguments: object) -> Result:
        from dualscope.cli import main
        from dualscope.studies.execute import worker_count

        monkeypatch.setattr(worker_count, "cores", lambda: 1)  # more processes begin only where a test asks for them
        monkeypatch.setattr(sys, "argv", ["dualscope", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        return Result(code, *capsys.readouterr())

    return run
