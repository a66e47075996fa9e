"""A durable privacy budget in one SQLite file or PostgreSQL database, shared by runs, processes and people."""

from tacita.ledger.admission import BudgetExceeded as BudgetExceeded
from tacita.ledger.admission import Fit as Fit
from tacita.ledger.chain import LedgerRow as LedgerRow
from tacita.ledger.costs import DECLARED as DECLARED
from tacita.ledger.costs import pure_costs as pure_costs
from tacita.ledger.costs import replace_one_costs as replace_one_costs
from tacita.ledger.export import export_of as export_of
from tacita.ledger.ledger import Ledger as Ledger
from tacita.ledger.owning import BudgetRaised as BudgetRaised
from tacita.ledger.reader import Head as Head
from tacita.ledger.reader import LedgerReader as LedgerReader
from tacita.ledger.rows import Window as Window
from tacita.ledger.statements import Analyst as Analyst
from tacita.ledger.statements import Promise as Promise
from tacita.ledger.statements import Reservation as Reservation
from tacita.ledger.store import Damaged as Damaged
from tacita.ledger.store import is_there as is_there
from tacita.ledger.store import kept_place as kept_place
from tacita.ledger.store import name_of as name_of
from tacita.ledger.store import on_server as on_server
