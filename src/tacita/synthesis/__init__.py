"""Private generators, what they leak, what they are worth, and a look at them without the data."""

from tacita import _check

try:
    import safetensors as _safetensors  # noqa: F401
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise _check.missing("Synthetic data needs PyTorch", "torch") from error
