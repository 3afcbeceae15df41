"""Do the loss and the error with the longest prompt come to rest? akyurek's transformer without noise, by how it is
trained.

    python -m benchmarks.regression_rest --last 0.02 --stay 0.25 --average 0.01     # as the experiments do
    python -m benchmarks.regression_rest --last 0.004
    python -m benchmarks.regression_rest --stay 0.5 --steps 12000
    python -m benchmarks.regression_rest --width 32 --rate 0.0034

Prints both of every 500 steps of the later half, and by what share of itself each fell over the last fifth, on four
times as many prompts as experiments watch: on theirs, a fall is known to some hundredths. Minutes on a GPU.
"""

import argparse

from dualscope.models.loading.device_and_precision import resolve
from dualscope.regression import training
from dualscope.regression.emergence import falls
from dualscope.regression.experiments.akyurek import Akyurek, Arm
from dualscope.regression.problems import LinearFunctions
from dualscope.regression.training import Schedule, Workplace

EVERY = 500  # steps a line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--last", type=float, default=0.02, help="of the rate: what it falls to")
    parser.add_argument("--stay", type=float, default=training.PROMPTS_REST, help="part of steps at that rate")
    parser.add_argument("--average", type=float, default=training.AVERAGED, help="part of steps")
    for name, kind in (("steps", int), ("width", int), ("rate", float)):
        parser.add_argument(f"--{name}", type=kind, help="that of the full size's base, unless given")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    device = resolve(asked.device)
    chosen = {name: getattr(asked, name) for name in ("steps", "width", "rate")}
    full = Akyurek.full(**{name: value for name, value in chosen.items() if value is not None})
    # What no user of an experiment may choose, because its checks are made for it.
    training.PROMPTS_REST, training.AVERAGED = asked.stay, asked.average
    training.WATCHED *= 4
    learned = training.train_on_prompts(
        LinearFunctions(full.d),
        full.points,
        full.seeds,
        full.size_of(Arm(full.layers, full.width, 0.0)),
        Schedule(full.steps, full.rate, 1.0, asked.last * full.rate, full.warmup),
        full.batch,
        Workplace(device, compiled=device.type == "cuda"),
        training.Curriculum(full.curriculum),
        watch_every=max(1, full.steps // 120),
    )
    print(
        f"width {full.width}, rate {full.rate:g}, last {asked.last:g} of it, kept for {asked.stay:g}, mean over "
        f"{asked.average:g}, {full.steps} steps"
    )
    for measure in (training.ALL, training.LONGEST):
        curve = learned.training.curve(measure)
        print(measure)
        for first in range(full.steps // 2, full.steps, EVERY):
            some = [values for step, values in curve.items() if first <= step < first + EVERY]
            if some:
                print(f"{first:>8}  " + "  ".join(f"{sum(of) / len(of):.6f}" for of in zip(*some, strict=True)))
        print("  falls by " + ", ".join(f"{100 * fall:.1f} %" for fall in falls(curve)) + " of itself")
    print(f"{learned.training.seconds:.0f} s")


if __name__ == "__main__":
    main()
