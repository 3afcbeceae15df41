"""A whole paper's grid: the preset `revisited` (6 tasks x 3 seeds x 3 variants, gd and lcgd).

    python -m benchmarks.grid                                             a tiny model on the CPU, 50 queries a task
    python -m benchmarks.grid --shape 1.3b --device cuda --precision bfloat16 --queries 2000

The model has random weights; the data sets are random words, as many to an example as the real one has tokens (see
``lessons``; cb's 16 lengths of each split are repeated to 64), and one token to a word. So everything is done that a
user's run does: loading, untrained weights drawn anew for every seed, planning, reading, training, metrics, storing.
"""

import argparse
import json
import re
import time
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.lessons import LENGTHS, TASKS
from benchmarks.shapes import SHAPES, VOCABULARY, random_model
from benchmarks.timing import machine, save, show
from dualscope import Run, run_study
from dualscope.studies import Study
from dualscope.tasks import Task

FEWEST = 64  # examples of a split: shorter ones are repeated


def write_model(folder: Path, shape: str, device: str) -> None:
    """A checkpoint of random weights with a tokenizer of one token to a word."""
    model = random_model(shape, device=device)
    model.hf.save_pretrained(folder)
    known = ["<s>", "</s>", "<unk>", *template_words()]
    words = [*known, *(f"w{i}" for i in range(VOCABULARY - len(known)))]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=model.max_positions,
    ).save_pretrained(folder)


def template_words() -> list[str]:
    """What the tasks themselves add to a text; a field is a word that may have punctuation behind it."""
    texts = [text for name in TASKS for text in (Task.load(name).template, *Task.load(name).labels)]
    return sorted({word for text in texts for word in text.split() if "{" not in word})


def write_data(folder: Path) -> None:
    draw = np.random.default_rng(0)
    for name in TASKS:
        config = Task.load(name).config
        fields = re.findall(r"{(\w+)}", config.template)
        own = len(config.template.split()) - len(fields)
        for split, lengths in (
            (config.splits.train, LENGTHS[name]["demonstrations"]),
            (config.splits.evaluation, LENGTHS[name]["queries"]),
        ):
            file = folder / name / f"{split}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("w") as stream:
                for length in islice(cycle(lengths), max(FEWEST, len(lengths))):
                    words = [f"w{i}" for i in draw.integers(40_000, size=max(len(fields), length - own))]
                    parts = np.array_split(words, len(fields))
                    row = {field: " ".join(part) for field, part in zip(fields, parts, strict=True)}
                    label = int(draw.integers(len(config.labels)))
                    print(json.dumps(row | {"label": label}), file=stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--queries", type=int, default=50, help="at most so many a task")
    parser.add_argument("--jobs", type=int, help="processes; as many as suit if not given, as `dualscope run`")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        work = Path(folder)
        write_model(work / "model", args.shape, args.device)
        write_data(work / "data")
        study = Study.resolve(
            {
                "models": [str(work / "model")],
                "data": str(work / "data"),
                "dtype": args.precision,
                "queries": args.queries,
            },
            preset="revisited",
        )
        start = time.perf_counter()
        result = run_study(study, work / "run", device=args.device, offline=True, jobs=args.jobs)
        wall = time.perf_counter() - start
        if result.failures:
            raise SystemExit(f"{len(result.failures)} cells failed: {result.failures[0].reason}")
        provenance = json.loads((work / "run" / "provenance.json").read_text())
        kinds = seconds_in_cells(result.run)
    found = {"wall": wall, "cells": len(result.computed), "processes": provenance["where"]["jobs"], **kinds}
    title = f"revisited, {args.shape}, {args.precision}, {args.device}, {args.queries} queries, seconds"
    show(title, ["", ""], list(found.items()))
    save(args.out, {"machine": machine(torch.device(args.device)), "study": title, "seconds": found})


def seconds_in_cells(run: Run) -> dict[str, float]:
    """What the cells themselves took, all processes' together, by kind of weights and learner.

    Loading or drawing a model counts to the first cell that needs it.
    """
    found: dict[str, float] = {}
    for cell in sorted(run.stored()):
        row, seconds = run.rows([cell]).slice(0, 1).to_pylist()[0], float(run.notes(cell)["seconds"])
        kind = f"{row['variant']}, {row['learner']}"
        found[kind] = found.get(kind, 0.0) + seconds
    return {"in cells": sum(found.values()), **found}


if __name__ == "__main__":
    main()
