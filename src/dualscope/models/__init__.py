"""Models: loading, families, capture, shared prefix, variants.

The names, listed in ``__init__.pyi``, are imported when first used: a finished study is recognised without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
