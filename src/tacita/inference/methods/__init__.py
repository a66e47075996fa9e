"""The methods of inference: one file and one entry of `METHODS` each."""

from tacita.inference.methods.final_samples import FinalSamples
from tacita.inference.methods.noisy import Noisy
from tacita.inference.methods.plain import Plain
from tacita.inference.methods.protocol import Method as Method
from tacita.inference.methods.sgld import Sgld

METHODS: dict[str, Method] = {
    "noisy": Noisy(),
    "final-samples": FinalSamples(),
    "sgld": Sgld(),
    "plain": Plain(),
}
