"""An entry for the DP Deployments Registry, from the public label: all three tiers of its schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from tacita._numbers import round_up_text
from tacita._version import __version__
from tacita.label import Label
from tacita.report import cards, issue, table, units, wording

BLANK = "TO BE STATED BY THE PUBLISHER"
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
ASKED = {
    "intended_use": "what the result is for",
    "data_product_region": "which region the data describe, or whose laws apply",
    "data_product_sector": f"one of {', '.join(SECTORS)}",
    "description": "what the result is, in a few sentences",
    "data_domain": "which datasets could have been used instead, such as all tables of this form",
    "unprotected_quantities": "what else about these data is published without noise",
    "actors": "who sees the data, the result and what is in between, and why they are trusted",
    "release_type_details": "whether these data are used or published again",
    "data_source_type": "Static or Dynamic",
    "post_processing": "what is done to the result after its release",
    "preprocessing_and_hyperparameter_tuning": "what was tried on these data beforehand, and whether it was charged",
    "security": "how the data and the computer are protected",
    "justification": "why this epsilon, this unit and this mechanism",
    "sources": "where the result and its label are published",
}
_BLINDLY = (
    "chosen-blindly",
    "generator-chosen-blindly",
    "model-chosen-blindly",
    "program-chosen-blindly",
    "chosen-blindly-beside-tuning",
)


def entry(label: Label, *, product: str, federated: bool, stated: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry of a result, as the registry's schema has it.

    Args:
        label: The public label.
        product: The type of data product, one of the schema's.
        federated: Whether the data stay with several clients.
        stated: What the publisher says, by the names in `ASKED`; the rest is a marked blank.

    Returns:
        Plain data. Status is Draft and tier is 3, whose fields are all there.

    Raises:
        ValueError: If the label has readings, or something is stated that is not asked for.
    """
    if label.readings is not None:
        raise ValueError("A registry entry is made of the public label: pass label.public().")
    require_asked(stated)
    given = label.publication
    sector = {"data_product_sector": stated["data_product_sector"]} if "data_product_sector" in stated else {}
    name = f"{given.model or label.title} {given.model_version}".strip()
    basic = {
        "name": name,
        "data_curators": [given.issuer or f"{BLANK}: the issuer (--issuer)"],
        "description": stated.get("description", label.purpose),
        "intended_use": _asked("intended_use", stated),
        "data_product_type": product,
        "data_product_region": _asked("data_product_region", stated),
        "publication_date": given.issued,
        **sector,
    }
    deployment = {
        "basic": basic,
        "dp_variant": _variant(label, stated),
        "privacy_loss": _loss(label),
        "deployment_model": _model(label, federated, stated),
        "accounting": {
            "post_processing": _asked("post_processing", stated),
            "composition": _composition(label),
        },
        "implementation": _implementation(label, stated),
        "administrative": {
            "sources": _asked("sources", stated),
            "notes": _lines(f"Contact: {given.contact or issue.NOT_STATED}.", *_headlines(label)),
            "registry_authors": [given.issuer or f"{BLANK}: who filled this in"],
        },
    }
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "result"
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment}


