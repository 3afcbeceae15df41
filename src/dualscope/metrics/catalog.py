"""Every metric there is: importing this registers them all, in the order in which people read them."""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import walk_packages

from dualscope.core.statistics import ANYWHERE, Bounds
from dualscope.metrics.metric import METRICS, Metric

__all__ = ["DEFAULT", "METRICS", "bounds_of", "expand", "registered_elsewhere", "wanted_by"]

FAMILIES = (
    "prediction",
    "explained",
    "attention_output",
    "attention_map",
    "demonstrations",
    "single_heads",
    "noise",
    "weight_change",
    "icl_update",
    "replay",
    "splice",
    "responses_of_draws",
)
USERS = ("measured", "measured_response")  # modules that use this catalog, and define no metric
for _family in FAMILIES:
    import_module(f"dualscope.metrics.{_family}")


def _rank(metric: Metric) -> int:
    """Rows keep this order also where one family was imported before the others; a user's own metrics come last."""
    family = metric.function.__module__.removeprefix("dualscope.metrics.")
    return FAMILIES.index(family) if family in FAMILIES else len(FAMILIES)


def bounds_of(name: str) -> Bounds:
    """Between what a metric's numbers lie; of one that is not loaded (a plugin's) nothing is known."""
    return METRICS[name].within if name in METRICS else ANYWHERE


def expand(names: Iterable[str] | None = None, per_head: bool = False) -> tuple[str, ...]:
    """Metrics by their own names; "default" stands for those that are on by default, "all" for every one.

    The metrics of single heads, which take longer than all others together, are in both where rows of heads are asked
    for, and else in neither.

    >>> expand(["default", "kendall"]) == (*DEFAULT, "kendall")
    True
    >>> set(expand(per_head=True)) - set(DEFAULT) == {"induction_score", "indirect_effect"}
    True
    >>> set(expand(["all"], per_head=True)) - set(expand(["all"])) == {"induction_score", "indirect_effect"}
    True
    """
    of_heads = tuple(name for name in METRICS if METRICS[name].per_head)
    every = tuple(name for name in METRICS if per_head or name not in of_heads)
    groups = {"default": DEFAULT + (of_heads if per_head else ()), "all": every}
    found: dict[str, None] = {}
    for name in ["default"] if names is None else [names] if isinstance(names, str) else names:
        found.update(dict.fromkeys(groups.get(name) or (METRICS.canonical(name),)))
    return tuple(found)


def wanted_by(names: Iterable[str]) -> frozenset[str]:
    """What a bench has to be asked for, so that these metrics find what they need."""
    return frozenset().union(*(METRICS[name].wants for name in names))


def registered_elsewhere() -> tuple[str, ...]:
    """The metrics that a user registered: a notebook's, a plugin's."""
    return tuple(name for name in METRICS if not METRICS[name].function.__module__.startswith("dualscope."))


for _module in walk_packages(import_module("dualscope.metrics").__path__, "dualscope.metrics."):
    if _module.name.rpartition(".")[2] not in USERS:
        import_module(_module.name)  # a metric is one file here: it needs no line in the list above
METRICS.arrange(_rank)
DEFAULT = tuple(name for name in METRICS if METRICS[name].default)
