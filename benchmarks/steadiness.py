"""Does GD on the embedded model depend on rounding? Its accuracy from weights that differ by one part in a million.

    python -m benchmarks.steadiness [--factors 8,4,4,8,1,1] [--draws 3] [--queries 60]

For every embedded task but cb (where GD learns nothing), seeds 0 to 2 at the recorded rate: the range of accuracies
over the draws of noise. ``--factors`` tries other sizes of the same function (see
``dualscope.training.model_folder``), in place of those that are shipped.
"""

import argparse
import json

import torch

from dualscope.learners import Bench
from dualscope.models import Model
from dualscope.models.loading.source import find
from dualscope.studies.resolve import recorded_rates
from dualscope.tasks import Episode, Task, catalog_names, make_lesson
from dualscope.training.model_folder import rebalance

NOISE = 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factors", type=lambda text: [float(part) for part in text.split(",")])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--queries", type=int, default=60)
    args = parser.parse_args()
    model = Model.load("embedded", device="cpu")
    if args.factors:
        folder = find("embedded").folder
        assert folder is not None
        shipped = json.loads((folder / "training.json").read_text())["settings"]["balance"]
        rebalance(model.hf, [new / old for new, old in zip(args.factors, shipped, strict=True)])
    names = [name for name in catalog_names() if name.startswith("embedded-") and name != "embedded-cb"]
    rates = recorded_rates(["embedded"], names)
    widest = 0.0
    for name in names:
        ranges = []
        for seed in range(3):
            found = [accuracy(model, name, seed, rates["embedded", name], d, args.queries) for d in range(args.draws)]
            ranges.append(f"{min(found):.2f} to {max(found):.2f}")
            widest = max(widest, max(found) - min(found))
        print(f"{name:16} {'; '.join(ranges)}")
    print(f"widest range {widest:.2f}")


def accuracy(model: Model, name: str, seed: int, rate: float, draw: int, queries: int) -> float:
    """After GD from weights with a draw of noise on them; draw 0 is none."""
    lesson = make_lesson(Episode.draw(Task.load(name), 32, seed, queries), model.tokenizer, model.max_positions)
    before = [parameter.detach().clone() for parameter in model.hf.parameters()]
    generator = torch.Generator().manual_seed(draw)
    with torch.no_grad():
        for parameter in model.hf.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(1 + (NOISE if draw else 0.0) * noise)
    try:
        trace = Bench(model, lesson).learned("gd", lr=rate).trace
    finally:
        for parameter, value in zip(model.hf.parameters(), before, strict=True):
            parameter.data.copy_(value)
    return float(trace.correct.float().mean())


if __name__ == "__main__":
    main()
