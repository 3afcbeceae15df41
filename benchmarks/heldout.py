"""Is the embedded model's in-context learning real? Accuracy on tasks that training never showed.

Training never joins two clusters of words that a held-out task joins in a class, and never gives a cluster the label
word that it has there (``dualscope.training.corpus`` says how). This draws training sequences to confirm the split,
then measures held-out tasks of 2, 3 and 4 classes at 0 to 32 shots.

    python -m benchmarks.heldout [--model embedded] [--sequences 500] [--seed 0] [--json FILE]
"""

import argparse
import json
from pathlib import Path

import numpy as np

from dualscope.models import Model
from dualscope.training.corpus import Mixture, draw_sequence
from dualscope.training.evaluation import held_out_sequences, measure_curve


def training_pairs(n: int, rng: np.random.Generator) -> tuple[set[frozenset[int]], set[tuple[int, int]]]:
    """Pairs of clusters that shared a class, and pairs of cluster and label word, in ``n`` training sequences."""
    joined: set[frozenset[int]] = set()
    named: set[tuple[int, int]] = set()
    for _ in range(n):
        sequence = draw_sequence(rng, Mixture())
        if not sequence.of_pairs:
            for members, label in zip(sequence.mapping.classes, sequence.mapping.labels, strict=True):
                joined |= {frozenset((a, b)) for a in members for b in members if a != b}
                named |= {(c, label) for c in members}
    return joined, named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng = np.random.default_rng([options.seed, 31])
    joined, named = training_pairs(20_000, rng)
    model = Model.load(options.model)
    length = min(model.max_positions, 640)  # 32 demonstrations and a query fit
    curves = []
    for classes in (2, 3, 4):
        tasks = held_out_sequences(options.sequences, classes, rng)
        for task in tasks:
            for members, label in zip(task.mapping.classes, task.mapping.labels, strict=True):
                assert frozenset(members) not in joined, "a held-out combination occurred in training"
                assert not any((c, label) in named for c in members), "a held-out mapping occurred in training"
        curve = measure_curve(f"{classes} classes", model.hf, tasks, length, rng)
        curves.append(curve)
        print(f"{curve.name}: " + ", ".join(f"{shots} shots {value:.3f}" for shots, value in curve.accuracy.items()))
    mean = float(np.mean([curve.accuracy[32] for curve in curves]))
    print(f"mean at 32 shots: {mean:.3f} (wanted: 0.85 or more)")
    if options.json:
        facts = {"mean": round(mean, 4), "curves": [curve.as_dict() for curve in curves]}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
