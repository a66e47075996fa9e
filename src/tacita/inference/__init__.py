"""Private variational inference on Pyro models."""

from tacita.inference.divergences import Box as Box
from tacita.inference.fit import fit as fit
from tacita.inference.fit import resume as resume
