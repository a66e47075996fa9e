"""Privacy levels of a federation: one file each, and one entry in `LEVELS`."""

from tacita.federated.levels.client import CLIENT
from tacita.federated.levels.client import UNPROTECTED as UNPROTECTED
from tacita.federated.levels.joint import JOINT
from tacita.federated.levels.level import Level as Level
from tacita.federated.levels.parallel import PARALLEL
from tacita.federated.levels.sequential import SEQUENTIAL

LEVELS: dict[str, Level] = {level.name: level for level in (CLIENT, PARALLEL, SEQUENTIAL, JOINT)}
