"""`tacita account` and `tacita calibrate`: what a run costs, and how much noise it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacita.cli.app import DELTA, JSON, app, busy, print_json

if TYPE_CHECKING:
    from tacita._check import Floats
    from tacita.accounting import BayesianAccountant
    from tacita.guarantee import Guarantee

_NOISE = Annotated[float, typer.Option(help="Noise standard deviation over the clip norm.")]
_SHOWN = {"pld": "PLD", "rdp": "RDP", "profile": "our own curve"}  # how a method is written
_RATE = Annotated[
    float | None,
    typer.Option(help="Chance with which each record enters a step; or --batch-size and --nominal-size."),
]
_BATCH = Annotated[float | None, typer.Option(help="The planned batch; over --nominal-size it is the sample rate.")]
_SIZE = Annotated[float | None, typer.Option(help="The declared, public size of the data.")]


@app.command(epilog="Example: tacita account --noise-multiplier 1 --batch-size 256 --nominal-size 60000 --steps 2000")
def account(
    noise_multiplier: _NOISE,
    sample_rate: _RATE = None,
    batch_size: _BATCH = None,
    nominal_size: _SIZE = None,
    delta: DELTA = 1e-5,
    steps: Annotated[int | None, typer.Option(help="Number of steps; with (T, m) norms it is T.")] = None,
    norms: Annotated[
        Path | None,
        typer.Option(
            help="A .npy file with followed records' clipped norms over the clip norm: "
            "shape (m,), the same at every step, or (T, m), one row a step."
        ),
    ] = None,
    example: Annotated[bool, typer.Option("--example", help="Use built-in example norms.")] = False,
    static: Annotated[
        bool,
        typer.Option(
            "--static",
            help="Declare that each record's norm is fixed for the run by the record and by public facts, as when "
            "records are clipped to bounds set beforehand. Gradients of ordinary training are not.",
        ),
    ] = False,
    estimator: Annotated[
        str | None,
        typer.Option(
            help="band, student, bernstein or binary (conformal only from Python); default: band and comparisons."
        ),
    ] = None,
    composition: Annotated[
        str, typer.Option(help="panel, hoelder, or independent: the papers' product, no bound.")
    ] = "panel",
    gamma: Annotated[float | None, typer.Option(help="Failure probability of one estimate; part of delta.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the curves to this .svg, .png or .pdf file.")] = None,
    as_json: JSON = False,
) -> None:
    """Say what a run of DP-SGD leaks: about anyone, and about typical records.

    Without norms this is worst-case differential privacy, by PLD and by RDP. With norms of followed records
    it adds what a record of their population loses, and how the records' own epsilons are spread.
    """
    from tacita import _check
    from tacita.estimators import ESTIMATORS

    if norms is None and not example and (figure or static or estimator or gamma):
        raise ValueError("--figure, --static, --estimator and --gamma need --norms or --example.")
    if estimator is not None:
        _check.one_of("--estimator", estimator, tuple(ESTIMATORS))
    _check.one_of("--composition", composition, ("panel", "hoelder", "independent"))
    if figure is not None:
        _require_drawable(figure)
    rate = _declared_rate(sample_rate, batch_size, nominal_size)
    values = _read_norms(norms, example)
    with busy("Accounting", quiet=as_json):
        steps = _steps_of(values, steps)
        document, statements = _account(
            values, steps, noise_multiplier, rate, delta, static, estimator, composition, gamma, figure
        )
    if as_json:
        print_json(document)
    else:
        _print_account(document, statements, figure)


@app.command(epilog="Example: tacita calibrate --attack-success 0.55 --sample-rate 0.01 --steps 2000")
def calibrate(
    steps: Annotated[int, typer.Option(help="Number of steps.")],
    sample_rate: _RATE = None,
    batch_size: _BATCH = None,
    nominal_size: _SIZE = None,
    epsilon: Annotated[float | None, typer.Option(help="The worst-case epsilon to stay within.")] = None,
    attack_success: Annotated[
        float | None, typer.Option(help="How often the best attack on anyone may be right, at even odds, such as 0.55.")
    ] = None,
    tpr: Annotated[float | None, typer.Option(help="The share of members that a test may find; with --fpr.")] = None,
    fpr: Annotated[float | None, typer.Option(help="The share of others that the test accuses wrongly.")] = None,
    secret: Annotated[
        str | None,
        typer.Option(help="0.10:0.15: what is guessed at 10% without a person may be guessed at 15% with them."),
    ] = None,
    mu: Annotated[float | None, typer.Option(help="The Gaussian mu to stay within, but for delta.")] = None,
    delta: DELTA = 1e-5,
    as_json: JSON = False,
) -> None:
    """Find the least noise that stays within a worst-case epsilon, or within what an attacker may achieve."""
    from tacita._numbers import success_text
    from tacita.accounting import Target, calibrate_to
    from tacita.accounting import calibrate as find

    if (tpr is None) != (fpr is None):
        raise ValueError("--tpr and --fpr go together: such as --tpr 0.02 --fpr 0.01.")
    targets: dict[str, Any] = {
        "attack_success": attack_success,
        "tpr": None if tpr is None else (tpr, fpr),
        "secret": None if secret is None else _two_chances(secret),
        "mu": None if mu is None else (mu, delta),
    }
    given = {name: value for name, value in targets.items() if value is not None}
    if len(given) + (epsilon is not None) != 1:
        raise ValueError("Give one target: --epsilon, --attack-success, --tpr with --fpr, --secret or --mu.")
    rate = _declared_rate(sample_rate, batch_size, nominal_size)
    with busy("Calibrating", quiet=as_json):
        if epsilon is not None:
            found = find(epsilon=epsilon, delta=delta, sample_rate=rate, steps=steps)
        else:
            found = calibrate_to(Target(**given), delta=delta, sample_rate=rate, steps=steps)
    noise = dict(found.mechanism)["noise_multiplier"]
    if as_json:
        print_json({"schema": 1, "noise_multiplier": noise, "guarantees": [found.to_dict()]})
        return
    typer.echo(f"noise multiplier {noise:g}\n\n{found}\n")
    for alarms in (0.01, 0.001):
        typer.echo(
            f"A test finds at most {success_text(found.curve.tpr(alarms))} of the members "
            f"at {100 * alarms:g}% false alarms."
        )


def _declared_rate(sample_rate: float | None, batch_size: float | None, nominal_size: float | None) -> float:
    """Return the sample rate: given, or the quotient of two declared sizes."""
    from tacita import _check

    if (batch_size is None) != (nominal_size is None) or (sample_rate is None) == (batch_size is None):
        raise ValueError("Give --batch-size with --nominal-size, such as 256 and 60000, or --sample-rate.")
    if batch_size is None or nominal_size is None:
        return _check.rate("sample_rate", sample_rate)
    size = _check.in_range("--nominal-size", nominal_size, 1.0, 1e15)
    return _check.in_range("--batch-size", batch_size, 1e-9, size) / size


def _two_chances(text: str) -> tuple[float, float]:
    try:
        before, after = (float(part) for part in text.split(":"))
    except ValueError:
        raise ValueError(f"--secret must be two chances such as 0.10:0.15, got {text!r}.") from None
    return before, after


def _account(
    values: Floats | None,
    steps: int,
    noise_multiplier: float,
    sample_rate: float,
    delta: float,
    static: bool,
    estimator: str | None,
    composition: str,
    gamma: float | None,
    figure: Path | None,
) -> tuple[dict[str, Any], list[Guarantee]]:
    from tacita.accounting import BayesianAccountant, worst_case
    from tacita.papers import product_figure

    def worst_by(method: Any) -> Guarantee:
        return worst_case(
            sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps, delta=delta, method=method
        )

    statements = [worst_by("pld"), worst_by("rdp")]
    document: dict[str, Any] = {"schema": 1, "percentiles": None, "shares": None, "band": None}
    if values is not None:
        accountant = BayesianAccountant(
            sample_rate=sample_rate,
            noise_multiplier=noise_multiplier,
            composition="panel" if composition == "panel" else "hoelder",  # the product needs fresh records too
            steps=steps,
            levels="static" if static else "observed",
        )
        if values.ndim == 1:
            accountant.step(values, steps=steps)
        else:
            for row in values:
                accountant.step(row)
        if composition == "independent":
            statements.append(product_figure(accountant, delta=delta, estimator=estimator or "student", gamma=gamma))
        else:
            statements += _bayesian_statements(accountant, delta, estimator, gamma, values.shape[-1] > 1)
        if composition == "panel":
            mass, floor = accountant.floor(delta=delta)
            percentiles = accountant.percentiles(delta=delta)
            document["percentiles"] = {str(p): eps for p, eps in percentiles.items()}
            document["shares"] = _shares(accountant, statements[0])
            document["band"] = {"followed": values.shape[-1], "unseen_mass": mass, "epsilon_floor": floor}
        if figure is not None:
            _draw(figure, accountant, statements)
    document["guarantees"] = [s.to_dict() for s in statements]
    document["attack_success"] = {s.kind: s.to_dict()["attack_success"] for s in reversed(statements)}
    return document, statements


def _shares(accountant: BayesianAccountant, worst: Guarantee) -> dict[str, Any]:
    """Return what shares of the population stay under, as a label certifies it; the worst case where it cannot."""
    from tacita.accounting.shares import GAMMA, PERCENTS, certified_shares

    found = certified_shares(accountant, worst)
    if found is None:
        epsilons, successes = ({f"{p:g}": most for p in PERCENTS} for most in (worst.epsilon, worst.attack_success))
        return {"gamma": GAMMA, "epsilons": epsilons, "successes": successes, "tests": {}}
    return {
        "gamma": found.gamma,
        "epsilons": {f"{p:g}": epsilon for p, epsilon in found.epsilons},
        "successes": {f"{p:g}": success for p, success in found.successes},
        "tests": {f"{p:g}": {f"{fpr:g}": tpr for fpr, tpr in points} for p, points in found.tests},
    }


def _bayesian_statements(
    accountant: BayesianAccountant, delta: float, estimator: str | None, gamma: float | None, several: bool
) -> list[Guarantee]:
    if estimator is not None:
        return [accountant.guarantee(delta=delta, estimator=estimator, gamma=gamma)]
    if accountant.composition != "panel":
        return [accountant.guarantee(delta=delta, estimator="student", gamma=gamma)]
    statements = [
        accountant.guarantee(delta=delta, gamma=gamma),
        accountant.guarantee(delta=delta, gamma=gamma, method="moments"),
    ]
    if several and gamma is None:
        statements.append(accountant.guarantee(delta=delta, estimator="student"))
    return statements


def _require_drawable(figure: Path) -> None:
    """Fail before the work, not after it."""
    from tacita.report.charts import load_matplotlib

    if figure.suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"--figure must end in .svg, .png or .pdf, got {str(figure)!r}.")
    if not figure.resolve().parent.is_dir():
        raise ValueError(f"--figure: the folder {str(figure.parent)!r} does not exist.")
    load_matplotlib()


def _draw(figure: Path, accountant: BayesianAccountant, statements: list[Guarantee]) -> None:
    import numpy as np

    from tacita.accounting import worst_curve
    from tacita.report.plots import draw_curves

    worst, typical = statements[0], statements[2]
    epsilons = np.linspace(0.0, 1.25 * worst.epsilon, 80)
    gamma = dict(typical.delta_split).get("band", typical.delta / 20)
    curve = worst_curve(
        accountant.taken, sample_rate=accountant.sample_rate, noise_multiplier=accountant.noise_multiplier
    )
    draw_curves(
        figure,
        epsilons=epsilons.tolist(),
        worst_deltas=curve.delta(epsilons)[:, 0].tolist(),
        typical_deltas=[accountant.delta(epsilon=float(e), gamma=gamma) for e in epsilons],
        worst=worst,
        typical=typical,
        percentiles=accountant.percentiles(delta=worst.delta, percents=[p / 2 for p in range(1, 201)]),
    )


def _read_norms(path: Path | None, example: bool) -> Floats | None:
    if path is not None and example:
        raise ValueError("Pass either --norms or --example, not both.")
    if example:
        from tacita.data import example_norms

        return example_norms()
    if path is None:
        return None
    import numpy as np

    from tacita import _check

    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"--norms: {str(path)!r} {what}; pass a .npy file.")
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError):
        array = None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"--norms: {str(path)!r} is not a .npy array of numbers; save one with numpy.save.")
    return _check.norms("norms", array, dimensions=(1, 2))


def _steps_of(values: Floats | None, steps: int | None) -> int:
    if values is not None and values.ndim == 2:
        if steps is not None and steps != len(values):
            raise ValueError(f"--steps {steps} does not match the {len(values)} rows of the norms; leave it out.")
        return len(values)
    if steps is None:
        raise ValueError("--steps is missing: how many steps does the run have?")
    return steps


def _print_account(document: dict[str, Any], statements: list[Guarantee], figure: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from tacita._numbers import delta_text, round_up_text, success_text

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    mechanism = dict(statements[0].mechanism)
    typer.echo(
        f"noise multiplier {mechanism['noise_multiplier']:g}, sample rate {mechanism['sample_rate']:g}, "
        f"{mechanism['steps']:.0f} steps, delta {delta_text(statements[0].delta)}\n"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, justify in (("about", "left"), ("epsilon", "right"), ("attack success", "right"), ("how", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for statement in statements:
        table.add_row(
            "anyone" if statement.kind == "worst_case" else "a typical record",
            round_up_text(statement.epsilon),
            "<= " + success_text(statement.profile.attack_success()) if statement.profile else "-",
            _how(statement),
        )
    console.print(table)
    if any(statement.notion == "strong" for statement in statements):
        console.print(
            "\nThe strong notion bounds the tail of the privacy loss. It is not comparable with the other rows,\n"
            "and may exceed the worst case."
        )
    if document["percentiles"]:
        console.print("\nRecords' own epsilon (for the owner):       followed   population*   attack success*")
        certified, successes = document["shares"]["epsilons"], document["shares"]["successes"]
        for percent, epsilon in document["percentiles"].items():
            both = f"{round_up_text(epsilon):>8}   {round_up_text(certified[percent]):>10}"
            right = f"<= {success_text(successes[percent])}"
            console.print(f"  {percent:>4}% of them stay under                {both}    {right:>15}")
        console.print(
            f"* except with probability {document['shares']['gamma']:g}, if the followed records were drawn "
            "independently from it\n  and were not trained on"
        )
        band = document["band"]
        console.print(
            f"\nWith {band['followed']} followed records up to {success_text(band['unseen_mass'])} of the population "
            f"may be unseen,\nso the band figure cannot go below epsilon {round_up_text(band['epsilon_floor'])}. It "
            "averages delta over the population: rare\nand unseen records drive it, and most records' own epsilon is "
            "lower."
        )
    shown = statements[:1] + statements[2:3]
    for statement in shown:
        console.print(f"\n{statement.claim}")
        if statement.delta_split:
            parts = ", ".join(f"{name} {value:.3g}" for name, value in statement.delta_split)
            console.print(f"Delta is split into: {parts}.")
    console.print("\nAssumed:")
    for assumption in dict.fromkeys(a for statement in shown for a in statement.assumptions):
        console.print(f"  - {assumption.text}")
    if figure is not None:
        console.print(f"\nFigure: {figure}")


def _how(statement: Guarantee) -> str:
    parts = [_SHOWN.get(statement.method, statement.method)]
    if statement.kind == "bayesian":
        parts = [statement.estimator or "", *parts, statement.scope]
        if statement.notion == "strong":
            parts.append("strong notion")
        if statement.model == "model-based":
            parts.append("model-based")
        if not statement.is_bound:
            parts.append("NOT a bound")
    return ", ".join(parts)
