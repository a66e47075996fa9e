"""What takes the rounds of a federation: one file an engine, and one entry in `ENGINES`."""

from tacita.federated.engines.engine import Engine as Engine
from tacita.federated.engines.flower import FLOWER
from tacita.federated.engines.local import LOCAL

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (LOCAL, FLOWER)}
