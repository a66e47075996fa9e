"""The label as plain text for a terminal: the same content, plain words first, at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from tacita._numbers import epsilon_text
from tacita._version import __version__
from tacita.label import Finding, GroupRow, Label, Readings
from tacita.report import attacks, cards, issue, scale, table, units, wording
from tacita.report.rungs import rung_lines

WIDTH = 100
BAR = 50


def label_text(label: Label) -> str:
    """Return the label as plain text: no colours, no control characters, lines of at most 100 characters.

    It says what the page says, in the same order.

    Guarantee:
        As for the page: without readings the text is a function of the label's public part alone.
    """
    own, titles = label.readings, wording.TITLES
    parts = [
        _title(label),
        *(part for section in cards.sections(label) for part in (*map(_card, section.cards), _scale(section))),
        _wrap(wording.units_note(label)),
        *(_wrap(f"WARNING: {text}") for text in wording.warnings(label)),
        _section("Published by choice", [wording.INCLUDED_NOTE, *map(_pair, label.included)] if label.included else []),
        attacks_text(own.audit, label.audit_command) if own else "",
        _section(titles.all, [*_rows(label), table.LIMITS, table.mu_note()]),
        _section("How sure an attacker may become", wording.sure_sentences(label.worst)),
        _section(titles.meaning, wording.meaning(label)),
        _groups(own.groups, units.headline_unit(label)) if own else "",
        _section(titles.rungs, rung_lines(label)),
        _section(titles.made, map(_pair, wording.mechanism(label))),
        _section(f"Declared before the first {label.steps_word}", label.declared),
        *(_own(own) if own else ()),
        _section(titles.rests, _checks(label)),
        _section(titles.hardened, label.not_hardened),
        _section(titles.scale, (*scale.sentences(label.worst), *scale.SOURCES)),
        _section(titles.issue, map(_pair, issue.rows(label))),
    ]
    shown = "\n\n".join(part for part in parts if part)
    words = _section(titles.words, (f"{name}: {text}" for name, text in wording.glossary(label, shown)))
    return "\n\n".join((shown, words, _wrap(f"{wording.source_note(label)} tacita {__version__}.")))


def _title(label: Label) -> str:
    lines = [_wrap(" ".join(wording.OWNER_BAND)), ""] if label.readings else []
    lines += ["PRIVACY LABEL", _wrap(label.title), _wrap(label.purpose)]
    return "\n".join(lines)


def _card(card: cards.Card) -> str:
    lines = [_wrap(f"{card.heading.upper()} ({card.tag})"), _wrap("".join(card.sentence), indent=2)]
    lines += [f"  {name + ':':<18} {figure:<8} {epsilon}".rstrip() for name, figure, epsilon in card.lines]
    lines += [_wrap(card.figures, indent=2)] if card.figures else []
    return "\n".join([*lines, *(_wrap(note, indent=2) for note in card.notes)])


def _scale(section: cards.Section) -> str:
    found = scale.scale(section)
    if not found.found:
        return ""
    filled = round(BAR * float(found.found[0].place) / 100.0)
    lines = [f"  guessing 50% [{'#' * filled}{'.' * (BAR - filled)}] 100% certain"]
    marks = [*found.found, *([found.pair] if found.pair else []), *found.usual]
    return "\n".join([*lines, *(_wrap(f"{mark.name}: {mark.text}", indent=4) for mark in marks)])


def _rows(label: Label) -> Iterable[str]:
    found = table.rows(label)
    several = len({row.unit for row in found}) > 1
    return (f"{_row(row)}; unit: {row.unit}" if several else _row(row) for row in found)


def _row(row: table.Row) -> str:
    attack = "" if row.attack == "none" else f", attack success {row.attack}"
    found = (
        "" if row.found[0] == table.NONE else f", found {row.found[0]} at 1% and {row.found[1]} at 0.1% false alarms"
    )
    mu = "" if row.mu == table.NONE else f", mu {row.mu}"
    return f"{row.who}: epsilon {row.epsilon}, delta {row.delta}{attack}{found}{mu}; {row.basis}"


def _own(own: Readings) -> Iterable[str]:
    yield _section("Outcome of the certificate", [own.certificate] if own.certificate else [])
    yield _section("Measured on private data", map(_pair, own.metrics))
    yield _section("About the run", map(_pair, own.facts))


def attacks_text(findings: tuple[Finding, ...], hint: str = "tacita audit RUN") -> str:
    """Return what attacks found as plain text: a verdict, and an entry for each."""
    if not findings:
        return f"WHAT ATTACKS FOUND: {attacks.NOT_RUN}" + (
            f"\n{_wrap(f'To run some: {hint}', indent=2)}" if hint else ""
        )
    lines = [_wrap(f"WHAT ATTACKS FOUND: {attacks.verdict(findings).text}")]
    for attack in attacks.attacks(findings):
        heading, sentence = attack.finding.heading, attack.finding.sentence
        colon = "" if heading.endswith("?") else ":"
        lines.append(_wrap(f"[{attack.told}] {heading}{colon} {sentence}", indent=2, bullet="- "))
    return "\n".join(lines)


def findings_text(findings: tuple[Finding, ...]) -> str:
    """Return what attacks found as plain text, with tables. What they rest on is on the label."""
    lines = [_wrap(attacks.verdict(findings).text)] if findings else [attacks.NOT_RUN]
    said = False
    for attack in attacks.attacks(findings):
        if not attack.claims and not said:
            lines, said = [*lines, "", _wrap(attacks.LOOKS)], True
        found = attack.finding
        lines += ["", _wrap(f"{found.heading} [{attack.told}]"), _wrap(found.sentence, indent=2)]
        lines += [f"  {row}" for row in aligned(found.columns, found.rows)]
    return "\n".join(lines)


def aligned(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    """Yield the lines of a table; the last column is not padded."""
    every = [columns, *rows] if columns else []
    widths = [max(len(row[i]) for row in every) for i in range(len(columns))]
    for row in every:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _groups(rows: tuple[GroupRow, ...], unit: units.Unit) -> str:
    if not rows:
        return ""
    lines = [_wrap(f"GROUPS: half, 90% and all of a group's followed {unit.many} stay under this epsilon")]
    lines.append(f"  {'group':<44} {_cut(unit.many, 9):>9} {'half':>9} {'90%':>9} {'all':>9}")
    for row in rows:
        name = _cut(f"{units.inline(row.column)} {units.inline(row.value)}", 44)
        figures = (epsilon_text(e) for e in (row.median, row.p90, row.largest))
        lines.append(f"  {name:<44} {row.records:>9,} " + " ".join(f"{figure:>9}" for figure in figures))
    return "\n".join(lines)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _checks(label: Label) -> Iterable[str]:
    said = wording.state_words(label.readings is not None)
    return (f"[{said[check.state]}] {units.capital(check.text)}" for check in wording.checks(label))


def _pair(pair: tuple[str, str]) -> str:
    return f"{pair[0]}: {pair[1]}"


def _section(heading: str, entries: Iterable[str]) -> str:
    lines = [_wrap(entry, indent=2, bullet="- ") for entry in entries]
    return "\n".join([heading.upper(), *lines]) if lines else ""


def _wrap(text: str, *, indent: int = 0, bullet: str = "") -> str:
    return textwrap.fill(
        units.inline(text),
        WIDTH,
        initial_indent=" " * indent + bullet,
        subsequent_indent=" " * (indent + len(bullet)),
    )
