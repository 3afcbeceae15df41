"""All figures of a GPU in one go, each part with a time limit of its own, so that one that hangs costs only itself.

    python -m benchmarks.round OUT [--shared FOLDER]

Writes what each part prints to OUT/<part>.txt, and OUT/scale.json. FOLDER has models/realtext-llama-19m and data/.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

FAST = ["--device", "cuda", "--precision", "bfloat16"]
PARTS = {  # seconds it may take, module and its options
    "startup": (60, ["benchmarks.startup", "--device", "cuda"]),
    "scale": (180, ["benchmarks.scale", *FAST, "--queries", "512", "--shapes", "350m", "1.3b", "7b", "13b", "33b"]),
    "speed": (90, ["benchmarks.speed", "--shape", "1.3b", *FAST, "tf32", "--only", "queries", "training",
                   "--reference", "0"]),
    "profile": (90, ["benchmarks.profile", "--shape", "1.3b", *FAST, "tf32"]),
    "split": (60, ["pytest", "-q", "-p", "no:cacheprovider", "tests/models/loading/test_load.py"]),
    "graphs": (60, ["pytest", "-q", "-p", "no:cacheprovider", "tests/descent/test_updates.py", "-k", "gpu"]),
    "controls": (240, ["dualscope.cli", "run", "--preset", "controls", "--variant", "trained", "--variant", "untrained",
                       "--task", "sst2", "--task", "mr", "--task", "subj", "--task", "agnews", "--seeds", "5",
                       "--shots", "16", "--queries", "300", "--lr", "auto", "--no-report"]),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shared", type=Path, default=Path("shared"))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        limit, command = PARTS[name]
        more: list[str] = []
        if name == "scale":
            more = ["--out", str(args.out / "scale.json")]
        if name == "controls":
            model, data = args.shared / "models" / "realtext-llama-19m", args.shared / "data"
            more = ["--model", str(model), "--data", str(data), "--out", str(args.out.parent / "controls-run")]
        start = time.perf_counter()
        with (args.out / f"{name}.txt").open("w") as stream:
            try:
                code: object = subprocess.run(
                    [sys.executable, "-m", *command, *more], stdout=stream, stderr=subprocess.STDOUT, timeout=limit
                ).returncode
            except subprocess.TimeoutExpired:
                code = f"stopped after {limit} s"
        print(f"{name}: {time.perf_counter() - start:.0f} s, exit {code}", flush=True)


if __name__ == "__main__":
    main()
