import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install -e '.[torch]')")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def embedding_run(tmp_path_factory):
    from tests.synthesis.short_runs import run

    folder = tmp_path_factory.mktemp("runs") / "embedding"
    return folder, run(folder, epsilon=2.0)


@pytest.fixture(scope="session")
def gan_run(tmp_path_factory):
    from tests.synthesis.short_runs import GAN, run

    folder = tmp_path_factory.mktemp("runs") / "gan"
    return folder, run(folder, **GAN)
