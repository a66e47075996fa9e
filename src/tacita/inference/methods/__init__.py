"""The methods of inference: one class and one entry of `METHODS` each."""

from tacita.inference.methods.final_samples import FinalSamples
from tacita.inference.methods.plain import Plain
from tacita.inference.methods.private_steps import Noisy, Sgld
from tacita.inference.methods.protocol import Method as Method

METHODS: dict[str, Method] = {method.name: method for method in (Noisy(), FinalSamples(), Sgld(), Plain())}