def blanks(document: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields of an entry that the publisher has to fill in."""
    found: list[str] = []
    for name, part in document.items():
        if isinstance(part, Mapping):
            found += blanks(part)
        elif any(BLANK in text for text in (part if isinstance(part, list) else [str(part)])):
            found.append(name)
    return found


def yaml_text(document: Mapping[str, Any], indent: int = 0) -> str:
    """Return plain data (mappings, lists of texts, texts, numbers) as YAML; every text is in double quotes."""
    pad, lines = "  " * indent, []
    for name, value in document.items():
        if isinstance(value, Mapping):
            lines += [f"{pad}{name}:", yaml_text(value, indent + 1).rstrip("\n")]
        elif isinstance(value, list | tuple):
            lines += [f"{pad}{name}:", *(f"{pad}  - {_scalar(part)}" for part in value)]
        else:
            lines.append(f"{pad}{name}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps("\n\n".join(units.inline(part) for part in value.split("\n\n")), ensure_ascii=False)
    text = json.dumps(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text  # YAML 1.1 wants a point


def require_asked(stated: Mapping[str, str]) -> None:
    """Refuse what a registry entry does not ask for, or not in these words."""
    for name in stated:
        if name not in ASKED:
            raise ValueError(f"{name!r} is not asked for; --state takes: {', '.join(ASKED)}.")
    choices = {"data_product_sector": SECTORS, "data_source_type": ("Static", "Dynamic")}
    for name, allowed in choices.items():
        if stated.get(name, allowed[0]) not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {stated[name]!r}.")


def _asked(name: str, stated: Mapping[str, str]) -> str:
    return stated.get(name) or f"{BLANK}: {ASKED[name]}"


def _lines(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


def _variant(label: Label, stated: Mapping[str, str]) -> dict[str, str]:
    worst = label.worst
    name = "Custom" if math.isinf(worst.epsilon) else "Approximate DP" if worst.delta else "Pure DP"
    included = ", ".join(f"{key} ({value})" for key, value in label.included)
    known = (
        f"Published by choice, without noise and covered by no figure: {included}." if included else "",
        f"The label says of itself: {wording.source_note(label)}",
        "Title, plan, declared size and other declared terms are published as they are; the owner declares that they "
        "were not computed from the data.",
    )
    return {
        "variant_name": name,
        "data_domain": _asked("data_domain", stated),
        "unprotected_quantities": _lines(*known, _asked("unprotected_quantities", stated)),
    }


def _loss(label: Label) -> dict[str, Any]:
    worst = label.worst
    change = "replaced by another" if worst.neighbours == "replace_one" else "added or removed"
    one = units.headline_unit(label).whole if worst.unit == "person" else units.inline(worst.unit)
    found: dict[str, Any] = {
        "privacy_unit": issue.unit(label),
        "privacy_unit_details": f"Two datasets are adjacent if one {one} is {change}.",
    }
    if math.isfinite(worst.epsilon):
        found["privacy_parameters"] = {"epsilon": float(round_up_text(worst.epsilon)), "delta": worst.delta}
        detail = "epsilon is rounded up; it is the worst case, for anyone, of the run's whole plan or declared end."
    else:
        detail = "No finite epsilon is claimed: nothing limits the influence of one unit."
    found["privacy_parameters_details"] = _lines(detail, *_headlines(label), *_open(label))
    return found


def _open(label: Label) -> list[str]:
    """Return what the figures rest on beyond what the code holds, warnings first."""
    said = wording.state_words(owner=False)
    return [f"{said[a.state]}: {units.capital(a.text)}." for a in wording.checks(label) if a.state != "holds"]


def _headlines(label: Label) -> list[str]:
    return ["".join(card.sentence) for card in cards.cards(label)]


def _model(label: Label, federated: bool, stated: Mapping[str, str]) -> dict[str, str]:
    others = [units.capital(a.text) + "." for a in label.checks if a.answers in ("server", "clients")]
    again = [units.capital(a.text) + "." for a in label.checks if a.code == "nothing-else"]
    return {
        "model_name": "Federated" if federated else "Central",
        "actors": _lines(*others, _asked("actors", stated)),
        "release_type": "One release",
        "release_type_details": _lines(*again, _asked("release_type_details", stated)),
        "data_source_type": stated.get("data_source_type", "Static"),
        "data_source_type_details": "The figures are about the data of one run; new data are a new run.",
        "access_type": "Non-interactive",
        "access_type_details": "Nobody queries the data through the published result.",
    }


def _composition(label: Label) -> str:
    rows = (f"{r.who}, unit {r.unit}: epsilon {r.epsilon} at delta {r.delta}; {r.how}." for r in table.rows(label))
    return _lines(*rows, *label.declared)


def _implementation(label: Label, stated: Mapping[str, str]) -> dict[str, str]:
    said = [units.capital(a.text) for a in label.checks if a.code in _BLINDLY]
    assumed = f"As the owner declares, and nobody tested: {said[0]}." if said else ""
    accounted = [f"{units.capital(a.text)}." for a in label.checks if a.code == "tuning-accounted"]
    tuning = (
        f"{'Other tuning' if accounted else 'Tuning'} and looking at the data beforehand are not accounted for in "
        "epsilon, unless they were charged to the same ledger."
    )
    rows = "; ".join(f"{name}: {value}" for name, value in wording.mechanism(label))
    name = "preprocessing_and_hyperparameter_tuning"
    return {
        name: _lines(*accounted, tuning, assumed, _asked(name, stated)),
        "mechanisms": _lines(
            f"{rows}.",
            f"Implemented by tacita {__version__}.",
            *(f"Not hardened. {text}" for text in label.not_hardened),
            f"Security: {_asked('security', stated)}",
        ),
        "justification": _asked("justification", stated),
    }
