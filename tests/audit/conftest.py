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
    """Bugs to be planted in the shipped step."""
    spec = importlib.util.spec_from_file_location("bugs", Path(__file__).with_name("bugs.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
