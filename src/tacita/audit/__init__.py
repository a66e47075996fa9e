"""Attacks on what a run claims: canaries, membership, inversion, and a leak test of the accountant."""

import tacita.training as _training  # noqa: F401  # says what to install if PyTorch is missing
from tacita.audit.attacks import ATTACKS as ATTACKS
from tacita.audit.attacks import Audit as Audit
from tacita.audit.attacks import run as run
from tacita.audit.canaries import CanaryAudit as CanaryAudit
from tacita.audit.canaries import canaries as canaries
from tacita.audit.inversion import Inversion as Inversion
from tacita.audit.inversion import inversion as inversion
from tacita.audit.inversion import invert as invert
from tacita.audit.inversion import recogniser as recogniser
from tacita.audit.leak import Leak as Leak
from tacita.audit.leak import leak as leak
from tacita.audit.leak import leak_test as leak_test
from tacita.audit.membership import Membership as Membership
from tacita.audit.membership import compare_scores as compare_scores
from tacita.audit.membership import membership as membership
from tacita.audit.replay import CanaryModel as CanaryModel
from tacita.audit.replay import Replay as Replay
from tacita.audit.typical import typical_canaries as typical_canaries
