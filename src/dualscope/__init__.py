"""dualscope: is in-context learning gradient descent? Measure it, on any causal language model.

The contents page is ``__init__.pyi``. Names are imported when they are first used, so ``import dualscope`` is instant.

>>> import dualscope
>>> dualscope.Task.load("sst2").labels
('Negative', 'Positive')
"""

from dualscope._start import hush

hush()  # before all that takes time

import lazy_loader  # noqa: E402

from dualscope._version import __version__  # noqa: E402
from dualscope.core.network import silence  # noqa: E402

silence()  # here, so that it comes before any library that would speak

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
