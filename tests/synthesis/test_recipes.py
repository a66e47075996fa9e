"""Recipes: what does not belong together is refused in one line."""

import pytest

from tacita.synthesis.recipes import Recipe, prepare
from tests.synthesis.short_runs import CSV


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generator": "vae", "epsilon": 1.0}, "generator must be one of"),
        ({}, "needs epsilon"),
        ({"epsilon": 0.0}, "epsilon must be in"),
        ({"generator": "wgan-gp", "epsilon": 1.0}, "gives no guarantee, so epsilon does not apply"),
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "and not both"),
        ({"epsilon": 1.0, "target": {"attack_success": 0.6}}, "either epsilon or target"),
        ({"noise_multiplier": 1.0, "target": {"attack_success": 0.6}}, "and not both"),
        ({"target": {"attack_success": 0.4}}, "above what guessing achieves"),
        ({"target": 0.6}, "target must be"),
        ({"generator": "wgan-gp", "target": "mu=0.5,1e-5"}, "gives no guarantee, so target does not apply"),
        (
            {"generator": "wgan-gp", "noise_multiplier": 1.0},
            "noise_multiplier is for mean-embedding or private-wgan or",
        ),
        ({"noise": 1.0}, "give noise_multiplier="),
        ({"epsilon": 1.0, "batch_size": 5}, "batch_size is for private-wgan"),
        ({"generator": "wgan-gp", "ledger": "x.sqlite"}, "gives no guarantee, so ledger does not apply"),
        ({"epsilon": 1.0, "dp_critic": True}, "dp_critic is for wgan-gp"),
        ({"epsilon": 1.0, "annotator": True}, "annotator is for private-wgan"),
        ({"epsilon": 1.0, "samples": 0}, "samples must be a whole number"),
        ({"epsilon": 1.0, "sampels": 5}, "did you mean 'samples'"),
    ],
)
def test_recipes_that_do_not_fit_are_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message):
        Recipe.from_dict({"data": {"name": "digits"}, **changes})


def test_a_range_to_predict_is_refused(tmp_path):
    (tmp_path / "people.csv").write_text(CSV)
    columns = {"age": {"type": "real", "low": 0, "high": 100}, "happy": {"type": "bool"}}
    data = {"file": str(tmp_path / "people.csv"), "target": "age", "columns": columns}
    with pytest.raises(ValueError, match="records of classes"):
        prepare(Recipe.from_dict({"data": data, "epsilon": 1.0}))
