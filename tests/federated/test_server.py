"""The server's round: coins, charge, clip, sum, noise; whatever clients send, and whoever answers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, chi2, chisquare, kstest, norm

import tacita.federated.participation as shares_module
from tacita._check import PrivacyError
from tacita.accounting import NORM_LEVELS, ORDERS
from tacita.accounting.levels import TOP, cost_table
from tacita.facts import RunFacts
from tacita.federated import Exchange, Server, federation_plan, masker
from tacita.federated.client import epsilon_levels
from tacita.federated.labels import federation_label, typical_floor
from tacita.ledger import DECLARED, Ledger
from tacita.ledger.costs import COST_UNIT, DELTA_UNIT
from tacita.training.step import noisy_mean

FALSE_ALARM = 1e-6
LIKE = {"w": torch.zeros(3, 2), "b": torch.zeros(2)}
FACTS = RunFacts("test", "a test", seeded=True)


def with_noise(update, scale, rng):
    return noisy_mean(update, clip_norm=scale, noise_multiplier=1.0, divisor=1.0, rng=rng)


def make_plan(level, **settings):
    given = {"clients": 5, "client_rate": 1.0, "rounds": 20}
    if level != "client":
        given |= {"record_clip_norm": 1.0, "record_rate": 0.05, "local_batch": 10}
    noise = "noise_multiplier" if level in ("client", "joint") else "record_noise_multiplier"
    return federation_plan(level=level, **{**given, noise: 2.0, **settings})


def make_server(level="client", plan=None, like=LIKE, **settings):
    return Server(plan or make_plan(level), like, **{"seed": 5, **settings})


def update(value=0.01, dtype=torch.float32):
    return {name: torch.full(p.shape, value, dtype=dtype) for name, p in LIKE.items()}


def flat(mean):
    return torch.cat([value.double().flatten() for value in mean.values()]).numpy()


# F7, F11, F12: who takes part.


def sampling_pvalues(rounds, clients, rate):
    """Is it independent coins? The overall rate, the spread of the numbers drawn, and each client's own count."""
    sizes = np.array([len(drawn) for drawn in rounds])
    counts = np.bincount(np.concatenate(rounds).astype(int), minlength=clients)
    spread = np.sum((sizes - clients * rate) ** 2) / (clients * rate * (1 - rate))
    own = np.sum((counts - len(rounds) * rate) ** 2) / (len(rounds) * rate * (1 - rate))
    total = binomtest(int(sizes.sum()), clients * len(rounds), rate).pvalue
    sides = [
        2 * min(law.cdf(value), law.sf(value)) for value, law in ((spread, chi2(len(sizes))), (own, chi2(clients)))
    ]
    return [total, *sides]


