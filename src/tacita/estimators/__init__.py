"""From a sample of followed records to the population they were drawn from.

To add an estimator, write one file with a function that satisfies `UpperMean`, and one line of `ESTIMATORS`. The
conformal certificate is no estimate of a mean, so it is not in the table: see `conformal_miss`.
"""

from tacita.estimators.band import band_mean as band_mean
from tacita.estimators.band import band_steps as band_steps
from tacita.estimators.band import unseen_mass as unseen_mass
from tacita.estimators.moments import bernstein as bernstein
from tacita.estimators.moments import binary as binary
from tacita.estimators.moments import binary_share as binary_share
from tacita.estimators.moments import student as student
from tacita.estimators.protocol import Estimator as Estimator
from tacita.estimators.protocol import UpperMean as UpperMean
from tacita.estimators.share import conformal_miss as conformal_miss
from tacita.estimators.share import mean_under_another_law as mean_under_another_law
from tacita.estimators.share import share_at_least as share_at_least
from tacita.estimators.share import share_at_most as share_at_most
from tacita.estimators.share import share_bounds as share_bounds
from tacita.estimators.share import share_interval as share_interval
from tacita.estimators.share import share_under_another_law as share_under_another_law

ESTIMATORS: dict[str, Estimator] = {
    "band": Estimator(band_mean, averages="deltas", model="distribution-free"),
    "student": Estimator(student, averages="moments", model="model-based"),
    "bernstein": Estimator(bernstein, averages="moments", model="distribution-free"),
    "binary": Estimator(binary, averages="moments", model="model-based"),
}
