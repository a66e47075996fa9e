"""The table of attacks. A new attack is a new file and a new line here."""

from __future__ import annotations

from typing import Any

from tacita.audit.attack import Attack
from tacita.audit.canary_attack import CanaryAttack
from tacita.audit.inversion_attack import InversionAttack
from tacita.audit.leak_attack import LeakAttack
from tacita.audit.membership_attack import MembershipAttack
from tacita.audit.typical_attack import TypicalAttack

ATTACKS: dict[str, Attack[Any]] = {  # in the order in which they are made
    "canaries": CanaryAttack(),
    "leak": LeakAttack(),
    "typical": TypicalAttack(),
    "membership": MembershipAttack(),
    "inversion": InversionAttack(),
}
