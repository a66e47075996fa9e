import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install -e '.[federated]')")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)
