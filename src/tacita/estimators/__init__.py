"""From a sample of followed records to the population they were drawn from."""

from tacita.estimators.band import band_mean as band_mean
from tacita.estimators.band import band_steps as band_steps
from tacita.estimators.band import unseen_mass as unseen_mass
from tacita.estimators.conformal import conformal_miss as conformal_miss
from tacita.estimators.moments import bernstein as bernstein
from tacita.estimators.moments import binary as binary
from tacita.estimators.moments import binary_share as binary_share
from tacita.estimators.moments import student as student
