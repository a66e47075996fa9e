"""The published methods as printed or as their authors coded them, for comparison with ours.

What is here is never a headline. Figures that are no upper bounds have `is_bound=False`, so a label shows them as
comparisons only; nothing in the sound code depends on this package. Where and why the papers' forms differ from ours
is in docs/explanation/theory/differences.md.
"""

from tacita.papers.average_case import chebyshev_mu as chebyshev_mu
from tacita.papers.average_case import sample_chebyshev_mu as sample_chebyshev_mu
from tacita.papers.average_case import student_mu as student_mu
from tacita.papers.coded import CODED_GAMMA as CODED_GAMMA
from tacita.papers.coded import CODED_ORDERS as CODED_ORDERS
from tacita.papers.coded import coded_costs as coded_costs
from tacita.papers.coded import coded_epsilons as coded_epsilons
from tacita.papers.coded import coded_figure as coded_figure
from tacita.papers.coded import unclipped_figure as unclipped_figure
from tacita.papers.figures import printed_figure as printed_figure
from tacita.papers.figures import product_figure as product_figure
from tacita.papers.figures import sequential_accountant as sequential_accountant
from tacita.papers.one_step import ONE_STEP_ORDERS as ONE_STEP_ORDERS
from tacita.papers.one_step import one_step_figure as one_step_figure
from tacita.papers.printed import classical_noise_multiplier as classical_noise_multiplier
from tacita.papers.printed import printed_cost_table as printed_cost_table
from tacita.papers.printed import sampled_gaussian_cost_as_printed as sampled_gaussian_cost_as_printed
from tacita.papers.printed import sampled_gaussian_reverse as sampled_gaussian_reverse
from tacita.papers.printed import subsampled_forward_as_printed as subsampled_forward_as_printed
