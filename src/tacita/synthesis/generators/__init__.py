"""The kinds of generators: one file each, and a line in `GENERATORS`."""

from tacita.synthesis.generators.kind import Maker
from tacita.synthesis.generators.mean_embedding import MeanEmbedding
from tacita.synthesis.generators.papers_wgan import PapersWgan
from tacita.synthesis.generators.private_wgan import PrivateWgan
from tacita.synthesis.generators.wgan_gp import WganGp

GENERATORS: dict[str, type[Maker]] = {
    "mean-embedding": MeanEmbedding,
    "private-wgan": PrivateWgan,
    "wgan-gp": WganGp,
    "papers-wgan": PapersWgan,
}
