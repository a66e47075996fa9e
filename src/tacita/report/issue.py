"""Who issued a label, for which model, whom it protects, and the declared size: one table for every document."""

from __future__ import annotations

from tacita.label import Label, Pairs
from tacita.report import units

NOT_STATED = "not stated"


def rows(label: Label) -> Pairs:
    """Return who issued a label and what it is about; what is missing is said to be missing.

    Guarantee:
        Every entry was given by the issuer or declared before the data were used.
    """
    given, size = label.publication, label.nominal_size
    version = f", version {given.model_version}" if given.model_version else ", version not stated"
    return (
        ("Issuer", given.issuer or NOT_STATED),
        ("Contact", given.contact or NOT_STATED),
        ("Model", f"{given.model or 'name not stated'}{version}" if given.model or given.model_version else NOT_STATED),
        ("Issued", given.issued or NOT_STATED),
        ("Protects", unit(label)),
        ("Declared size of the data", NOT_STATED if size is None else f"{size:,} {units.headline_unit(label).many}"),
    )


def unit(label: Label) -> str:
    """Say what is protected; that a record is a person is an assumption."""
    name = units.inline(label.worst.unit)
    assumed = {
        "record": "; that one record is one person is an assumption of the owner",
        "person": ", with all their records; that the ids in the data tell people apart is an assumption of the owner",
    }
    return f"one {name}{assumed.get(label.worst.unit, '')}"
