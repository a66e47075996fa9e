"""The label as a self-contained page: no script, no request, readable on a phone, on paper, and in the dark."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tacita import _check, _numbers
from tacita._version import __version__
from tacita.label import GroupRow, Label
from tacita.report import attacks, cards, charts, issue, scale, table, units, wording
from tacita.report.rungs import rung_sentences, rung_table

if TYPE_CHECKING:
    from jinja2 import Template

FRAME_HEIGHT = 820
_TAGS = re.compile(r"<[^>]*>")


def label_html(label: Label) -> str:
    """Return a complete HTML document: the public page, or the owner's if the label has readings.

    Every text is escaped, and a content security policy forbids scripts and requests all the same. The page
    carries no date and no random mark.

    Args:
        label: What to show. `label.public()` leaves out what must not be published.

    Returns:
        The document, to be written as UTF-8.

    Raises:
        ImportError: If jinja2 or matplotlib is missing; the message names the install command.

    Guarantee:
        The public page is a function of the label's public part alone: labels with equal `public()` give the
        same bytes, whatever was read from the data.
    """
    return _document(label)


def _document(label: Label, address: str = "") -> str:
    """Return the page; `address` is that of the document, where its links would otherwise lead out of it."""
    return page_template().render(_view(label), address=address)


def label_frame(label: Label) -> str:
    """Return the page inside a sandboxed frame, for notebooks: neither its style nor its content can leak out."""
    title = html.escape(units.printable(f"Privacy label: {label.title}"))
    document = html.escape(_document(label, "about:srcdoc"))  # "#words" alone would load the notebook into the frame
    return (
        f'<iframe title="{title}" sandbox="" referrerpolicy="no-referrer" srcdoc="{document}" '
        f'style="width:100%;height:{FRAME_HEIGHT}px;border:0"></iframe>'
    )


def page_template() -> Template:
    """Return the label's template; call it early, to fail before the work if jinja2 or matplotlib is missing."""
    found = template("tacita.report", "label.html.j2")
    charts.load_matplotlib()
    return found


@cache
def template(package: str, name: str) -> Template:
    """Return a page's template from a package's files; every text is escaped.

    Raises:
        ImportError: If jinja2 is missing; the message names the install command.
    """
    try:
        import jinja2
    except ImportError as error:
        raise _check.missing("Pages need jinja2", "report") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tacita.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    return environment.from_string(files(package).joinpath(name).read_text(encoding="utf-8"))


def _finalize(value: Any) -> Any:
    return units.printable(value) if type(value) is str else value


def _view(label: Label) -> dict[str, Any]:
    """Collect everything the template shows."""
    own = label.readings
    findings, groups = (own.audit, own.groups) if own else ((), ())
    sections = cards.sections(label)
    tried = attacks.attacks(findings)
    rows = table.rows(label)
    return {
        "label": label,
        "own": own,
        "owner": own is not None,
        "band": wording.OWNER_BAND,
        "titles": wording.TITLES,
        "contents": wording.contents(label),
        "sections": [(section, scale.scale(section)) for section in sections],
        "columns": max(len(section.cards) for section in sections) + (own is None),
        "units_note": wording.units_note(label),
        "meaning": wording.meaning(label),
        "included_note": wording.INCLUDED_NOTE,
        "claims": [attack for attack in tried if attack.claims],
        "looks": [attack for attack in tried if not attack.claims],
        "looks_note": attacks.LOOKS,
        "verdict": attacks.verdict(findings) if findings else None,
        "not_run": attacks.NOT_RUN,
        "how_to_run": label.audit_command,
        "spread": charts.spread_figure(label),
        "tests": charts.draw("tests", charts.tests_chart(label)),
        "steps": charts.draw("steps", charts.steps_chart(label)),
        "rows": rows,
        "row_columns": table.COLUMNS,
        "none_text": table.NONE,
        "rows_notes": (table.LIMITS, table.mu_note()),
        "several_units": len({row.unit for row in rows}) > 1,
        "sure": wording.sure_sentences(label.worst),
        "many": units.headline_unit(label).many,
        "mechanism": wording.mechanism(label),
        "rung_table": rung_table(label),
        "rung_sentences": rung_sentences(label),
        "groups": _by_column(groups),
        "group_width": _group_width(groups),
        "checks": wording.checks(label),
        "warnings": wording.warnings(label),
        "states": wording.state_words(own is not None),
        "scale_sentences": scale.sentences(label.worst),
        "sources": scale.SOURCES,
        "issue": issue.rows(label),
        "glossary": lambda shown: wording.glossary(label, html.unescape(_TAGS.sub(" ", shown))),
        "source_note": wording.source_note(label),
        "version": __version__,
        "epsilon_text": _numbers.epsilon_text,
    }


def _by_column(rows: tuple[GroupRow, ...]) -> tuple[tuple[str, tuple[GroupRow, ...]], ...]:
    columns = dict.fromkeys(row.column for row in rows)
    return tuple((column, tuple(row for row in rows if row.column == column)) for column in columns)


def _group_width(rows: tuple[GroupRow, ...]) -> Callable[[float], str]:
    """Return how wide an epsilon is drawn in the table of groups, in percent of the largest."""
    largest = max((row.largest for row in rows if math.isfinite(row.largest)), default=0.0) or 1.0
    return lambda epsilon: f"{100.0 * min(1.0, epsilon / largest):.1f}"
