"""A run's rows once more, from its trace files alone: python examples/recompute.py RUN (made with --save-traces)"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file


def cosine(a, b):
    with np.errstate(invalid="ignore"):  # 0/0 where nothing changed: NaN, left out of every mean
        return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def recompute(run):
    cells = {path.stem: pq.read_table(path).to_pylist() for path in run.glob("cells/*.parquet")}
    trace = {cell: load_file(run / f"traces/{cell}.safetensors") for cell in cells}
    where = {cell: [rows[0][key] for key in ("model", "variant", "task", "seed")] for cell, rows in cells.items()}
    for cell, rows in cells.items():
        same = {cells[other][0]["learner"]: trace[other] for other in cells if where[other] == where[cell]}
        z, c, g = same["zero-shot"], same["in-context"], trace[cell]
        found = {"accuracy": g["label_logprobs"].argmax(-1) == g["labels"]}
        if rows[0]["learner"] not in ("zero-shot", "in-context"):
            found["sim_aou"] = cosine(c["attn_out"] - z["attn_out"], g["attn_out"] - z["attn_out"])
            scores = [np.nan_to_num(t["attn_scores"]) for t in (c, g)]  # NaN before a query's first token
            found["sim_am"] = cosine(*scores).mean(-1)  # over heads, then queries, then layers
        for row in rows:
            if row["metric"] in found and row["reference"] in (None, "in-context"):
                values = found[row["metric"]][..., slice(None) if row["layer"] is None else row["layer"]]
                yield row["learner"], row["metric"], row["layer"], np.nanmean(values), row["value"]


if __name__ == "__main__":
    for line in recompute(Path(sys.argv[1])):
        print(*line, sep="\t")
