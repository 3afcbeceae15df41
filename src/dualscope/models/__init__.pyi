from .architecture.parts import Part as Part
from .model import Model as Model
from .reading.prefix import Prefix as Prefix
from .reading.trace import Trace as Trace
