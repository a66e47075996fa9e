"""Private generators, what they leak, what they are worth, and a look at them without the data."""

try:
    import safetensors as _safetensors  # noqa: F401
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("Synthetic data needs PyTorch: pip install 'tacita[torch]'") from error
