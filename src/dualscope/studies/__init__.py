"""Studies: grids that resume, scale out and never lose a result.

The names, listed in ``__init__.pyi``, are imported when first used: a run folder is opened without what plans one.
"""

from typing import Any

import lazy_loader

_found, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
# Version 0.1 called them so, and its documentation took them from here; today `dualscope` itself has both names.
_BEFORE = {"Run": "RunFolder", "run_study": "execute_study"}
__all__ += [*_BEFORE]


def __getattr__(name: str) -> Any:
    return _found(_BEFORE.get(name, name))
