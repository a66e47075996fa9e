"""Data with public encodings: one schema language, named sets with checksums, and your own tables.

The names below are loaded when first used: the schema language itself needs no numerical library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacita.data.dataset import Dataset as Dataset
    from tacita.data.domains import Bool as Bool
    from tacita.data.domains import Category as Category
    from tacita.data.domains import Real as Real
    from tacita.data.loaders import NAMES as NAMES
    from tacita.data.loaders import example_norms as example_norms
    from tacita.data.loaders import load as load
    from tacita.data.schema import Schema as Schema
    from tacita.data.table import decode as decode
    from tacita.data.table import read_table as read_table
    from tacita.data.table import write_csv as write_csv

_MODULES = {
    "dataset": ("Dataset",),
    "domains": ("Bool", "Category", "Real"),
    "loaders": ("NAMES", "example_norms", "load"),
    "schema": ("Schema",),
    "table": ("decode", "read_table", "write_csv"),
}
_HOMES = {name: f"tacita.data.{module}" for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tacita.data' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
