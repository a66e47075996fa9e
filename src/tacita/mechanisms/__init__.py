"""What a release does: Rényi divergences of common families, and what Poisson sampling makes of them."""

from tacita.mechanisms.gaussian import gaussian_delta as gaussian_delta
from tacita.mechanisms.gaussian import gaussian_epsilon as gaussian_epsilon
from tacita.mechanisms.renyi import (
    diagonal_gaussian_renyi as diagonal_gaussian_renyi,
)
from tacita.mechanisms.renyi import exponential_family_renyi as exponential_family_renyi
from tacita.mechanisms.renyi import families as families
from tacita.mechanisms.renyi import gaussian_renyi as gaussian_renyi
from tacita.mechanisms.renyi import laplace_renyi as laplace_renyi
from tacita.mechanisms.subsampled import sampled_gaussian_cost as sampled_gaussian_cost
from tacita.mechanisms.subsampled import (
    sampled_gaussian_cost_papers as sampled_gaussian_cost_papers,
)
from tacita.mechanisms.subsampled import sampled_gaussian_reverse as sampled_gaussian_reverse
from tacita.mechanisms.subsampled import subsampled_cost as subsampled_cost
from tacita.mechanisms.subsampled import (
    subsampled_forward_as_printed as subsampled_forward_as_printed,
)
