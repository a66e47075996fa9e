"""Exact noise, noise-aware posteriors, the choice of a mechanism, and the one call that does it all."""

import numpy as np
import pytest

from tacita._check import PrivacyError
from tacita.guarantee import Guarantee
from tacita.ledger import BudgetExceeded, Ledger
from tacita.posterior import samplers
from tacita.posterior.mechanisms import exponential, gaussian, geometric, laplace
from tacita.posterior.mixtures import Shares
from tacita.posterior.models import beta, dirichlet, normal
from tacita.posterior.releases import _counts, _records, release


@pytest.mark.parametrize(
    "mechanism",
    ["best", "geometric", "laplace", geometric(epsilon=0.5), laplace(epsilon=0.5, sensitivity="histogram")]
    + [exponential(epsilon=0.5, delta=1e-6, score=s) for s in ("hellinger", "kl", "total_variation")]
    + [exponential(epsilon=0.5, sensitivity="global"), gaussian(epsilon=0.5, delta=1e-6)],
    ids=str,
)
def test_every_mechanism_by_name(mechanism):
    budget = {"epsilon": 0.5} if isinstance(mechanism, str) else {}
    made = release(beta(1, 1), counts=(60, 140), mechanism=mechanism, **budget)
    assert made.guarantee.epsilon <= 0.5
    assert made.guarantee.neighbours == "replace_one"
    assert made.guarantee.publishable
    assert 0.0 < made.posterior.mean < 1.0
    assert made.certificate.delta(made.guarantee.epsilon) <= made.guarantee.delta + 1e-13
    document = made.to_dict()
    assert document["guarantee"]["epsilon"] == made.guarantee.epsilon
    assert len(document["interval_95"]) == 1


def test_from_a_column():
    truth = np.array([True] * 400 + [False] * 600)
    made = release(beta(1, 1), column=truth, epsilon=5.0)
    assert made.posterior.mean == pytest.approx(0.4, abs=0.03)
    shares = release(dirichlet(1, 1, 1), column=[0] * 100 + [2] * 900, epsilon=5.0).posterior
    assert isinstance(shares, Shares)
    assert shares.mean == pytest.approx([0.1, 0.0, 0.9], abs=0.02)
    ages = np.random.default_rng(0).normal(40, 10, 2000)
    made = release(normal(50, 30, record_sd=10), column=ages, clamp=(0, 100), epsilon=2.0)
    assert made.posterior.mean == pytest.approx(40, abs=1.5)
    odd = release(normal(50, 30, record_sd=10), column=[np.nan, np.inf, -np.inf, 5.0], clamp=(0, 10), epsilon=50.0)
    assert odd.output[0] == pytest.approx(1500, abs=500)


@pytest.mark.parametrize("odd", ["?", b"?", None, object()], ids=["text", "bytes", "none", "object"])
@pytest.mark.parametrize("form", [list, np.array])
def test_f3_one_odd_cell_changes_no_other(form, odd):
    """NumPy makes texts of all cells where one is a text: "True" is still true."""
    column = form([True] * 59 + [odd] + [False] * 40)
    assert release(beta(1, 1), column=column, epsilon=50.0).output[0] == pytest.approx(59, abs=1)
    column = form([2] * 59 + [odd] + [1] * 40)
    assert release(dirichlet(1, 1, 1), column=column, epsilon=50.0).output == pytest.approx((1, 40, 59), abs=2)


