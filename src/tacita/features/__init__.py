"""Public feature maps and synthetic priors: no private record enters them, so using them costs no privacy."""

from tacita.features.histograms import GradientHistograms as GradientHistograms
from tacita.features.strokes import strokes as strokes
