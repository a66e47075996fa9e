"""Registry entries: valid by the registry's own schema, honest where nobody knows."""

import math
import os
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from tacita.assumptions import assume
from tacita.cli.kinds import KINDS
from tacita.guarantee import Guarantee
from tacita.label import Label
from tacita.publication import Publication
from tacita.report.registry import ASKED, BLANK, blanks, entry, yaml_text

PUBLICATION = Publication(issuer="City Hospital", contact="dpo@example.org", model="Digits", issued="2026-01-31")


def label(**changes):
    worst = Guarantee(
        kind="worst_case",
        epsilon=1.01618,
        delta=1e-5,
        method="pld",
        assumptions=tuple(map(assume, ("record-is-person", "chosen-blindly", "nothing-else"))),
        publishable=True,
    )
    return replace(Label(title="Digits", purpose="A model.", worst=worst, publication=PUBLICATION), **changes)


def made(given=None, stated=None, product="Machine learning model", federated=False):
    return entry(given or label(), product=product, federated=federated, stated=stated or {})


@pytest.fixture
def schema():
    file = Path(os.environ.get("TACITA_DATA", "")) / "registry" / "deployments-schema.yaml"
    if not file.is_file():
        pytest.skip("the registry's schema is not at hand: set TACITA_DATA to a folder that holds it")
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def endless():
    return label(worst=replace(label().worst, epsilon=math.inf))


def pure():
    return label(worst=replace(label().worst, delta=0.0))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_a_valid_entry(kind, schema):
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for given in (label(), endless(), pure()):
        document = made(given, product=KINDS[kind].product, federated=KINDS[kind].federated)
        checker.validate(yaml.safe_load(yaml_text(document)))


def test_all_fields_of_all_tiers_are_there(schema):
    document = made(stated={"data_product_sector": "Healthcare"})["deployment"]
    for group, part in schema["properties"]["deployment"]["properties"].items():
        missing = set(part["properties"]) - set(document[group])
        assert missing <= {"model_name_details"}


def test_what_is_written_is_what_is_read():
    document = made(label(title='a: "b" # \\ é\u2028', publication=Publication(issued="2026-01-31")))
    read = yaml.safe_load(yaml_text(document))
    assert read["deployment"]["basic"]["name"] == 'a: "b" # \\ é'
    assert read["deployment"]["privacy_loss"] == document["deployment"]["privacy_loss"]
    assert read["deployment"]["privacy_loss"]["privacy_parameters"] == {"epsilon": 1.017, "delta": 1e-5}


def test_no_finite_epsilon_is_said_and_not_left_out():
    document = made(endless())["deployment"]
    assert document["dp_variant"]["variant_name"] == "Custom"
    assert "privacy_parameters" not in document["privacy_loss"]
    assert "No finite epsilon" in document["privacy_loss"]["privacy_parameters_details"]


def test_tuning_and_unprotected_quantities():
    document = made(label(included=(("accuracy", "93.1%"),), bare_rate=True))["deployment"]
    unprotected = document["dp_variant"]["unprotected_quantities"]
    assert "accuracy (93.1%)" in unprotected
    assert "sampling rate was given as a number" in unprotected
    tuning = document["implementation"]["preprocessing_and_hyperparameter_tuning"]
    assert "not accounted for in epsilon" in tuning
    assert "nobody tested" in tuning
    assert BLANK in tuning


def test_warnings_and_open_assumptions_are_in_the_entry():
    document = made(label().resting_on(assume("chosen-seed")))["deployment"]
    details = document["privacy_loss"]["privacy_parameters_details"]
    assert "Warning: The noise comes from a chosen seed" in details
    assert "Rests on the publisher: One record is one person" in details


def test_what_is_stated_fills_the_blanks():
    document = made(
        stated={name: "stated" for name in ASKED} | {"data_product_sector": "Finance", "data_source_type": "Static"}
    )
    assert blanks(document) == []
    left = blanks(made(label(publication=Publication(issued="2026-01-31"))))
    assert {"data_curators", "intended_use", "justification", "registry_authors"} <= set(left)


def test_what_is_refused(make_label):
    with pytest.raises(ValueError, match="public label"):
        made(make_label("a"))
    with pytest.raises(ValueError, match="'colour' is not asked for"):
        made(stated={"colour": "red"})
    with pytest.raises(ValueError, match="data_product_sector must be one of"):
        made(stated={"data_product_sector": "Sport"})
