"""Every metric there is: importing this registers them all."""

from dualscope.metrics import (
    attention_map,
    attention_output,
    demonstrations,
    mass,
    noise,
    partition,
    prediction,
    updates,
)
from dualscope.metrics.metric import METRICS

__all__ = ["DEFAULT", "METRICS"]

FAMILIES = (prediction, partition, attention_output, attention_map, demonstrations, mass, noise, updates)
DEFAULT = tuple(name for name in METRICS if METRICS[name].default)
