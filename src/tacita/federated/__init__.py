"""Federated learning: costs that reach the server in aggregate only."""

from tacita.federated.masking import largest as largest
from tacita.federated.masking import masker as masker
from tacita.federated.masking import summed as summed
