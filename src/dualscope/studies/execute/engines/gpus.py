"""How many GPUs an actor asks for: as many as its model needs, or a part of one that several share."""

from __future__ import annotations

import math
from typing import Any

USABLE = 0.9  # of a GPU's memory: the rest is its driver's, and the estimate's error
MOST_ON_ONE = 8  # actors: each also computes
PATIENCE = 60.0  # seconds, for a node to say what it has


def gpus_for(needed: int, one: int) -> float:
    """Of GPUs with ``one`` bytes each, for ``needed`` bytes; one where either is not known (0).

    >>> gpus_for(200 * 2**30, 140 * 2**30), gpus_for(30 * 2**30, 140 * 2**30), gpus_for(0, 140 * 2**30)
    (2.0, 0.25, 1.0)
    """
    if not needed or not one:
        return 1.0
    usable = USABLE * one
    if needed > usable:
        return float(math.ceil(needed / usable))
    # Ray counts in ten-thousandths, and k of them must not be more than one.
    return math.floor(1e4 / min(MOST_ON_ONE, int(usable // needed))) / 1e4


def devices_for(asked: float, device: str, visible: int) -> str:
    """The devices of an actor that was given so many GPUs: all of them, where its model needs several.

    The weights alone may fit on one, and would then go there; what is trained and read beside them would not.

    >>> devices_for(2.0, "auto", visible=2), devices_for(0.25, "auto", visible=1), devices_for(2.0, "cuda:1", visible=2)
    ('cuda:0,cuda:1', 'auto', 'cuda:1')
    """
    if asked < 2 or device not in ("auto", "cuda") or visible < asked:
        return device
    return ",".join(f"cuda:{i}" for i in range(int(asked)))


def smallest_gpu(ray: Any) -> int:
    """Bytes of the cluster's smallest GPU, as its nodes say; 0 where none of them can say it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, num_gpus=1e-3, max_retries=0)(_memory_here)
    asked = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("GPU")
    ]
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=PATIENCE) if asked else ([], [])
    return min((found for found in ray.get(done) if found), default=0)


def largest_node(ray: Any) -> float:
    """The most GPUs that one node has: an actor lives on one."""
    return max((float(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]), default=0.0)


def _memory_here() -> int:
    import torch

    from dualscope.models.hardware import total_memory

    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return min((total_memory(device) for device in devices), default=0)
