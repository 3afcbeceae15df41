"""Models: loading, families, capture, shared prefix, variants.

The names are resolved when first used: a finished study is recognised without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualscope.models.model import Model
    from dualscope.models.parts import Part
    from dualscope.models.reading.prefix import Prefix
    from dualscope.models.trace import Trace

__all__ = ["Model", "Part", "Prefix", "Trace"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = {"Part": "parts", "Prefix": "reading.prefix"}.get(name, name.lower())
    return getattr(import_module(f"dualscope.models.{module}"), name)