def test_two_categories_as_a_dirichlet():
    made = release(dirichlet(1, 1), counts=(300, 700), epsilon=3.0)
    assert made.posterior.mean == pytest.approx([0.3, 0.7], abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"counts": (1, 2)}, "epsilon is needed"),
        ({"counts": (1, 2), "column": [1], "epsilon": 1}, "either counts or column"),
        ({"epsilon": 1}, "either counts or column"),
        ({"counts": (1, 2, 3), "epsilon": 1}, "each of 2 categories"),
        ({"counts": (1, -2), "epsilon": 1}, "counts must be"),
        ({"counts": (0, 0), "epsilon": 1}, "at least one record"),
        ({"column": [], "epsilon": 1}, "at least one record"),
        ({"column": 3, "epsilon": 1}, "such as a list"),
        ({"column": "yes", "epsilon": 1}, "such as a list"),
        ({"column": np.zeros((2, 2)), "epsilon": 1}, "one column"),
        ({"column": np.zeros(2, dtype="datetime64[s]"), "epsilon": 1}, "one column of numbers"),
        ({"counts": (1, 2), "epsilon": 0}, "epsilon must be"),
        ({"counts": (1, 2), "epsilon": 1, "mechanism": "magic"}, "mechanism must be one of"),
        ({"counts": (1, 2), "epsilon": 1, "mechanism": geometric(epsilon=1)}, "leave them out"),
        ({"counts": (1, 2), "epsilon": 1, "clamp": (0, 1)}, "for a normal model"),
        ({"counts": (1, 2), "epsilon": 1, "mechanism": "exponential"}, "needs delta > 0"),
    ],
)
def test_bad_input_says_what_to_do(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        release(beta(1, 1), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"counts": (1, 2), "epsilon": 1}, "needs column"),
        ({"column": [1.0], "epsilon": 1}, "needs clamp"),
        ({"column": [1.0], "epsilon": 1, "clamp": (3, 1)}, "low < high"),
        ({"column": np.array([[1.0]]), "epsilon": 1, "clamp": (0, 1)}, "one column"),
        ({"column": [1.0], "epsilon": 1, "clamp": (0, 1), "mechanism": "laplace"}, "for the counts"),
        ({"column": [1.0], "epsilon": 1, "clamp": (0, 1), "step": 5}, "step must be"),
    ],
)
def test_bad_input_for_a_normal_model(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        release(normal(0, 1, record_sd=1), **arguments)


def test_a_model_that_is_none_is_refused():
    with pytest.raises(TypeError, match="beta, dirichlet or normal"):
        release("beta", counts=(1, 2), epsilon=1)
    for bad in (
        lambda: beta(0, 1),
        lambda: dirichlet(1),
        lambda: normal(0, 0, record_sd=1),
        lambda: beta(float("nan"), 1),
    ):
        with pytest.raises(ValueError, match=r"must be|at least two"):
            bad()


def test_the_ledger_is_charged_before_anything_is_drawn(tmp_path, monkeypatch):
    file = tmp_path / "budget.sqlite"
    Ledger.create(file, neighbours="replace_one", epsilon=1.0, delta=1e-5).close()
    release(beta(1, 1), counts=(3, 7), epsilon=0.6, ledger=file, name="first")
    monkeypatch.setattr(
        samplers, "sampler", lambda *_: lambda values: pytest.fail("drawn although the budget is spent")
    )
    with pytest.raises(BudgetExceeded):
        release(beta(1, 1), counts=(3, 7), epsilon=0.6, ledger=file, name="second")
    with Ledger.open(file) as ledger:
        assert ledger.spent().epsilon == 0.6


@pytest.mark.parametrize(
    ("request_", "most"), [(gaussian(epsilon=0.5, delta=1e-6), 0.75), (exponential(epsilon=0.5, delta=1e-7), 0.5)]
)
def test_other_mechanisms_are_charged_too(tmp_path, request_, most):
    with Ledger.create(":memory:", neighbours="replace_one") as ledger:
        release(beta(1, 1), counts=(30, 70), mechanism=request_, ledger=ledger)
        assert 0.25 < ledger.spent(1e-5).epsilon <= most


def test_a_ledger_for_another_relation_is_refused(tmp_path):
    with Ledger.create(":memory:") as ledger, pytest.raises(PrivacyError, match="add_remove"):
        release(beta(1, 1), counts=(3, 7), epsilon=0.6, ledger=ledger)


@pytest.mark.parametrize("numbers", [{"sd": 1e200}, {"sd": 1e-200}, {"record_sd": 1e-200}, {"mean": 1e100}])
def test_numbers_beyond_arithmetic_are_refused(numbers):
    with pytest.raises(ValueError, match="must be in"):
        normal(**{"mean": 0, "sd": 1, "record_sd": 1, **numbers})
    with pytest.raises(ValueError, match="clamp must be"):
        release(normal(0, 1, record_sd=1), column=[1.0], clamp=(-1e100, 1e100), epsilon=1)


class Raises:
    """A record that cannot be read."""

    def __init__(self, raised):
        self.raised = raised

    def __float__(self):
        raise self.raised


ODD = [
    *(None, "secret", [1.0, 2.0], [], {}, b"secret", 2, -1, 0.5, 10**400, 1j, float("nan")),
    *(Raises(ValueError("secret")), Raises(KeyboardInterrupt()), Raises(SystemExit(3)), Raises(MemoryError())),
]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_f24_an_odd_record_of_a_column_counts_as_the_fallback_and_changes_no_other(odd):
    column = [1] * 10 + [odd] + [0] * 5
    assert _counts(beta(1, 1), None, column) == (10, 6)
    assert sum(_counts(dirichlet(1, 1, 1), None, column)) == 16
    assert _counts(dirichlet(1, 1, 1), None, column)[1] == 10
    assert release(beta(1, 1), column=column, epsilon=5.0).n == 16
    array = np.empty(16, dtype=object)
    array[:] = column
    assert _counts(beta(1, 1), None, array) == (10, 6)


@pytest.mark.parametrize("odd", [odd for odd in ODD if not isinstance(odd, int | float)])
def test_f24_an_odd_record_of_a_normal_model_counts_as_the_lower_bound(odd):
    records = _records([7.0, odd, "3"])
    assert records[[0, 2]].tolist() == [7.0, 3.0]
    assert np.isnan(records[1])
    release(normal(0, 1, record_sd=1), column=[7.0, odd], clamp=(0, 10), epsilon=1)


def test_f24_a_record_that_a_column_cannot_give_counts_as_the_fallback():
    class Lazy:
        def __len__(self):
            return 3

        def __getitem__(self, place):
            if place == 1:
                raise OSError("/secret/path")
            return 1

    assert _counts(beta(1, 1), None, Lazy()) == (2, 1)


def test_posteriors_that_cannot_be_told_apart_are_released_all_the_same():
    made = release(beta(1e6, 1e6), counts=(1, 0), mechanism=exponential(epsilon=1, delta=1e-6, score="lecam"))
    assert made.guarantee.epsilon <= 1.0


def test_what_is_printed_is_not_rounded_down():
    assert "0.12345649" in str(geometric(epsilon=0.12345649))
    assert str(geometric(epsilon=0.5)) == "geometric(epsilon=0.5)"


def test_a_step_divides_the_bounds():
    with pytest.raises(ValueError, match="step must divide"):
        release(normal(5, 5, record_sd=1), column=[10.0] * 20, clamp=(0, 10), step=6, epsilon=1)
    with pytest.raises(ValueError, match="counts must have"):
        release(beta(1, 1), counts=370, epsilon=1)


@pytest.mark.parametrize(
    "mechanism",
    [
        geometric(epsilon=0.7),
        gaussian(epsilon=0.5, delta=1e-6),
        laplace(epsilon=0.7),
        exponential(epsilon=1.0, delta=1e-3),
        exponential(epsilon=1.0, sensitivity="global", calibration="nominal"),
    ],
    ids=str,
)
def test_a_guarantee_carries_the_exact_curve(mechanism):
    made = release(beta(1, 1), counts=(7, 5), mechanism=mechanism)
    profile, exact = made.guarantee.profile, made.certificate
    for eps in (0.0, 0.1, 0.33, 0.6, made.guarantee.epsilon):
        assert exact.delta(eps) <= profile.delta(eps) * (1 + 1e-9) + 1e-12
        assert profile.delta(eps) <= 1.02 * exact.delta(eps) + 1e-4
    assert made.guarantee.attack_success == pytest.approx((1 + exact.delta(0.0)) / 2, abs=1e-6)
    assert Guarantee.from_dict(made.guarantee.to_dict()) == made.guarantee
