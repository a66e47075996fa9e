"""What releases cost: worst-case and Bayesian accounting, records' own curves, filters, conversions."""

from tacita.accounting.bayesian import BayesianAccountant as BayesianAccountant
from tacita.accounting.conversion import delta_from_costs as delta_from_costs
from tacita.accounting.conversion import epsilon_from_costs as epsilon_from_costs
from tacita.accounting.curves import RecordCurves as RecordCurves
from tacita.accounting.curves import record_curves as record_curves
from tacita.accounting.curves import worst_curve as worst_curve
from tacita.accounting.filters import MomentsBudget as MomentsBudget
from tacita.accounting.filters import TokenBudget as TokenBudget
from tacita.accounting.filters import affordable as affordable
from tacita.accounting.filters import moments_budget as moments_budget
from tacita.accounting.filters import most_spent as most_spent
from tacita.accounting.filters import token_budget as token_budget
from tacita.accounting.filters import token_profile as token_profile
from tacita.accounting.gaussian import calibrate_gaussian as calibrate_gaussian
from tacita.accounting.gaussian import gaussian_release as gaussian_release
from tacita.accounting.gaussian import participation_bound as participation_bound
from tacita.accounting.levels import NORM_LEVELS as NORM_LEVELS
from tacita.accounting.levels import ORDERS as ORDERS
from tacita.accounting.levels import level_of as level_of
from tacita.accounting.targets import Target as Target
from tacita.accounting.targets import calibrate_to as calibrate_to
from tacita.accounting.worst import calibrate as calibrate
from tacita.accounting.worst import calibrate_composed as calibrate_composed
from tacita.accounting.worst import composed as composed
from tacita.accounting.worst import worst_case as worst_case
