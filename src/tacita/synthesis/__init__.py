"""Private generators, what they leak, how useful they are, and an inspection of the data without seeing them.

Every kind of generator is a file in `tacita.synthesis.generators` and a line in `GENERATORS`.
"""

import tacita.training as _training  # noqa: F401  # names the extra to install if PyTorch is missing
from tacita.synthesis.alarm import Alarm as Alarm
from tacita.synthesis.alarm import Expected as Expected
from tacita.synthesis.alarm import alarms as alarms
from tacita.synthesis.description import Statistics as Statistics
from tacita.synthesis.description import describe as describe
from tacita.synthesis.embedding import fit_generator as fit_generator
from tacita.synthesis.embedding import release_embedding as release_embedding
from tacita.synthesis.features import measuring_features as measuring_features
from tacita.synthesis.fedgp import FedGP as FedGP
from tacita.synthesis.fedgp import federate_generator as federate_generator
from tacita.synthesis.fedgp import resume_generator as resume_generator
from tacita.synthesis.gan import sample as sample
from tacita.synthesis.generators import GENERATORS as GENERATORS
from tacita.synthesis.generators.kind import Maker as Maker
from tacita.synthesis.influence import AverageCase as AverageCase
from tacita.synthesis.influence import average_case as average_case
from tacita.synthesis.influence import knn_kl as knn_kl
from tacita.synthesis.inspection import inspection_page as inspection_page
from tacita.synthesis.jobs import resume as resume
from tacita.synthesis.jobs import synthesise as synthesise
from tacita.synthesis.labels import label_of_run as label_of_run
from tacita.synthesis.leakage import HoldoutTest as HoldoutTest
from tacita.synthesis.leakage import generator_membership as generator_membership
from tacita.synthesis.leakage import holdout_test as holdout_test
from tacita.synthesis.outliers import OutlierControl as OutlierControl
from tacita.synthesis.outliers import release_size as release_size
from tacita.synthesis.recipes import Recipe as Recipe
from tacita.synthesis.release import released_dataset as released_dataset
from tacita.synthesis.students import accuracy as accuracy
from tacita.synthesis.students import student as student
from tacita.synthesis.students import train_student as train_student
from tacita.synthesis.utility import Utility as Utility
from tacita.synthesis.utility import controls as controls
from tacita.synthesis.utility import frechet as frechet
from tacita.synthesis.utility import measure_utility as measure_utility
