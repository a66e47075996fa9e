import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install -e '.[torch]')")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def bugs():
    """The bugs of experiments/audit, to be planted in the shipped step."""
    path = Path(__file__).parents[2] / "experiments" / "audit" / "bugs.py"
    spec = importlib.util.spec_from_file_location("bugs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
