"""Metrics: what a case of traces says about two learners, its controls and its statistics.

The names, listed in ``__init__.pyi``, are imported when first used: what says which metrics exist needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
