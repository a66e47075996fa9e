"""The `tacita` command: parse, call, print."""

from tacita.cli import account as account
from tacita.cli import audit as audit
from tacita.cli import export as export
from tacita.cli import federated as federated
from tacita.cli import label as label
from tacita.cli import ledger as ledger
from tacita.cli import ledger_audit as ledger_audit
from tacita.cli import ledger_plans as ledger_plans
from tacita.cli import programs as programs
from tacita.cli import synthesis as synthesis
from tacita.cli import training as training
from tacita.cli import tuning as tuning
from tacita.cli.app import app as app
from tacita.cli.app import main as main
