"""The papers' epsilons for a run that our accountant followed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from tacita import _check
from tacita.accounting import BayesianAccountant
from tacita.accounting.conversion import NOTIONS
from tacita.accounting.history import Sample, fresh_samples
from tacita.accounting.levels import cost_table
from tacita.accounting.population import bayesian_guarantee, moments_figure
from tacita.assumptions import assume
from tacita.estimators import ESTIMATORS
from tacita.guarantee import Guarantee
from tacita.papers.printed import printed_cost_table

if TYPE_CHECKING:
    from tacita._check import Floats

Notion = Literal["strong", "weak"]


def product_figure(
    accountant: BayesianAccountant,
    *,
    delta: float,
    estimator: str = "student",
    gamma: float | None = None,
    notion: Notion = "strong",
) -> Guarantee:
    """Return the federated paper's figure: the product over steps of each step's own expectation. NOT A BOUND.

    E Π_t exp(a_t) is the product of the E exp(a_t) only if a record's costs at different steps are independent. A
    record whose norms stay alike, as they do, costs more (Triastcyn & Faltings, Federated learning with Bayesian
    differential privacy, 2019).

    Args:
        accountant: An accountant of fresh records, `composition="hoelder"`.
        delta: The total failure probability.
        estimator: An estimator that averages moments; the papers' is `student`.
        gamma: The failure probability of one estimate; None picks it.
        notion: `strong` or `weak`.

    Returns:
        The figure, with `is_bound=False`.

    Raises:
        ValueError: If the accountant follows a panel, or an argument is out of range.
        PrivacyError: If nothing was charged, or the estimates' failures reach delta.
    """
    if accountant.composition != "hoelder":
        raise ValueError(
            "The product over steps is for fresh records at each step: use an accountant with composition='hoelder'."
        )
    samples = fresh_samples(accountant.history.histograms, power=1)
    return _comparison(accountant, cost_table, samples, delta, estimator, gamma, notion, product=True)


def printed_figure(
    accountant: BayesianAccountant,
    *,
    delta: float,
    estimator: str = "student",
    gamma: float | None = None,
    notion: Notion = "strong",
) -> Guarantee:
    """Return the accountant's figure with costs by Theorem 3 as it is printed: the larger of its two sides.

    Looser than the accountant's own figure, hundreds of times at small sample rates, and as sound. The papers' own
    figures were not computed by this formula but by their authors' code: `coded_figure`.

    Args:
        accountant: The accountant.
        delta: The total failure probability.
        estimator: An estimator that averages moments; the papers' is `student`.
        gamma: The failure probability of one estimate; None picks it.
        notion: `strong` or `weak`.

    Returns:
        The figure.

    Raises:
        ValueError: If an argument is out of range.
        PrivacyError: If nothing was charged, or the estimates' failures reach delta.
    """
    samples = accountant.history.samples() if accountant.taken else []
    return _comparison(accountant, printed_cost_table, samples, delta, estimator, gamma, notion, product=False)


def sequential_accountant(accountant: BayesianAccountant, *, clients: int) -> BayesianAccountant:
    """Return the accountant that the federated paper has for several clients, one after the other, in each round.

    Each client's batch is taken as a part of the whole federation's data, with the client's own noise, and the
    clients' costs are added up. Batches are drawn inside a client, so the sample rate is understated: NOT A BOUND.

    Args:
        accountant: An accountant of the clients' rounds, `composition="hoelder"`.
        clients: How many clients there are.
    """
    count, state = _check.count("clients", clients), accountant.state_dict()
    state["sample_rate"] = accountant.sample_rate / count
    state["noise_multiplier"] = accountant.noise_multiplier / math.sqrt(count)
    state["steps"] = state["steps"] * count
    state["taken"] = state["taken"] * count
    state["histograms"] = [[repeat * count, counts] for repeat, counts in state["histograms"]]
    return BayesianAccountant.from_state(state)


def _comparison(
    accountant: BayesianAccountant,
    costs: Callable[[float, float, tuple[int, ...]], Floats],
    samples: list[Sample],
    delta: float,
    estimator: str,
    gamma: float | None,
    notion: Notion,
    *,
    product: bool,
) -> Guarantee:
    moments = tuple(name for name, entry in ESTIMATORS.items() if entry.averages == "moments")
    _check.one_of("estimator", estimator, moments)
    _check.one_of("notion", notion, NOTIONS)
    worst = accountant.worst_case(delta=delta)

    def table(orders: tuple[int, ...]) -> Floats:
        return costs(accountant.sample_rate, accountant.noise_multiplier, orders)

    figure = moments_figure(estimator, samples, table, delta=worst.delta, gamma=gamma, notion=notion)
    return bayesian_guarantee(
        figure,
        worst,
        composition="independent" if product else accountant.composition,
        static=accountant.levels == "static",
        assumptions=(*accountant.assumptions, assume("independent-steps")) if product else accountant.assumptions,
        is_bound=not product,
    )
