"""Private variational inference on Pyro models."""

from tacita.inference.calibration import coverage as coverage
from tacita.inference.divergences import Box as Box
from tacita.inference.fit import fit as fit
from tacita.inference.fit import resume as resume
from tacita.inference.plots import elbo_plot as elbo_plot
from tacita.inference.plots import posterior_plot as posterior_plot
