"""What a statement rests on, typed: a code, who answers for it, how it stands, and one sentence for people.

Code decides by `Assumption.code` alone; the sentences below are only shown. They stand here and not in `report` because
`str(guarantee)` and its JSON need them, and imports point down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tacita import _check

State = Literal["holds", "open", "warning"]
Answers = Literal["software", "owner", "clients", "server"]

# Enforced or tested by the software.
_HOLDS = {
    "record-coins": "Each record takes part in each step by chance, with the same probability and independently of "
    "all others",
    "clipped": "Each record's contribution is clipped, in float32 or better; one that is not finite, or cannot be "
    "computed, is dropped",
    "fixed-beforehand": "Noise, sampling rate, divisor and the planned number of steps were fixed before the first "
    "step",
    "charged": "Every step was charged to the ledger, on disk, before it was released",
    "records-apart": "What a record contributes is computed from that record alone: no layer of the model combines the "
    "records of a batch, or keeps anything of them for later",
    "record-budget": "Every record is held to its declared budget",
    "rungs": "The rungs were declared before the first step, and a record's bound in a step depends on that record and "
    "on what was released before, and on nothing else",
    "tuning-accounted": "Tuning: accounted. The model is the best of a random number of complete runs ({law}), each "
    "with fresh noise and settings drawn at random; the figures cover the choice of {settings}",
    "tuning-charged": "The tuning was charged to the ledger as one entry, on disk, before its first run",
    "fresh-noise": "The noise comes from a cryptographic generator (AES-128 in counter mode), keyed by the operating "
    "system, and is used only once",
    "fresh-noise-there": "The noise is drawn on the accelerator ({device}), seeded at every step by a cryptographic "
    "generator that the operating system keyed, and is used only once",
    "exact-gaussian": "The noise is a Gaussian rounded to a public grid, drawn exactly in whole numbers from a "
    "cryptographic generator (AES-128 in counter mode), keyed by the operating system, and is used only once",
    "whole-numbers": "Each record's contribution is rounded towards zero to whole numbers on the same grid, its norm "
    "is checked in whole numbers, and the sum is exact",
    "others-still": "What the other records contribute is the same, bit for bit, with and without a record: each is "
    "computed in blocks of one shape on one thread, in which neither places nor neighbours mattered on made-up records",
    "no-trend": "The gradient norms of the {panel} records show no trend along their order in the data",
    "no-client-trend": "The norms of the {panel} clients' updates show no trend along the order of enrolment",
    # Federations.
    "client-coins": "Each client takes part in each round by chance, with the same probability and independently of "
    "all others; a round may be empty",
    "updates-checked": "Updates that are not finite, or not of the model's shape, are silently dropped",
    "rounds-fixed-beforehand": "Noise, rates, divisors and the planned number of rounds were fixed before the first "
    "round",
    "round-charged": "Every round was charged to the ledger, on disk, before any client was asked",
    "updates-clipped": "Each client's update is clipped before noise is added to the sum",
    "clipped-inside": "Inside a client, each record takes part in each step by chance, independently of all others, "
    "and is clipped before summation",
    "noise-complete": "The noise in a round's sum is as promised, whichever clients answer",
    "fresh-server-noise": "The server's sampling and noise come from a cryptographic generator (AES-128 in counter "
    "mode), keyed by the operating system, and are used only once",
    "whole-updates": "Each client's update is rounded towards zero to whole numbers on the same grid, its norm is "
    "checked in whole numbers, and the sum is exact",
    "updates-still": "Each client computes its update by itself, so that the others' are the same, bit for bit, with "
    "and without a client",
    # Generators.
    "after-release": "Drawing from the generator costs nothing further, however much is drawn: it depends on the data "
    "only through what was charged",
    "unit-vectors": "Each record adds a vector of length at most one to the block of its class, or zero if it is not "
    "finite",
    "person-vectors": "Each person adds the mean of vectors of length at most one, one for each of at most {rows} of "
    "their records, in the block of its class, or zero if it is not finite",
    "one-release": "All records are summed once: there is no sampling and only one release",
    "embedding-fixed-beforehand": "Features, noise and sizes were fixed beforehand; the noisy sum is not divided by a "
    "number of records",
    "release-charged": "The release was charged to the ledger, on disk, before it was stored",
    "parts-composed": "Critic and annotator are composed: their budgets add up to the one shown",
    "batch-clipped": "The gradient of the whole batch is clipped to C: one record can reverse its direction, and so "
    "move it by 2C",
    "critics-stay": "Critics and their optimisers stay with their clients: only the generator's update leaves a client",
    # Programs.
    "program-charged": "The whole program was charged to the ledger, on disk, before any noise was drawn",
    "exact-noise": "The noise is drawn in exact integer arithmetic, seeded by the operating system, and used only once",
    "rows-capped": "At most {rows} rows of a person count, chosen by chance, once, before anything is calculated",
    # Inference.
    "one-record-models": "The model was fitted to one record of plate {plate!r} at a time",
    "box-enforced": "Every mean and scale of the posterior was moved into the declared box before anything was drawn",
    "one-posterior": "All draws are from one posterior, and nothing else is released",
    "part-clipped": "Each record's contribution to a step is clipped; one that is not finite, or cannot be computed, "
    "is dropped",
    "draws-charged": "The draws were charged to the ledger, on disk, before the fit began",
    "intervals-cover": "In simulations, {level} intervals contained the truth {held} of the time",
    "independent-replays": "the pairs are independent: each record was drawn with replacement, and the fit repeated "
    "without it from the same randomness as the released fit, with the sampling of all other records unchanged; this "
    "randomness was fixed before the data were seen and need not be secret",
    "unseen-charged": "{pairs} replayed pairs leave up to {unseen} of the records unseen, which are charged the worst "
    "case",
    "every-record-replayed": "every record of the data was left out once, and the fit repeated without it from the "
    "same randomness as the released fit, with the sampling of all other records unchanged; this randomness was fixed "
    "before the data were seen and need not be secret",
}

# Nobody tested it: somebody answers for it, the data's owner unless `_ANSWERS` says otherwise.
_OPEN = {
    # Accounting.
    "sampling": "each record enters each step independently with the stated probability",
    "clipping": "each record's contribution is clipped before noise is added to the sum",
    "public-constants": "the divisor, the sample rate and the number of steps do not depend on the data",
    "gaussian-noise": "the noise is Gaussian and unpredictable (floating point: not hardened)",
    "rounded-noise": "the noise is a Gaussian rounded to a public grid, drawn exactly, and unpredictable; "
    "contributions are whole numbers on the same grid",
    "sensitivity": "one record changes the released sum by at most the stated sensitivity",
    "enforced-record-budget": "every record is held to its declared budget (enforced)",
    "representative": "the followed records are independent draws from the population and were not trained on",
    "another-population": "the record is drawn from a population ({population}) at a total variation distance of at "
    "most {tv} from the one that was followed; nothing here estimates that distance",
    "static-norms": "each record's norm is fixed for the whole run by the record and by public facts (declared static)",
    "observed-norms": "what each followed record contributed (its gradient norm) was observed in this run; another run "
    "may differ",
    "measured-at-random": "each followed record was measured at random steps, {share} of them; what it may have "
    "contributed in the others is bounded, except with probability {failure}",
    "exchangeable": "the followed records and the record in question are exchangeable; budget and tolerance were "
    "declared beforehand",
    "certificate": "{followed} records were followed, and {tolerated} of them were allowed to exceed the budget",
    "joint-delta": "delta bounds the probability that a certificate is issued and the loss exceeds it, not the "
    "probability of the latter given the former",
    "independent-steps": "steps are treated as independent: NOT an upper bound if a record's norms are alike from step "
    "to step; for comparison only",
    # Ledgers.
    "all-in-ledger": "every release about the dataset is in this ledger, charged at no less than its cost",
    "runs-fresh-noise": "each run drew fresh noise, as declared by its mechanism",
    "newest-copy": "the file is not an older copy of itself (compare its head with one kept elsewhere)",
    "fresh-data": "The data charged from {first} to {last} are new: no {unit} in them is among the data charged to the "
    "same ledger at other times, whose budgets are their own",
    "releases-planned": "later releases were not chosen in the light of earlier ones",
    "planned-charges": "the charges so far were not chosen in the light of earlier releases",
    "planned-or-promise": "the charges so far were not chosen in the light of earlier releases; otherwise the promise "
    "is epsilon {epsilon} at delta {delta}, the budget at the first charge",
    # Training.
    "charged-in-memory": "Every step was charged before it was released, but in memory only: no other run can see the "
    "charge",
    "end-declared": "When the run ended depended on nothing private, as its owner declares: {reason}",
    "end-from-outputs": "The {step} at which the run ended was chosen from released outputs and public data alone, not "
    "from the exact loss or private validation records",
    "bare-rate": "The sample rate was chosen without counting these data; it was given as a number, not as a declared "
    "size",
    "form-taken": "All records have the same form (shapes and types), which was taken from the data, not declared",
    "record-is-person": "One record is one person; a person with several records is less protected",
    "public-features": "The model sees records through fixed features made from formulas and synthetic images "
    "({images}), to which no record contributed; that such images resemble the records was known or guessed, not "
    "learned from them",
    "chosen-blindly": "Architecture, preprocessing and settings were chosen without looking at these data",
    "chosen-blindly-beside-tuning": "Architecture, preprocessing, the settings to draw from and everything else that "
    "was not tuned were chosen without looking at these data",
    "public-score": "The score that chose the best run depends on the released model and on public data alone",
    "private-score": "The score that chose the best run is a count that one {unit} changes by at most 1; noise is "
    "added to it, and is paid for",
    "score-apart": "What the score counts was never trained on: whether a {unit} is trained on or counted depends on "
    "that {unit}, or a coin of its own, alone",
    "trials-secret": "How many runs there were, the other runs, their scores, and how long the tuning took are known "
    "to nobody but the data's owner",
    "nothing-else": "Nothing else computed from these data is published, unless it is charged to the same ledger",
    "training-panel": "the figure is of the training panel: the followed records were trained on, so it describes them "
    "rather than the population",
    "training-panel-only": "there is a training panel only: the followed records were trained on, so the figure "
    "describes them rather than the population",
    "audit-outdated": "An audit of this run is not shown, because it covers other steps or another delta",
    # Federations.
    "shares-kept-secret": "Clients that answer add their share of the noise, and neither disclose it nor subtract it "
    "themselves",
    "fresh-client-noise": "Clients seed their sampling and their noise from the operating system, not from a chosen "
    "seed",
    "round-charged-in-memory": "Every round was charged before any client was asked, but {where}: no other run can see "
    "the charge",
    "server-trusted": "The server is trusted: it sees updates before the noise is added",
    "server-not-trusted": "The server is not trusted with records: noise is added before anything leaves a client",
    "server-trusted-to-sum": "The server is trusted to compute the sum, and to add the noise of clients that do not "
    "answer",
    "server-trusted-for-clients": "The server is trusted for the clients' figure only: it sees single updates, which "
    "carry their own noise",
    "client-is-person": "One client is one person or one institution; whoever stands behind several clients is less "
    "protected",
    "record-in-few-clients": "One record is one person, and is held by at most {copies} of the clients",
    "answers-blindly": "Whether a client answers does not depend on its data",
    "clients-representative": "the followed clients ({panel}) are independent draws from the population",
    "clients-own-choices": "the certified shares are about clients that remember nothing between rounds, each with "
    "the random choices that its own training made in this run, such as the order of its batches",
    "clients-took-part": "the followed clients took part, so the figure describes them rather than the population",
    "measured-representative": "the {unit}s measured in a round are independent draws from the population; the norms "
    "are those of this run",
    "hoelder": "rounds are combined by Hölder's inequality; the estimators' failure probabilities add up over rounds "
    "and orders",
    "true-norms": "clients reported their norms truthfully",
    "papers-product": "the figure is the federated paper's product over rounds, which is not a bound",
    "largest-of-clients": "the figure is the largest over all clients, each about records like those it followed",
    "true-costs": "clients reported their costs truthfully; those that did not answer are counted at the worst case",
    # Generators and inference.
    "generator-chosen-blindly": "Architecture, features, preprocessing and settings were chosen without looking at "
    "these data",
    "model-keeps-nothing": "The model holds no data of its own, and keeps nothing between calls",
    "model-chosen-blindly": "Model, box and settings were chosen without looking at these data",
    "fit-stays": "The fitted posterior, its evidence lower bound and the replays stay with the owner",
    "draws-charged-in-memory": "The draws were charged before the fit began, but in memory only: no other run can see "
    "the charge",
    "gaussian-draws": "the samples are Gaussian draws whose randomness is secret (floating point: not hardened)",
    "samples-alone": "only the samples are released: not the variational parameters, the ELBO, or the step at which "
    "training stopped",
    "box": "every mean and scale is confined to a box that was declared without looking at the data",
    "no-box": "no box was declared for the variational parameters, so nothing bounds how far one record can move them",
    "of-these-records": "the record is drawn uniformly from this dataset: the figure describes these records, not the "
    "population they came from, and not a record that might be added",
    # Programs.
    "public-size": "the number of records is public",
    "ids-are-people": "The ids in the data tell people apart: whoever has two ids is protected as a group of two, so "
    "less",
    "rows-alone": "Each row without an id belongs to a person who has no other row, as its owner declares",
    "drawn-once": "the noise is drawn once and not repeated",
    "program-chosen-blindly": "The program, its bounds and its budget were written without looking at these data",
    "pure-functions": "functions passed to map depend on their argument alone",
    "released-results-only": "later computations use released results only",
    # Attacks.
    "audit-confidence": "{confidence} confidence over the audit's own randomness",
    "sampled-gaussian-steps": "the steps are Poisson-sampled Gaussian mechanisms with the claimed sample rate and "
    "bounds, whatever their noise",
    "drawn-alike": "members and others were drawn in the same way and differ in nothing but membership",
    "independent-guesses": "the guesses are counted as if they were independent (in that case the limit on their "
    "success holds with 97.5% confidence), although all of them are about one trained model: this describes the run "
    "that was attacked and does not prove a bound for the training",
}

# It does not hold, or nothing is promised.
_WARNING = {
    "chosen-seed": "The noise comes from a chosen seed: reproducible, not secure. Anyone who knows the seed can remove "
    "the noise",
    "tuning-seed": "The number of runs and their settings were drawn from a chosen seed: whoever knows it knows how "
    "many runs there were, and the figures do not hold for them",
    "ordered-records": "The norms of the {panel} records change along their order in the data: the records are not "
    "exchangeable. Shuffle them once",
    "ordered-clients": "The norms of the {panel} clients' updates change along the order of enrolment: early and late "
    "clients are not exchangeable, so a typical figure need not hold for those to come",
    "client-metrics": "Metrics that clients measured themselves were passed on: no figure on this label covers them",
    "generator-unlimited": "Nothing limits the influence of one record on the generator",
    "client-unlimited": "Nothing limits the influence of a client, or of a record, on the model",
    "posterior-unlimited": "Nothing limits the influence of one record on the posterior",
    "papers-noise-too-small": "The noise of the thesis is far too small for this: the figure promises nothing",
    "no-box-declared": "No box was declared: nothing bounds how far one record can move the posterior, so nothing is "
    "promised",
    "fit-unsettled": "{warning}",
    "many-clipped": "At least {share} of the records were clipped to {clip_norm} in the last steps, which biases the "
    "posterior in a way that its intervals do not show: use a larger clip_norm",
    "intervals-narrow": "In simulations, {level} intervals contained the truth {held} of the time: they are too narrow "
    "by a factor of {widen}",
    "unclipped": "Contributions are not clipped: one record can move the sum by any amount, so the worst case is "
    "infinite",
    "one-step": "UNSOUND, as in the papers: each step is charged as if the parameters before it were the same with and "
    "without the record, and steps as if they were independent; for comparison only",
}

_ANSWERS: dict[str, Answers] = {
    **dict.fromkeys(("server-trusted", "server-trusted-to-sum", "server-trusted-for-clients"), "server"),
    **dict.fromkeys(("shares-kept-secret", "fresh-client-noise", "answers-blindly"), "clients"),
    **dict.fromkeys(("true-norms", "true-costs"), "clients"),
}
# What is said of records, as it is said of persons with several records each.
_OF_PERSONS = {
    "record-coins": (
        "person-coins",
        "Each person takes part in each step by one coin for all of their records, with the same probability and "
        "independently of all others",
    ),
    "clipped": (
        "person-clipped",
        "Each person's contribution, computed from some of their records, is clipped as one, in float32 or better; "
        "records that are not finite, or cannot be computed, are dropped",
    ),
    "sampling": ("person-sampling", "each person enters each step independently with the stated probability"),
    "clipping": ("person-clipping", "each person's contribution is clipped before noise is added to the sum"),
    "enforced-record-budget": (
        "enforced-person-budget",
        "every person is held to the declared budget, with all of their records (enforced)",
    ),
    "records-apart": (
        "persons-apart",
        "What a person contributes is computed from that person's records alone: no layer of the model combines the "
        "records of a batch, or keeps anything of them for later",
    ),
    "record-budget": ("person-budget", "Every person is held to the declared budget, with all of their records"),
    "rungs": (
        "person-rungs",
        "The rungs were declared before the first step, and a person's bound in a step depends on their records and on "
        "what was released before, and on nothing else",
    ),
    "no-trend": (
        "no-person-trend",
        "The gradient norms of the {panel} persons show no trend along their order in the data",
    ),
    "ordered-records": (
        "ordered-persons",
        "The gradient norms of the {panel} persons change along their order in the data: they are not exchangeable. "
        "Shuffle them once, each person's records together",
    ),
    "record-is-person": (
        "ids-are-people",
        "The ids in the data tell people apart: whoever has two ids is protected as a group of two, so less",
    ),
    "representative": (
        "representative-persons",
        "the followed persons are independent draws from the population and were not trained on",
    ),
    "static-norms": (
        "static-person-norms",
        "each person's norm is fixed for the whole run by their records and by public facts (declared static)",
    ),
    "observed-norms": (
        "observed-person-norms",
        "what each followed person may contribute at most (by the largest gradient norm among all of their records) "
        "was observed in this run; another run may differ",
    ),
    "measured-at-random": (
        "persons-measured-at-random",
        "each followed person was measured at random steps, {share} of them; what they may have contributed in the "
        "others is bounded, except with probability {failure}",
    ),
    "exchangeable": (
        "exchangeable-persons",
        "the followed persons and the person in question are exchangeable; budget and tolerance were declared "
        "beforehand",
    ),
    "certificate": (
        "person-certificate",
        "{followed} persons were followed, and {tolerated} of them were allowed to exceed the budget",
    ),
    "many-clipped": (
        "many-persons-clipped",
        "At least {share} of the persons were clipped to {clip_norm} in the last steps, which biases the posterior in "
        "a way that its intervals do not show: use a larger clip_norm",
    ),
    "training-panel": (
        "training-panel-of-persons",
        "the figure is of the training panel: the followed persons were trained on, so it describes them rather than "
        "the population",
    ),
    "training-panel-only": (
        "training-panel-of-persons-only",
        "there is a training panel only: the followed persons were trained on, so the figure describes them rather "
        "than the population",
    ),
}

_KNOWN: dict[str, tuple[State, Answers, str]] = {
    **{code: ("holds", "software", text) for code, text in _HOLDS.items()},
    **{code: ("open", _ANSWERS.get(code, "owner"), text) for code, text in _OPEN.items()},
    **{code: ("warning", _ANSWERS.get(code, "owner"), text) for code, text in _WARNING.items()},
}
_KNOWN |= {code: (*_KNOWN[of_records][:2], text) for of_records, (code, text) in _OF_PERSONS.items()}


@dataclass(frozen=True)
class Assumption:
    """One thing that a statement rests on.

    Attributes:
        code: Which; one that `declare` or this module knows.
        values: What its sentence is filled in with, as (name, text) pairs.
    """

    code: str
    values: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.code not in _KNOWN:
            raise ValueError(f"There is no assumption of code {self.code!r}; declare it first.")
        for pair in self.values:
            if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
                raise TypeError("An assumption's values must be pairs of texts.")
        try:
            _ = self.text
        except (KeyError, IndexError) as error:
            raise ValueError(f"The assumption {self.code!r} lacks a value for {error}.") from error

    @property
    def state(self) -> State:
        """`holds` was enforced or tested, `open` rests on somebody, `warning` does not hold."""
        return _KNOWN[self.code][0]

    @property
    def answers(self) -> Answers:
        """Who answers for it: the software, the data's owner, a federation's clients or its server."""
        return _KNOWN[self.code][1]

    @property
    def text(self) -> str:
        """The sentence, without a full stop."""
        return _KNOWN[self.code][2].format(**dict(self.values))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; state, answers and text are for readers and are not read back."""
        values = {"values": dict(self.values)} if self.values else {}
        return {"code": self.code, **values, "state": self.state, "answers": self.answers, "text": self.text}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Assumption:
        """Rebuild what `to_dict` wrote.

        Raises:
            ValueError: If the code is unknown, as in a file of another version.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("values", {}), Mapping):
            raise ValueError("An assumption must be an object with a code.")
        return cls(data["code"], tuple(data.get("values", {}).items()))


def assume(code: str, **values: object) -> Assumption:
    """Return the assumption of this code, its sentence filled in.

    Examples:
        >>> assume("certificate", followed=100, tolerated=3).text
        '100 records were followed, and 3 of them were allowed to exceed the budget'
    """
    return Assumption(code, tuple((name, str(value)) for name, value in values.items()))


def of_persons(assumption: Assumption) -> Assumption:
    """Return what is assumed of records as it is said of persons; what speaks of neither stays.

    Examples:
        >>> of_persons(assume("record-is-person")).code, of_persons(assume("chosen-blindly")).code
        ('ids-are-people', 'chosen-blindly')
    """
    code, _ = _OF_PERSONS.get(assumption.code, (assumption.code, ""))
    return Assumption(code, assumption.values)


def declare(code: str, text: str, *, state: State = "open", answers: Answers = "owner") -> str:
    """Add an assumption of an extension, such as a generator or a mechanism of your own.

    Args:
        code: A new code.
        text: Its sentence, without a full stop; `{name}` is filled in by `assume`.
        state: How it stands.
        answers: Who answers for it.

    Returns:
        The code.

    Raises:
        ValueError: If the code has another meaning already.
    """
    _check.one_of("state", state, get_args(State))
    _check.one_of("answers", answers, get_args(Answers))
    if _KNOWN.setdefault(code, (state, answers, text)) != (state, answers, text):
        raise ValueError(f"The assumption {code!r} exists and says something else.")
    return code
