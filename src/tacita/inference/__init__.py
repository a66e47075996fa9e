"""Private variational inference on Pyro models."""

from tacita import _check

try:
    import pyro as _pyro  # noqa: F401
    import safetensors as _safetensors  # noqa: F401
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise _check.missing("Inference needs Pyro and PyTorch", "bayes") from error

from tacita.inference.box import Box as Box
from tacita.inference.calibration import coverage as coverage
from tacita.inference.fitting import fit as fit
from tacita.inference.fitting import resume as resume
from tacita.inference.plots import elbo_plot as elbo_plot
from tacita.inference.plots import posterior_plot as posterior_plot
