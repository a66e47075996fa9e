"""Private training in PyTorch: per-record gradients, clip, noise, Poisson sampling, the loop, checkpoints."""

from tacita import _check

try:
    import safetensors as _safetensors  # noqa: F401
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise _check.missing("Private training needs PyTorch", "torch") from error

from tacita.training.gradients import clipped_sum as clipped_sum
from tacita.training.gradients import record_norms as record_norms
from tacita.training.labels import label_of_run as label_of_run
from tacita.training.loop import PrivateTraining as PrivateTraining
from tacita.training.plan import Plan as Plan
from tacita.training.settings import Books as Books
from tacita.training.settings import Follow as Follow
from tacita.training.settings import Whose as Whose
from tacita.training.step import poisson_sample as poisson_sample
from tacita.training.step import private_gradient as private_gradient
from tacita.training.stepping import Step as Step
from tacita.training.tuning import Tuning as Tuning
from tacita.training.tuning import tune as tune
