"""Who stands behind a label: given by its issuer, public, and never taken from the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date

from tacita import _codec

_LONGEST = 200


@dataclass(frozen=True, kw_only=True)
class Publication(_codec.Checked):
    """Issuer, contact, model and day of issue. What is not stated is empty, and shown as missing.

    Attributes:
        issuer: Who publishes the result and answers for the label.
        contact: Where questions go: an address or a page.
        model: The name under which the result is published.
        model_version: Its version.
        issued: The day of issue, as YYYY-MM-DD.
    """

    issuer: str = ""
    contact: str = ""
    model: str = ""
    model_version: str = ""
    issued: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for entry in fields(self):
            text, name = getattr(self, entry.name), entry.name.replace("_", "-")
            if len(text) > _LONGEST or not text.isprintable() or text != text.strip():
                raise ValueError(f"{name} must be one line of at most {_LONGEST} printable characters, got {text!r}.")
        if self.issued and not _is_day(self.issued):
            raise ValueError(f"issued must be a day such as 2026-01-31, got {self.issued!r}.")

    @property
    def stated(self) -> bool:
        """Whether anything is stated."""
        return self != Publication()

    def on(self, day: date) -> Publication:
        """Return the publication, issued on this day unless its day is stated."""
        return self if self.issued else replace(self, issued=day.isoformat())

    @classmethod
    def from_table(cls, table: Mapping[str, str]) -> Publication:
        """Return what a recipe's [publication] table states.

        Raises:
            ValueError: If an entry is unknown, or not one line of text.
        """
        known = [entry.name for entry in fields(cls)]
        for name, text in table.items():
            if name not in known:
                raise ValueError(f"{name!r} is not an entry of [publication]; there is: {', '.join(known)}.")
            if not isinstance(text, str):
                raise ValueError(f"{name} must be text in quotes, got {text!r}.")
        return cls(**table)


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
