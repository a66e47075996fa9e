"""Private variational inference on Pyro models.

Examples:
    >>> import pyro, torch, pyro.distributions as dist
    >>> from tacita.inference import fit
    >>> def heights(cm):
    ...     mean = pyro.sample("mean", dist.Normal(170.0, 20.0))
    ...     with pyro.plate("people", len(cm)):
    ...         pyro.sample("cm", dist.Normal(mean, 10.0), obs=cm)
    >>> cm = 175.0 + 10.0 * torch.randn(2000)
    >>> result = fit(heights, cm, noise_multiplier=3.0, steps=20, panel=0)
    >>> 0.5 < result.guarantee.epsilon < 1.0
    True
"""

from tacita import _check

try:
    import pyro as _pyro  # noqa: F401
    import safetensors as _safetensors  # noqa: F401
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise _check.missing("Inference needs Pyro and PyTorch", "bayes") from error

from tacita.inference.calibration import coverage as coverage
from tacita.inference.final_samples import Box as Box
from tacita.inference.fitting import fit as fit
from tacita.inference.fitting import resume as resume
from tacita.inference.plots import elbo_plot as elbo_plot
from tacita.inference.plots import posterior_plot as posterior_plot
