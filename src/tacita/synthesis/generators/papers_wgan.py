"""The Wasserstein GAN as the thesis describes it: a whole batch's gradient is clipped, so one record moves it by 2C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tacita._check import PrivacyError
from tacita.accounting import participation_bound
from tacita.assumptions import assume
from tacita.label import Label, build, noise_assumption, not_hardened
from tacita.runs import Run
from tacita.synthesis.generators.kind import readings
from tacita.synthesis.generators.wgan_gp import ENTRIES, WganGp

if TYPE_CHECKING:
    from tacita.synthesis.recipes import Recipe

CLIP_NORM, NOISE_MULTIPLIER = 0.5, 0.01  # of the thesis


class PapersWgan(WganGp):
    """For comparison with the thesis: its noise is too small for a useful worst case, and nothing is calibrated."""

    purpose: ClassVar[str] = "Synthetic records from a Wasserstein GAN clipped and noised as the thesis describes it."
    entries: ClassVar[frozenset[str]] = ENTRIES | {"clip_norm", "noise_multiplier"}

    def clipping(self, recipe: Recipe) -> dict[str, Any]:
        """Return the clip norm of a whole batch's gradient, and the noise over it."""
        return {
            "clip_norm": recipe.clip_norm or CLIP_NORM,
            "noise_multiplier": recipe.noise_multiplier or NOISE_MULTIPLIER,
        }

    @staticmethod
    def label(run: Run, delta: float) -> Label:
        """Return the label with the true worst case, for a sensitivity of 2C.

        Raises:
            PrivacyError: If the plan is not the one that the generator was trained by.
        """
        plan, facts = run.document()["plan"], run.facts
        _, saved = run.load()
        if {**saved["plan"], "sample_rate": plan["sample_rate"]} != plan or int(saved["step"]) > int(plan["steps"]):
            raise PrivacyError("The plan is not the one that the generator was trained by.")
        if plan["sample_rate"] != min(1.0, plan["batch_size"] / plan["size"]):
            raise PrivacyError("The sample rate is not the one that follows from the plan.")
        rate, noise, steps = float(plan["sample_rate"]), float(plan["noise_multiplier"]), int(plan["steps"])
        worst = participation_bound(sample_rate=rate, noise_multiplier=noise / 2.0, steps=steps, delta=delta)
        codes = ("record-coins", "batch-clipped", "papers-noise-too-small")
        return build(
            facts,
            worst,
            rests_on=[*map(assume, codes), noise_assumption(facts)],
            mechanism=(
                ("Generator", "papers-wgan: the whole update is clipped, as the thesis describes it"),
                ("Clip norm C", f"{float(plan['clip_norm']):g}"),
                ("Noise over C", f"{noise:g}"),
                ("Sensitivity", "2C, for one record added or removed"),
                ("Sample rate", f"{rate:.6g} (Poisson sampling)"),
                ("Steps", str(steps)),
            ),
            declared=(
                "Offered to compare with the thesis, which reports the Bayesian figure for per-record clipping.",
            ),
            not_hardened=not_hardened(facts),
            readings=readings(
                facts, "No records were followed: without per-record clipping there are no individual figures."
            ),
        )
