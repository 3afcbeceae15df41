from .case import Case as Case
from .catalog import DEFAULT as DEFAULT
from .catalog import METRICS as METRICS
from .catalog import expand as expand
from .metric import Metric as Metric
from .metric import simple_metric as simple_metric
from .rows import Measurement as Measurement
from .rows import measure as measure
