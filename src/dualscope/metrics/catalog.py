"""Every metric there is: importing this registers them all, in the order in which people read them."""

from importlib import import_module

from dualscope.metrics.metric import METRICS

__all__ = ["DEFAULT", "METRICS"]

FAMILIES = (
    "prediction",
    "partition",
    "attention_output",
    "attention_map",
    "demonstrations",
    "mass",
    "noise",
    "updates",
)
for _family in FAMILIES:
    import_module(f"dualscope.metrics.{_family}")
DEFAULT = tuple(name for name in METRICS if METRICS[name].default)
