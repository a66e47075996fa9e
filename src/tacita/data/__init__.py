"""Data with public encodings: named sets with checksums, and your own tables through a schema."""

from tacita.data.dataset import Dataset as Dataset
from tacita.data.example import example_norms as example_norms
from tacita.data.loaders import NAMES as NAMES
from tacita.data.loaders import load as load
from tacita.data.schema import Schema as Schema
from tacita.data.table import decode as decode
from tacita.data.table import read_table as read_table
from tacita.data.table import write_csv as write_csv
