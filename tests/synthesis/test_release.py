"""The released set as files, which read back by their own schema."""

import tomllib

import numpy as np

from tacita.synthesis.jobs import start
from tacita.synthesis.recipes import Recipe
from tacita.synthesis.release import released_dataset


def test_the_released_set_reads_back_by_its_own_schema(embedding_run):
    folder, _ = embedding_run
    found = released_dataset(folder)
    assert found.inputs.shape == (60, 1, 8, 8)
    assert found.classes == tuple("0123456789")
    assert 0.0 <= found.inputs.min() <= found.inputs.max() <= 1.0
    schema = tomllib.loads((folder / "released" / "schema.toml").read_text())
    assert schema["data"]["nominal_size"] == 60
    assert (folder / "released" / "samples.png").read_bytes().startswith(b"\x89PNG")


def test_rows_of_an_array_are_released_as_they_came(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", inputs=rng.random((200, 6)), targets=rng.integers(0, 2, 200))
    data = {
        "file": str(tmp_path / "rows.npz"),
        "nominal_size": 200,
        "inputs": {"low": 0, "high": 1, "shape": [6]},
        "targets": {"classes": ["a", "b"]},
    }
    made = Recipe.from_dict({"data": data, "epsilon": 2.0, "samples": 30, "steps": 2})
    start(made, tmp_path / "run").run(quality=False)
    found = released_dataset(tmp_path / "run")
    assert found.inputs.shape == (30, 6)
    assert found.inputs.min() >= 0.0
