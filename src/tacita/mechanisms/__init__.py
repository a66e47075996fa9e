"""What a release does: one file a family of divergences, and what Poisson sampling makes of them."""

from tacita.mechanisms.diagonal import Gaussians as Gaussians
from tacita.mechanisms.diagonal import diagonal_gaussian_renyi as diagonal_gaussian_renyi
from tacita.mechanisms.diagonal import renyi_divergences as renyi_divergences
from tacita.mechanisms.diagonal import subsampled_gaussian_costs as subsampled_gaussian_costs
from tacita.mechanisms.exponential import exponential_family_renyi as exponential_family_renyi
from tacita.mechanisms.exponential import families as families
from tacita.mechanisms.gaussian import gaussian_delta as gaussian_delta
from tacita.mechanisms.gaussian import gaussian_epsilon as gaussian_epsilon
from tacita.mechanisms.gaussian import gaussian_renyi as gaussian_renyi
from tacita.mechanisms.laplace import laplace_renyi as laplace_renyi
from tacita.mechanisms.subsampled import sampled_gaussian_cost as sampled_gaussian_cost
from tacita.mechanisms.subsampled import subsampled_cost as subsampled_cost
from tacita.mechanisms.subsampled import subsampled_costs as subsampled_costs
