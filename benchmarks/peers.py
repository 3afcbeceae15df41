"""The same episode by dualscope and by other tools: seconds and peak memory, each in a process of its own.

Seconds of the clock and of the processor: on a busy machine the latter, with --threads 1, say more.

python -m benchmarks.peers --model SmolLM2-135M-Instruct.Q4_1.gguf [--shots 16] [--queries 100]
                           [--transformer-lens VENV/bin/python] [--nnsight VENV/bin/python]

The published flow (one query at a time, the whole context before each), plain batched transformers, TransformerLens
and nnsight hooks where the Python of an environment that has them is given, and dualscope. All of them read float32
weights and give, of every query, the labels' log-probabilities and the attention output of every layer at the last
token; that these agree is checked.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import show
from dualscope import Episode, Task, make_lesson
from dualscope.models.loading.load import load_tokenizer
from dualscope.models.loading.source import find

FLOWS = Path(__file__).with_name("peers_flows.py")
AGREE = 1e-3  # log-probabilities of two float32 ways


def episode_of(args: argparse.Namespace) -> dict[str, Any]:
    """All that a flow needs: whole prompts in tokens, and those of the labels."""
    config = find(args.model).config()  # a GGUF file is converted now, and not while somebody is timed
    task = Task.load(args.task, data=args.data)
    drawn = Episode.draw(task, shots=args.shots, seed=0, queries=args.queries)
    tokenizer, positions = load_tokenizer(args.model)
    lesson = make_lesson(drawn, tokenizer, positions)
    if any(len(answer) != 1 for answer in lesson.answers):
        sys.exit(f"{args.task}: labels of one token are compared, and {task.labels} are longer")
    return {
        "model": str(config.parent),
        "task": args.task,
        "data": args.data,
        "shots": args.shots,
        "queries": args.queries,
        "threads": args.threads,
        "prompts": [[*lesson.context, *query] for query in lesson.queries],
        "label_ids": [answer[0] for answer in lesson.answers],
    }


def run(flow: str, python: str, episode: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "episode.json", Path(folder) / "out.json"
        given.write_text(json.dumps(episode))
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(episode["threads"])}
        done = subprocess.run(
            [python, "-P", str(FLOWS), flow, str(given), str(out)], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            return {"failed": (done.stderr.strip() or "no reason given").splitlines()[-1]}
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--task", default="embedded-sst2")
    parser.add_argument("--data")
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--transformer-lens", metavar="PYTHON")
    parser.add_argument("--nnsight", metavar="PYTHON")
    args = parser.parse_args()
    episode = episode_of(args)
    pythons = {
        "published": sys.executable,
        "batched": sys.executable,
        "transformer_lens": args.transformer_lens,
        "nnsight": args.nnsight,
        "dualscope": sys.executable,
    }
    found = {flow: run(flow, python, episode) for flow, python in pythons.items() if python}
    if "failed" in found["dualscope"]:
        sys.exit(found["dualscope"]["failed"])
    ours = found["dualscope"]
    rows: list[tuple[object, ...]] = []
    for flow, one in found.items():
        if "failed" in one:
            rows.append((flow, "failed", "", "", "", one["failed"][:60], ""))
            continue
        apart = float((torch.tensor(one["logprobs"]) - torch.tensor(ours["logprobs"])).abs().max())
        sizes = float((torch.tensor(one["norms"]) / torch.tensor(ours["norms"]) - 1).abs().max())
        rows.append(
            (
                flow,
                one["seconds"],
                one["processor"],
                one["processor"] / ours["processor"],
                round(one["peak_mb"]),
                f"{apart:.1e}",
                f"{sizes:.1e}",
            )
        )
        if apart > AGREE or sizes > AGREE:
            print(f"{flow} does not read the same: its figures say nothing")
    lengths = sorted(map(len, episode["prompts"]))
    show(
        f"{args.queries} queries after {args.shots} demonstrations ({lengths[len(lengths) // 2]} tokens a prompt)",
        ["flow", "seconds", "processor", "times ours", "peak MB", "log-probabilities apart", "norms apart"],
        rows,
    )
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {args.threads} threads, torch {torch.__version__}")


if __name__ == "__main__":
    main()
