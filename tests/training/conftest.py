import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install -e '.[torch]')")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def blobs():
    """Two classes in four dimensions, 300 records."""
    generator = torch.Generator().manual_seed(7)
    y = torch.randint(0, 2, (300,), generator=generator)
    x = torch.randn(300, 4, generator=generator) + 2.0 * (2 * y[:, None] - 1)
    return x, y
