"""Federated learning with privacy for clients, for their records, or for both."""

from tacita.federated.client import Client as Client
from tacita.federated.client import Local as Local
from tacita.federated.client import Task as Task
from tacita.federated.local import Federation as Federation
from tacita.federated.masking import largest as largest
from tacita.federated.masking import masker as masker
from tacita.federated.masking import summed as summed
from tacita.federated.plan import FederationPlan as FederationPlan
from tacita.federated.plan import federation_plan as federation_plan
from tacita.federated.server import Exchange as Exchange
from tacita.federated.server import Round as Round
from tacita.federated.server import Server as Server
