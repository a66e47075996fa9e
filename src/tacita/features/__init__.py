"""Public feature maps and synthetic priors: no private record enters them, so using them costs no privacy."""

from tacita.features.dead_leaves import dead_leaves as dead_leaves
from tacita.features.histograms import GradientHistograms as GradientHistograms
from tacita.features.patches import Patches as Patches
from tacita.features.pictures import Halved as Halved
from tacita.features.pictures import PublicLinear as PublicLinear
from tacita.features.pictures import picture_features as picture_features
from tacita.features.pictures import priors_of as priors_of
from tacita.features.scattering import Scattering as Scattering
from tacita.features.silhouettes import silhouettes as silhouettes
from tacita.features.strokes import strokes as strokes
from tacita.features.whitening import Mirrored as Mirrored
from tacita.features.whitening import Whitened as Whitened
