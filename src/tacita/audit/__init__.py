"""Attacks on what a run claims: canaries, membership, inversion, and a leak test of the accountant.

Every attack is a file `*_attack.py` and a line of `ATTACKS` in `tacita.audit.runner`.
"""

import tacita.training as _training  # noqa: F401  # says what to install if PyTorch is missing
from tacita.audit.attack import Attack as Attack
from tacita.audit.attack import Session as Session
from tacita.audit.attack import SkippedError as SkippedError
from tacita.audit.attack import Target as Target
from tacita.audit.canary_attack import StepFunction as StepFunction
from tacita.audit.canary_attack import canaries as canaries
from tacita.audit.inversion_attack import Inversion as Inversion
from tacita.audit.inversion_attack import inversion as inversion
from tacita.audit.inversion_attack import invert as invert
from tacita.audit.inversion_attack import recogniser as recogniser
from tacita.audit.leak_attack import Leak as Leak
from tacita.audit.leak_attack import leak as leak
from tacita.audit.leak_attack import leak_test as leak_test
from tacita.audit.membership_attack import membership as membership
from tacita.audit.replay import CanaryModel as CanaryModel
from tacita.audit.replay import Replay as Replay
from tacita.audit.runner import ATTACKS as ATTACKS
from tacita.audit.runner import Audit as Audit
from tacita.audit.runner import run as run
from tacita.audit.scores import Membership as Membership
from tacita.audit.scores import compare_scores as compare_scores
from tacita.audit.tally import CanaryAudit as CanaryAudit
from tacita.audit.typical_attack import typical_canaries as typical_canaries
