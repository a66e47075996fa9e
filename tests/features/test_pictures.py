"""Public features of pictures in one call, and the linear model on them."""

import pytest
import torch

from tacita.features import GradientHistograms, PublicLinear, Scattering, picture_features, priors_of

SHAPE = (1, 16, 18)


@pytest.fixture(scope="module")
def made():
    return picture_features(SHAPE, prior="silhouettes", filters=6, directions=10)


def test_features_have_length_one_and_know_no_left_and_right(made):
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    found = made.blocks(images)
    assert found.shape == (4, made.features)
    assert made.features == 2 * 4 * (6 + 3) + 81 * 2 * 3  # patches of two scales in four cells, scattering
    torch.testing.assert_close(found.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(made.blocks(images.flip(-1)), found, rtol=0.0, atol=1e-5)


def test_handwriting_is_not_mirrored_and_small_images_have_one_scale():
    made = picture_features((1, 8, 8), prior="strokes", filters=5, directions=10)
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert made.features == 2 * 4 * 5 + 81
    assert not torch.allclose(made.blocks(images.flip(-1)), made.blocks(images), atol=1e-3)


def test_the_model_takes_images_or_their_features(made):
    model = PublicLinear(made, 3)
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(images), torch.zeros(4, 3))
    torch.nn.init.normal_(model.linear.weight, generator=torch.Generator().manual_seed(1))
    ready = made.blocks(images, torch.float16)
    torch.testing.assert_close(model(ready), model(images), rtol=0.0, atol=1e-2)
    assert [name for name, _ in model.named_parameters()] == ["linear.weight"]


def test_a_model_tells_what_its_features_are_made_from(made):
    assert priors_of(PublicLinear(made, 3)) == ("dead_leaves", "silhouettes")
    assert priors_of(torch.nn.Sequential(GradientHistograms((1, 8, 8)), torch.nn.Linear(3, 2))) == ("strokes",)
    assert priors_of(Scattering((1, 8, 8), prior=torch.rand(200, 1, 8, 8))) == ("given",)
    assert priors_of(torch.nn.Linear(3, 2)) == ()
