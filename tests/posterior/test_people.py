"""A posterior of people with several records, in one call."""

from fractions import Fraction

import numpy as np
import pytest

from tacita import PrivacyError
from tacita.ledger import Ledger
from tacita.posterior import beta, dirichlet, normal, release


def visits(rng, people=3000):
    persons = np.repeat(np.arange(people), rng.integers(1, 8, size=people))
    return persons, rng.random(len(persons)) < 0.3


def test_at_most_so_many_records_of_a_person_count(rng):
    persons, ill = visits(rng)
    made = release(beta(1, 1), column=ill, person=persons, records_per_person=2, epsilon=50)
    counted = np.minimum(np.bincount(persons), 2).sum()
    assert abs(sum(made.output) - counted) <= 4
    assert made.posterior.mean == pytest.approx(0.3, abs=0.03)
    assert made.n is None
    scale = Fraction(made.plan.source.scale)
    assert 2 <= scale * 50 <= 2 * (1 + Fraction(1, 10**12))  # a person adds two to one cell, or one to each
    assert made.certificate.epsilon() == pytest.approx(50)


def test_the_promise_and_the_ledger_speak_of_persons(rng, tmp_path):
    persons, ill = visits(rng, 40)
    asked = {"column": ill, "person": persons, "records_per_person": 3, "epsilon": 0.5}
    made = release(beta(1, 1), **asked, ledger=tmp_path / "budget.sqlite")
    assert (made.guarantee.unit, made.guarantee.neighbours, made.guarantee.epsilon) == ("person", "add_remove", 0.5)
    assert "public-size" not in {assumption.code for assumption in made.guarantee.assumptions}
    with Ledger.open(tmp_path / "budget.sqlite") as ledger:
        assert (ledger.unit, ledger.neighbours) == ("person", "add_remove")
        assert ledger.spent(1e-5).epsilon == pytest.approx(0.5)
        assert str(len(ill)) not in ledger.releases()[0]["description"]
    with Ledger.create(":memory:") as ledger, pytest.raises(PrivacyError, match="one record"):
        release(beta(1, 1), **asked, ledger=ledger)


@pytest.mark.parametrize(
    ("model", "changed", "error", "message"),
    [
        (normal(0, 1, record_sd=1), {"clamp": (0, 1)}, TypeError, "release a sum and a count in a program"),
        (beta(1, 1), {"clamp": (0, 1)}, TypeError, "clamp and step are for a normal model"),
        (beta(1, 1), {"column": None, "counts": (1, 2)}, TypeError, "counts do not tell whose"),
        (beta(1, 1), {"records_per_person": None}, TypeError, "go together"),
        (beta(1, 1), {"person": None}, TypeError, "go together"),
        (beta(1, 1), {"person": [1, 2]}, ValueError, "one id for each record"),
        (beta(1, 1), {"person": [1, None, 2]}, ValueError, "A record has no id"),
        (beta(1, 1), {"mechanism": "laplace"}, PrivacyError, "public number of records"),
        (dirichlet(1, 1, 1), {"mechanism": "gaussian", "delta": 0.01}, PrivacyError, "for one number"),
    ],
)
def test_what_does_not_fit_is_refused(model, changed, error, message):
    asked = {"column": [1, 0, 1], "person": [1, 1, 2], "records_per_person": 2, "epsilon": 1.0}
    with pytest.raises(error, match=message):
        release(model, **(asked | changed))


def test_a_missing_id_may_be_a_person_of_its_own():
    asked = {"column": [1, 1, 1], "person": [1, None, None], "records_per_person": 1, "epsilon": 60.0}
    assert release(beta(1, 1), **asked, missing_person="own").output == (3, 0)
