"""``python -m dualscope.training``: the same as ``dualscope train`` where little beside torch is installed."""

import argparse
import json
import sys
from pathlib import Path

from dualscope.training.loop import Progress, train
from dualscope.training.settings import Settings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dualscope.training", description=__doc__)
    defaults = Settings()
    for name in ("steps", "short_steps", "batch", "length", "layers", "width", "heads", "warmup", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(defaults, name))
    parser.add_argument("--lr", type=float, default=defaults.lr)
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--balance", type=lambda text: tuple(map(float, text.split(","))), default=None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--compile", action="store_true", dest="compiled")
    parser.add_argument("--save-every", type=int, default=500)
    parser.add_argument("--evaluate-every", type=int, default=1000)
    parser.add_argument("--sequences", type=int, default=64)
    options = vars(parser.parse_args())
    names = {"out", "device", "workers", "compiled", "save_every", "evaluate_every", "sequences"}
    run = {name: options.pop(name) for name in names}
    train(Settings(**options), watch=_tell, **run)


def _tell(progress: Progress) -> None:
    if progress.evaluation or progress.step % 250 == 0:
        line = (
            f"step {progress.step} ({progress.done:.0%}) label loss {progress.loss:.3f} "
            f"rate {progress.rate:.2e} {progress.seconds:.0f}s"
        )
        if progress.evaluation:
            line += " " + json.dumps({kind: _few(curve) for kind, curve in progress.evaluation.items()})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _few(curve: dict[str, float]) -> dict[str, float]:
    return {shots: value for shots, value in curve.items() if shots in ("0", "8", "16", "32")}


if __name__ == "__main__":
    main()
