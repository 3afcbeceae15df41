from .model import Model as Model
from .parts import Part as Part
from .reading.prefix import Prefix as Prefix
from .trace import Trace as Trace