@pytest.mark.stat
def test_f7_clients_enter_by_independent_coins():
    clients, rate, rounds = 50, 0.1, 4000
    rng = np.random.default_rng(8)
    server = make_server(plan=make_plan("client", clients=clients, client_rate=rate, rounds=rounds), panel=0)
    names, coins = [f"{i:02d}" for i in range(clients)], []
    for _ in range(rounds):
        coins.append(np.array([int(n) for n in server.begin(names).drawn]))
        server.finish({})
    assert min(sampling_pvalues(coins, clients, rate)) > FALSE_ALARM
    together = np.mean([0 in drawn and 1 in drawn for drawn in coins])
    assert binomtest(round(together * rounds), rounds, rate**2).pvalue > FALSE_ALARM
    fixed = [rng.choice(clients, 5, replace=False) for _ in range(rounds)]
    shuffled = [part for _ in range(rounds // 10) for part in np.split(rng.permutation(clients), 10)]
    more = [np.flatnonzero(rng.random(clients) < 1.1 * rate) for _ in range(rounds)]
    for impostor in (fixed, shuffled, more):
        assert min(sampling_pvalues(impostor, clients, rate)) < FALSE_ALARM


@pytest.mark.stat
def test_clients_with_rates_of_their_own_have_coins_of_their_own():
    plan = make_plan("client", clients=4, client_rate=0.5, rounds=600, client_rates={"a": 0.1, "b": 0.3})
    server, counts = make_server(plan=plan), dict.fromkeys("abcd", 0)
    for _ in range(600):
        for name in server.begin("abcd").drawn:
            counts[name] += 1
        server.finish({})
    for name, rate in (("a", 0.1), ("b", 0.3), ("c", 0.5), ("d", 0.5)):
        assert binomtest(counts[name], 600, rate).pvalue > FALSE_ALARM
        assert binomtest(counts[name], 600, rate + 0.2).pvalue < FALSE_ALARM
    assert server.participations == counts


@pytest.mark.parametrize("level", ["client", "joint"])
def test_f11_empty_rounds_are_noised_and_charged(level):
    plan = make_plan(level, clients=30, client_rate=1 / 30, rounds=150)
    server, names, moved, empty = make_server(plan=plan), [str(i) for i in range(30)], 0, 0
    for _ in range(150):
        now = server.begin(names)
        empty += not now.drawn
        moved += bool(np.all(flat(server.finish({})) != 0.0))
    assert moved == 150
    assert 30 < empty < 80
    assert [ledger.charged(server.identity) for ledger in server.ledgers] == [150] * len(server.ledgers)
    assert server.begin(names) is None
    assert (server.taken, server.status) == (150, "done")


def test_a_round_is_charged_before_anybody_is_asked():
    server = make_server()
    server.begin("abc")
    assert server.ledgers[0].charged(server.identity) == 1
    assert server.taken == 0
    with pytest.raises(PrivacyError, match="No round was begun"):
        make_server().finish({})


def test_more_clients_than_declared_are_refused_before_the_charge():
    server = make_server()
    with pytest.raises(PrivacyError, match="declared for 5"):
        server.begin("abcdef")
    assert server.ledgers[0].charged(server.identity) == 0
    assert server.begin("aabbc").drawn == ("a", "b", "c")


def test_held_out_clients_are_asked_and_never_summed():
    one, other = (make_server(held_out=["e"], panel=2) for _ in range(2))
    now = one.begin("abcde")
    other.begin("abcde")
    assert "e" in now.asked
    assert "e" not in now.drawn
    honest = {n: update() for n in "abcd"}
    assert np.array_equal(flat(one.finish({**honest, "e": update(5.0)})), flat(other.finish(honest)))


@pytest.mark.parametrize(("level", "held_out"), [("client", 60), ("client", 0), ("parallel", 60)])
def test_only_held_out_clients_certify_shares_of_clients(level, held_out):
    """Records are followed among those trained on, and by their clients: nobody speaks for a population of records."""
    names = [str(i) for i in range(70)]
    rates = {"client_rate": 1.0 if level == "parallel" else 0.3}
    plan = make_plan(level, clients=70, rounds=4, **rates)
    server = make_server(plan=plan, held_out=names[:held_out], panel=5)
    for _ in range(4):
        now = server.begin(names)
        server.finish({n: update(0.002 * (1 + int(n))) for n in now.asked})
    label = federation_label(server, FACTS, 1e-5)
    found = label.readings.shares
    assert (found is not None) == (level == "client" and held_out > 0)
    if found is None:
        return
    panel = server.settled().measured.panels["held-out"]
    panel.settle()
    own = np.sort(panel.account(1e-5).epsilons(delta=1e-5))
    rank = next(r for r in range(61) if binom.sf(r - 1, 60, 0.5) <= found.gamma / 15)
    assert dict(found.epsilons)[50.0] == own[rank - 1] < label.worst.epsilon
    assert (found.followed, label.worst.unit) == (60, "client")
    assert any(check.code == "clients-own-choices" for check in label.readings.checks)
    assert "MOST" in str(label)
    assert "MOST" not in str(label.public())


# F9, L10: what clients send.


def sparse():
    return {name: value.to_sparse() for name, value in update().items()}


MALICIOUS = {
    "nan": lambda: {**update(), "b": torch.tensor([math.nan, 0.0])},
    "infinite": lambda: update(math.inf),
    "1e30": lambda: update(1e30),
    "1e38": lambda: update(1e38),
    "1e300 in float64": lambda: update(1e300, torch.float64),
    "wrong shape": lambda: {**update(), "b": torch.zeros(3)},
    "shape that broadcasts": lambda: {**update(), "b": torch.zeros(1)},
    "whole numbers": lambda: {name: torch.ones(p.shape, dtype=torch.int64) for name, p in LIKE.items()},
    "complex": lambda: update(1.0, torch.complex64),
    "booleans": lambda: {name: torch.ones(p.shape, dtype=torch.bool) for name, p in LIKE.items()},
    "texts": lambda: dict.fromkeys(LIKE, "1.0"),
    "lists": lambda: {name: p.tolist() for name, p in LIKE.items()},
    "missing": lambda: {"w": torch.zeros(3, 2)},
    "extra": lambda: {**update(), "more": torch.zeros(2)},
    "keys that are no texts": lambda: {1: torch.zeros(2), 2: torch.zeros(2)},
    "no mapping": lambda: [torch.zeros(3, 2), torch.zeros(2)],
    "nothing": lambda: None,
    "sparse": sparse,
    "without numbers": lambda: {name: torch.empty(p.shape, device="meta") for name, p in LIKE.items()},
}


@pytest.mark.parametrize("level", ["client", "parallel", "sequential", "joint"])
@pytest.mark.parametrize("kind", MALICIOUS)
def test_f9_l10_replies_that_are_no_updates_count_for_nothing(level, kind):
    """Mean and noise are bit for bit those without the reply; the charge is the same; nobody is told."""
    spoiled, clean = make_server(level), make_server(level)
    for server in (spoiled, clean):
        server.begin("abcde")
    honest = {name: update() for name in "abc"}
    seen, expected = spoiled.finish({**honest, "d": MALICIOUS[kind]()}), clean.finish(honest)
    assert np.isfinite(flat(seen)).all()
    assert np.array_equal(flat(seen), flat(expected))
    assert [ledger.charged(spoiled.identity) for ledger in spoiled.ledgers] == [1] * len(spoiled.ledgers)
    for server in (spoiled, clean):
        server.identity = "the same"
    ours, theirs = (federation_label_texts(server) for server in (spoiled, clean))
    assert ours == theirs


def federation_label_texts(server):
    """Everything that a checkpoint or a label could be made of, but for the heads of the ledgers."""
    _, document = server.state()
    return {key: value for key, value in document.items() if key != "heads"}


@pytest.mark.parametrize("level", ["client", "parallel", "sequential", "joint"])
def test_l10_replies_of_others_and_of_earlier_rounds_are_dropped(level):
    """A client that is not drawn now, one that is not enrolled, and a reply that comes after its round."""
    rate = 1.0 if level == "sequential" else 0.5
    plan = make_plan(level, client_rate=rate)
    one, other = (make_server(plan=plan) for _ in range(2))
    for _ in range(20):
        now = one.begin("abcd")
        other.begin("abcd")
        replies = {name: update() for name in now.drawn[:2]}
        strangers = {name: update(0.02) for name in {"a", "b", "c", "d", "z"} - set(now.drawn)}
        assert np.array_equal(flat(one.finish({**replies, **strangers})), flat(other.finish(replies)))
        with pytest.raises(PrivacyError, match="No round was begun"):
            one.finish(strangers)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_f2_clipping_at_the_server_is_exact_for_every_kind_of_float(dtype, rng):
    """An update in bfloat16, clipped in bfloat16, would reach 1.003 of the clip norm."""
    plan = make_plan("client", rounds=200)
    one, other = (make_server(plan=plan) for _ in range(2))
    largest = 0.0
    for _ in range(40):
        for server in (one, other):
            server.begin("a")
        values = {n: torch.from_numpy(rng.standard_normal(p.shape) * 5).to(dtype) for n, p in LIKE.items()}
        one.like = other.like = {n: p.to("meta", torch.float64) for n, p in LIKE.items()}
        moved = (flat(one.finish({"a": values})) - flat(other.finish({}))) * plan.divisor
        largest = max(largest, np.linalg.norm(moved))
    assert 0.99 < largest <= 1 + 1e-6


@given(
    exponents=st.lists(st.floats(-45, 37), min_size=8, max_size=8),
    signs=st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=8, max_size=8),
    clip_norm=st.floats(1e-3, 1e3),
)
def test_f20_adding_a_client_moves_the_sum_by_at_most_the_clip_norm(exponents, signs, clip_norm):
    plan = make_plan("client", clip_norm=clip_norm)
    like = {n: p.double() for n, p in LIKE.items()}
    one, other = (make_server(plan=plan, like=like) for _ in range(2))
    values = torch.tensor([s * 10.0**e for s, e in zip(signs, exponents, strict=True)], dtype=torch.float64)
    added = {"w": values[:6].view(3, 2), "b": values[6:]}
    for server in (one, other):
        server.begin("abc")
    others = {"a": update(0.1), "b": update(-30.0)}
    moved = (flat(one.finish({**others, "c": added})) - flat(other.finish(others))) * plan.divisor
    assert np.linalg.norm(moved) <= clip_norm * (1 + 1e-6)


def test_clients_noise_is_not_scaled_at_the_server():
    """Where updates carry noise they are summed as they are; only what no honest client could send is dropped."""
    for level in ("sequential", "joint"):
        plan = make_plan(level)
        size = sum(p.numel() for p in LIKE.values())
        largest = plan.largest_update(size)
        for length, counts in ((largest * 0.999, True), (largest * 1.001, False)):
            value = length / math.sqrt(size)
            server, empty = make_server(plan=plan), make_server(plan=plan)
            server.begin("ab")
            empty.begin("ab")
            moved = flat(server.finish({"a": update(value)})) - flat(empty.finish({}))
            assert (np.ptp(moved) > 0.0) == counts  # with one share less from the server, or all the same
        honest = chi2.isf(1e-40, size) ** 0.5 * plan.share_noise + plan.clip_norm
        assert honest < largest


# L11, B12: noise.


@pytest.mark.stat
@pytest.mark.parametrize("level", ["joint", "sequential"])
def test_l11_the_noise_in_the_sum_is_the_promised_one_whoever_answers(level):
    """1,000 rounds with drop-outs from 0 to 90%, zero gradients, 50 numbers each: chi-square for each tenth."""
    rate = 0.4 if level == "joint" else 1.0
    plan = make_plan(level, clients=12, client_rate=rate, rounds=1000, clip_norm=3.0)
    like = {"w": torch.zeros(50, dtype=torch.float64)}
    server, rng = make_server(plan=plan, like=like), np.random.default_rng(1)
    names, squares, answers = [f"{i:02d}" for i in range(12)], np.zeros(10), set()
    for number in range(1000):
        absent = number % 10
        now = server.begin(names)
        here = [n for n in now.asked if rng.random() >= absent / 10]
        answers.add(len(here))
        mean = server.finish({n: with_noise(like, plan.share_noise, rng) for n in here})
        squares[absent] += np.sum((mean["w"].numpy() * plan.divisor / plan.total_noise) ** 2)
    assert len(answers) > 8
    for total in squares:
        assert FALSE_ALARM < chi2.cdf(total, 100 * 50) < 1 - FALSE_ALARM
    assert chi2.cdf(0.9 * 100 * 50, 100 * 50) < 1e-3  # 5% less noise would be seen in a tenth, 2% in all
    assert FALSE_ALARM < chi2.cdf(squares.sum(), 1000 * 50) < 1 - FALSE_ALARM


@pytest.mark.stat
def test_b12_a_joint_round_with_more_clients_than_shares_asks_nobody(monkeypatch):
    monkeypatch.setattr(shares_module, "TOO_MANY", 50.0)  # a rare case made common: one round in six
    monkeypatch.setattr(shares_module, "LARGEST_EPSILON", 0.0)
    plan = make_plan("joint", clients=12, client_rate=0.4, rounds=300)
    like = {"w": torch.zeros(50, dtype=torch.float64)}
    assert plan.shares < 12
    server, rng = make_server(plan=plan, like=like), np.random.default_rng(1)
    empty, squares = 0, 0.0
    for _ in range(300):
        now = server.begin([f"{i:02d}" for i in range(12)])
        assert len(now.asked) <= plan.shares
        empty += not now.asked
        mean = server.finish({n: with_noise(like, plan.share_noise, rng) for n in now.asked})
        squares += np.sum((mean["w"].numpy() * plan.divisor / plan.total_noise) ** 2)
    expected = binom.sf(plan.shares, 12, 0.4) + binom.pmf(0, 12, 0.4)
    assert binomtest(empty, 300, expected).pvalue > FALSE_ALARM
    assert empty > 20
    assert FALSE_ALARM < chi2.cdf(squares, 300 * 50) < 1 - FALSE_ALARM


@pytest.mark.stat
def test_f6_the_servers_noise_is_never_used_twice():
    server = make_server(plan=make_plan("client", rounds=60), like={"w": torch.zeros(500)})
    rows = []
    for _ in range(60):
        server.begin("ab")
        rows.append(flat(server.finish({})))
    assert np.abs(np.corrcoef(rows)[np.triu_indices(60, 1)]).max() < 6 / math.sqrt(500)
    other = make_server(plan=make_plan("client", rounds=60), like={"w": torch.zeros(500)}, seed=None)
    other.begin("ab")
    assert abs(np.corrcoef(rows[0], flat(other.finish({})))[0, 1]) < 6 / math.sqrt(500)


# Lost rounds.


@pytest.mark.parametrize("level", ["client", "parallel", "sequential", "joint"])
def test_a_round_that_is_begun_again_is_lost_and_counts(level):
    server = make_server(level, panel=2)
    server.begin("abcd")
    server.finish({})
    server.begin("abcd")
    now = server.begin("abcd")
    assert (now.number, server.taken, server.lost) == (3, 2, 1)
    server.finish({})
    assert [ledger.charged(server.identity) for ledger in server.ledgers] == [3] * len(server.ledgers)
    assert server.most_steps == 3
    assert server.steps_of("never seen") == 1
    for panel in server.measured.panels.values():
        panel.settle()
        assert panel.account(1e-5).taken == 3


def test_lost_rounds_use_up_the_plan():
    server = make_server(plan=make_plan("client", rounds=3))
    for _ in range(3):
        server.begin("abc")
    assert server.begin("abc") is None
    assert (server.taken, server.lost, server.status) == (3, 3, "done")


@pytest.mark.parametrize("level", ["client", "parallel", "sequential", "joint"])
def test_a_label_counts_a_round_that_is_still_open(level):
    server, closed = make_server(level), make_server(level)
    for _ in range(2):
        server.begin("abcd")
        closed.begin("abcd")
        closed.finish({})
        if server.taken == 0:
            server.finish({})
    open_label, label = (federation_label(s, FACTS, 1e-5) for s in (server, closed))
    assert open_label.worst.epsilon == label.worst.epsilon
    assert dict(open_label.readings.facts)["Rounds taken"].startswith("2 of 20")


def test_a_panel_that_begins_late_is_charged_from_the_first_round():
    """Nobody is enrolled in the first round, and nobody is held out before the third."""
    server = make_server(panel=2)
    server.begin([])
    server.finish({})
    server.begin("abc")
    server.finish({n: update() for n in "abc"})
    assert server.measured.members["training"]
    for panel in server.measured.panels.values():
        panel.settle()
        assert panel.account(1e-5).taken == server.taken == 2
        assert (panel.account(1e-5).counts[:, -1] >= 1).all()


def test_followed_clients_that_do_not_answer_are_charged_at_the_clip_bound():
    server = make_server(panel=5)
    server.begin("abcde")
    server.finish({"a": update(0.05), "b": update(0.0)})
    server.begin("ab")
    server.finish({"a": update(0.05), "b": {"w": torch.full((3, 2), math.nan), "b": torch.zeros(2)}})
    server.measured.panels["training"].settle()
    counts = server.measured.panels["training"].account(1e-5).counts
    assert counts[:, -1].tolist() == [0, 1, 2, 2, 2]
    level = int(np.flatnonzero(counts[0])[0])
    assert NORM_LEVELS[level - 1] < math.sqrt(8) * 0.05 <= NORM_LEVELS[level]
    assert counts[1, 0] == 1


# B14: what clients tell.


def told(server, now, messages, *, followed=1):
    """An exchange in which each client says what `messages` makes of its masker and the keys."""
    sides = {}

    def keys(names, exchange):
        sides.update({n: masker(n, exchange) for n in names})
        return {n: sides[n].public for n in names}

    def costs(public, exchange, what):
        return {n: messages(n, sides[n], public) for n in public}

    server.measured.collect_norms(now, Exchange(keys, costs), per_client=followed)


def counts_at(norm, number=1):
    return np.bincount([int(np.flatnonzero(norm <= NORM_LEVELS)[0])] * number, minlength=len(NORM_LEVELS)).astype(float)


def one_round(level="joint", **settings):
    server = make_server(plan=make_plan(level, **settings))
    now = server.begin("abcde")
    server.finish({})
    return server, now


def cost_of(server):
    """What the round was charged, at the clip bound or by what was told: the mean moment of order 1."""
    ((_, histogram),) = server.measured.norms.history.histograms
    table = cost_table(server.measured.norms.sample_rate, server.measured.norms.noise_multiplier, ORDERS)
    return float(histogram @ np.exp(table[0])) / histogram.sum(), float(np.exp(table[0, TOP]))


def test_b14_honest_counts_are_taken_as_they_are():
    server, now = one_round()
    told(server, now, lambda n, side, keys: side.sum_message(counts_at(0.25), keys))
    cost, worst = cost_of(server)
    assert server.measured.norms.taken == 1
    assert cost < 0.5 * worst + 0.5


LIES = {
    "nothing at all": lambda n, side, keys: side.sum_message(np.zeros(len(NORM_LEVELS)), keys),
    "two clients in one": lambda n, side, keys: side.sum_message(counts_at(0.1, 2), keys),
    "1e9 of them": lambda n, side, keys: side.sum_message(counts_at(0.1) * 1e5, keys),
    "minus one": lambda n, side, keys: side.sum_message(counts_at(0.1), keys) - np.uint64(2**32),
    "wrong length": lambda n, side, keys: side.sum_message(np.zeros(5), keys),
    "whole numbers": lambda n, side, keys: np.zeros(len(NORM_LEVELS), dtype=np.int64),
    "real numbers": lambda n, side, keys: np.full(len(NORM_LEVELS), math.nan),
    "no numbers": lambda n, side, keys: "1",
    "nothing": lambda n, side, keys: None,
    "ragged": lambda n, side, keys: [[1], [1, 2]],
    "random words": lambda n, side, keys: np.full(len(NORM_LEVELS), 12345678901234567, dtype=np.uint64),
}


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize("liars", ["a", "abcde"])
def test_b14_l10_costs_that_are_not_plausible_are_replaced_by_the_worst_case(kind, liars):
    server, now = one_round()

    def message(name, side, keys):
        return LIES[kind](name, side, keys) if name in liars else side.sum_message(counts_at(0.25), keys)

    told(server, now, message)
    cost, worst = cost_of(server)
    assert cost == pytest.approx(worst)
    told(server, now, message)
    assert server.measured.norms.taken == 1  # a round is charged once


def test_b14_those_who_do_not_tell_are_counted_at_the_clip_bound():
    server, now = one_round()
    sides = {}

    def keys(names, exchange):
        sides.update({n: masker(n, exchange) for n in names if n in "abc"})
        return {n: side.public for n, side in sides.items()}

    def costs(public, exchange, what):
        return {n: sides[n].sum_message(counts_at(0.25), public) for n in public}

    server.measured.collect_norms(now, Exchange(keys, costs))
    ((_, histogram),) = server.measured.norms.history.histograms
    assert histogram[-1] == 2
    assert histogram.sum() == 5


def test_rounds_that_nobody_was_asked_about_are_charged_at_the_clip_bound():
    """The exchange of the second round never happens: the figure must not be that of one round."""
    server, now = one_round()
    told(server, now, lambda n, side, keys: side.sum_message(counts_at(0.05), keys))
    server.begin("abcde")
    server.finish({})
    seen = server.settled()
    assert seen.measured.norms.taken == seen.taken == 2
    assert federation_label(server, FACTS, 1e-5) == federation_label(seen, FACTS, 1e-5)
    assert server.measured.norms.taken == 1  # looking changes nothing


@pytest.mark.parametrize("level", ["client", "joint"])
def test_rounds_with_hardly_anybody_have_a_typical_figure_too(level):
    """An estimator needs two: with nobody or one client drawn the worst case stands."""
    server = make_server(plan=make_plan(level, rounds=2, client_rate=0.2))
    while (now := server.begin("abcde")) is not None:
        server.finish({})
        server.measured.collect_norms(now, Exchange(lambda names, exchange: {}, lambda *a: {}))
    label = federation_label(server, FACTS, 1e-5)
    bound = next(g for g in label.readings.typical if g.estimator == "bernstein")
    assert bound.epsilon == pytest.approx(label.worst.epsilon, rel=1e-3)


def test_participants_are_no_sample_of_clients_that_take_part_more_and_less_often():
    """All clients at a low rate are at the bound; the participants that are seen are almost all of the others."""
    plan = make_plan("client", client_rates=dict.fromkeys("ab", 0.05), rounds=2)
    server = make_server(plan=plan)
    while server.begin("abcde") is not None:
        server.finish({n: update(1e-6) for n in "cde"})
    label = federation_label(server, FACTS, 1e-5)
    assert label.readings.typical == ()
    slow = next(g for g in label.comparisons if "0.05" in g.unit)
    assert slow.epsilon < label.worst.epsilon
    with pytest.raises(PrivacyError, match="different units"):
        assert slow < label.worst


def records_exchange(epsilons, levels, *, absent=""):
    sides = {}

    def keys(names, exchange):
        sides.update({n: masker(n, exchange) for n in names if n not in absent})
        return {n: sides[n].public for n in names if n not in absent}

    def costs(public, exchange, what):
        return {n: sides[n].maximum_message(epsilons, levels, public) for n in public}

    return Exchange(keys, costs)


def test_b14_clients_that_never_tell_are_at_the_worst_case_and_nobody_is_above_it():
    plan = make_plan("parallel", rounds=4)
    server = make_server(plan=plan)
    for _ in range(2):
        server.begin("abcd")
        server.finish({})
    levels = epsilon_levels(plan)
    server.measured.collect_costs(records_exchange([0.01, 0.02], levels, absent="d"), server.taken)
    assert server.measured.unreported == {"d"}
    assert typical_floor(server) == plan.record_worst(2, plan.delta).epsilon
    figures = federation_label(server, FACTS, plan.delta).readings.typical
    assert [g.epsilon for g in figures] == [plan.record_worst(2, plan.delta).epsilon] * 2
    server.measured.collect_costs(records_exchange([1e9, math.inf], levels), server.taken)
    assert (server.measured.typical <= levels[-1]).all()
    assert {g.notion for g in figures} == {"weak"}  # the only one that a worst case bounds


def test_lost_rounds_are_in_the_typical_figures_of_records():
    plan = make_plan("parallel", rounds=4)
    server = make_server(plan=plan)
    for _ in range(2):
        server.begin("abcd")
        server.finish({})
    server.measured.collect_costs(records_exchange([0.01, 0.01], epsilon_levels(plan)), server.taken)
    assert typical_floor(server) == 0.0
    server.begin("abcd")
    server.lose(1)
    assert server.measured.unreported == set("abcd")
    assert typical_floor(server) == plan.record_worst(3, plan.delta).epsilon
    server.measured.collect_costs(records_exchange([0.01, 0.01], epsilon_levels(plan)), server.taken)
    assert typical_floor(server) == plan.record_worst(1, plan.delta).epsilon  # clients first drawn in the lost round


# Ledgers.


def test_two_ledgers_at_joint_each_with_its_unit(tmp_path):
    client, record = Ledger.create(tmp_path / "c", unit="client"), Ledger.create(tmp_path / "r")
    server = make_server("joint", ledger=client, record_ledger=record)
    server.begin("abcde")
    assert (client.charged(server.identity), record.charged(server.identity)) == (1, 1)
    assert (client.spent(1e-5).unit, record.spent(1e-5).unit) == ("client", "record")
    for level, ledger in (("client", record), ("parallel", client), ("joint", record)):
        with pytest.raises(PrivacyError, match="use another ledger"):
            make_server(level, ledger=ledger)


def test_charges_are_those_of_the_worst_case():
    """A block of local steps at parallel, the failure of a joint round, and never less than by moments."""
    server = make_server(plan=make_plan("parallel", local_steps=3))
    server.begin("abc")
    table = cost_table(0.05, 2.0, (1, 7))[:, TOP]
    row = next(r for r in server.ledgers[0].rows() if r.kind == "charge")
    charged = dict(zip(DECLARED, row.body["costs"], strict=True))
    assert row.body["steps"] == 3
    for order, cost in zip((1, 7), table, strict=True):
        assert 3 * cost <= charged[order] / COST_UNIT <= 3 * cost + 1e-9
    joint = make_server(plan=make_plan("joint", clients=1000, client_rate=0.01))
    joint.begin("abc")
    row = next(r for r in joint.ledgers[0].rows() if r.kind == "charge")
    assert row.body["delta"] / DELTA_UNIT == pytest.approx(joint.plan.failure / 20)


def test_a_used_up_budget_of_either_unit_ends_the_run_and_charges_nothing_twice(tmp_path):
    """The records' budget ends first; once its owner raises it, the run goes on and each round is charged once."""
    plan = make_plan("joint", clients=3, client_rate=0.9)
    record = Ledger.create(tmp_path / "r")
    server = Server(plan, LIKE, record_ledger=record, seed=1)
    server.begin("abc")
    server.finish({})
    record.set_budget(record.spent(1e-5).epsilon, 1e-5)
    for _ in range(2):
        assert server.begin("abc") is None
        assert server.status == "budget-spent"
    assert [ledger.charged(server.identity) for ledger in server.ledgers] == [2, 1]
    tensors, document = server.state()
    again = Server(plan, LIKE, ledger=server.ledgers[0], record_ledger=record, identity=server.identity, seed=None)
    again.restore(tensors, document, resume=True)
    assert (again.taken, again.lost) == (1, 0)  # the round that one ledger alone knows was not begun
    record.set_budget(1e3, 1e-5, allow_increase=True)
    assert again.begin("abc").number == 2
    again.finish({})
    assert [ledger.charged(again.identity) for ledger in again.ledgers] == [2, 2]


def restored(server, plan=None, *, resume=True, document=None, ledgers=None):
    tensors, saved = server.state()
    places = ledgers or server.ledgers
    made = Server(plan or server.plan, LIKE, ledger=places[0], record_ledger=places[-1], identity=server.identity)
    made.restore(tensors, document or saved, resume=resume)
    return made


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("level", ["client", "parallel", "sequential", "joint"])
def test_l5_a_plan_that_is_not_the_frozen_one_is_refused(level, resume):
    server = make_server(level)
    server.begin("abc")
    server.finish({})
    noise = "noise_multiplier" if level in ("client", "joint") else "record_noise_multiplier"
    for wrong in ({noise: 50.0}, {"rounds": 40}, {"divisor": 1.0} if level == "client" else {"record_rate": 0.01}):
        with pytest.raises(PrivacyError, match="froze"):
            restored(server, make_plan(level, **wrong), resume=resume)
    assert restored(server, resume=resume).taken == 1


def test_l4_ledgers_that_disagree_are_refused():
    server = make_server("joint")
    for _ in range(3):
        server.begin("abc")
        server.finish({})
    _, document = server.state()
    behind = make_server("joint", ledger=server.ledgers[0], identity="other")
    early = {**document, "taken": 0, "participations": {}, "heads": [server.ledgers[0].head, behind.ledgers[1].head]}
    with pytest.raises(PrivacyError, match="different numbers of rounds"):
        restored(server, document=early, ledgers=(server.ledgers[0], behind.ledgers[1]))


def test_held_out_clients_stay_held_out_after_a_resume():
    server = make_server(held_out=["e"], panel=2)
    server.begin("abcde")
    server.finish({})
    assert "e" not in restored(server).begin("abcde").drawn


def test_restoring_keeps_every_count_and_loses_what_was_charged_since():
    server = make_server(plan=make_plan("client", client_rate=0.5), panel=2)
    for _ in range(3):
        server.begin("abcde")
        server.finish({n: update() for n in "abcde"})
    tensors, saved = server.state()
    server.begin("abcde")
    again = Server(server.plan, LIKE, ledger=server.ledgers[0], identity=server.identity)
    again.restore(tensors, saved, resume=True)
    assert (again.taken, again.lost) == (4, 1)
    assert again.participations == server.participations
    assert again.measured.members == server.measured.members
    for panel in again.measured.panels.values():
        assert panel.account(1e-5).taken == 4
    assert again.ledgers[0].charged(again.identity) == 4


def test_f5_a_seed_is_used_once_on_one_ledger():
    server = make_server(seed=3)
    server.begin("abc")
    with pytest.raises(PrivacyError, match="used this seed"):
        make_server(seed=3, ledger=server.ledgers[0]).begin("abc")


# Who takes part does not show.


@pytest.mark.stat
def test_the_round_is_the_sampled_gaussian_mechanism():
    """One client, one number: the mean over many rounds has the law of the two-point mixture, exactly."""
    plan = make_plan("joint", clients=1, client_rate=0.3, rounds=3000, noise_multiplier=1.0)
    like, rng = {"w": torch.zeros(1, dtype=torch.float64)}, np.random.default_rng(2)
    server, seen = make_server(plan=plan, like=like), []
    sent = {"w": torch.ones(1, dtype=torch.float64)}
    for _ in range(3000):
        now = server.begin(["a"])
        seen.append(server.finish({n: with_noise(sent, plan.share_noise, rng) for n in now.drawn})["w"].item())

    def law(sigma, rate):
        return lambda x: (1 - rate) * norm.cdf(x, 0, sigma) + rate * norm.cdf(x, 1, sigma)

    assert kstest(seen, law(1.0, 0.3)).pvalue > FALSE_ALARM
    assert kstest(seen, law(1.0, 0.45)).pvalue < FALSE_ALARM
    assert kstest(seen, law(0.8, 0.3)).pvalue < FALSE_ALARM


def test_public_figures_of_clients_do_not_tell_how_often_they_took_part():
    """At joint the records' figure stands beside the clients': it must not be that of the busiest client."""
    pages = set()
    for seed in range(3):
        server = make_server(plan=make_plan("joint", rounds=2, client_rate=0.4), seed=seed)
        enrolled = "abcde" if seed else "a"
        while server.begin(enrolled) is not None:
            server.finish({})
        pages.add(repr(federation_label(server, FACTS, 1e-5).public().to_dict()))
    assert len(pages) == 1


def test_the_panel_is_drawn_evenly():
    counts = dict.fromkeys("abcde", 0)
    for seed in range(200):
        server = make_server(panel=2, seed=seed)
        server.begin("abcde")
        for name in server.measured.members["training"]:
            counts[name] += 1
    assert chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_a_joint_federation_refuses_a_budget_for_which_its_failures_do_not_count():
    plan = make_plan("joint", clients=60, client_rate=0.1)
    assert plan.failure > 0.0
    with Ledger.create(":memory:", unit="client", epsilon=41.0, delta=1e-5) as ledger:
        with pytest.raises(PrivacyError, match="nothing beyond epsilon 40, and the ledger's budget is 41"):
            make_server(plan=plan, ledger=ledger)
        ledger.set_budget(40.0, 1e-5)
        make_server(plan=plan, ledger=ledger)


def test_f26_with_exact_noise_rounds_are_on_a_grid_and_one_client_moves_them_by_its_own_steps(rng):
    plan = make_plan("client", noise="exact", clip_norm=0.3, divisor=4.0)
    like = {name: p.double() for name, p in LIKE.items()}
    replies = {str(i): {n: torch.from_numpy(rng.normal(size=p.shape)) for n, p in LIKE.items()} for i in range(5)}
    replies["3"]["b"][0] = math.nan
    means = {}
    for gone in (None, *replies):
        server = make_server(plan=plan, like=like)
        server.begin(replies)
        means[gone] = flat(server.finish({name: reply for name, reply in replies.items() if name != gone}))
    step = plan.grid.step
    for gone, mean in means.items():
        steps = mean * 4.0 / step
        assert (steps == np.round(steps)).all()
        own = (means[None] - mean) * 4.0 / step  # the same seed, so the same noise
        assert sum(int(z) ** 2 for z in own) <= plan.grid.most(0.3)
        assert own.any() == (gone not in (None, "3"))


@pytest.mark.stat
def test_exact_noise_of_a_server_has_the_declared_deviation():
    plan, like = make_plan("client", noise="exact", clip_norm=0.3, divisor=4.0), {"w": torch.zeros(20_000).double()}
    server = make_server(plan=plan, like=like)
    server.begin(["0"])
    mean = server.finish({})["w"].numpy()
    assert kstest(mean, norm(scale=0.6 / 4.0).cdf).pvalue > FALSE_ALARM
    assert kstest(mean, norm(scale=0.66 / 4.0).cdf).pvalue < FALSE_ALARM


def test_exact_noise_is_for_level_client_and_on_its_label():
    for level in ("parallel", "sequential", "joint"):
        with pytest.raises(PrivacyError, match="level 'client'"):
            make_plan(level, noise="exact")
    plain, exact = make_plan("client"), make_plan("client", noise="exact")
    assert type(exact).from_dict(exact.to_dict()) == exact
    assert "noise" not in plain.to_dict()
    server = make_server(plan=exact)
    server.begin(["0"])
    server.finish({"0": update()})
    label = federation_label(server, FACTS)
    assert label.worst.epsilon == plain.client_worst(20, label.worst.delta).epsilon
    assert not any("loating" in line for line in label.not_hardened)
    assert {"whole-updates", "updates-still"} <= {a.code for a in label.worst.assumptions}
