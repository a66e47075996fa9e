"""What an issuer may state, and that a run keeps it."""

from datetime import date

import pytest

from tacita.publication import Publication
from tacita.runs import Run, RunError


def test_the_day_of_issue_is_kept():
    stated = Publication(issuer="City Hospital").on(date(2026, 1, 31))
    assert stated.issued == "2026-01-31"
    assert stated.on(date(2027, 1, 1)) == stated
    assert Publication.from_dict(stated.to_dict()) == stated


@pytest.mark.parametrize("text", ["two\nlines", "x" * 201, " padded", "turned \u202e round", "bell\x07"])
def test_texts_are_one_printable_line(text):
    with pytest.raises(ValueError, match="issuer must be one line"):
        Publication(issuer=text)


@pytest.mark.parametrize("day", ["today", "2026-02-30", "20260131", "2026-1-31"])
def test_days_are_days(day):
    with pytest.raises(ValueError, match="issued must be a day"):
        Publication(issued=day)


def test_tables_of_recipes():
    assert Publication.from_table({"model": "digits"}).model == "digits"
    with pytest.raises(ValueError, match="'owner' is not an entry"):
        Publication.from_table({"owner": "me"})
    with pytest.raises(ValueError, match="model must be text in quotes"):
        Publication.from_table({"model": 3})


def test_a_run_keeps_what_was_stated_above_its_recipe(tmp_path):
    run = Run.create(tmp_path / "run")
    run.write(kind="training", family="training")
    assert not run.publication.stated
    run.write(recipe={"publication": {"issuer": "recipe"}})
    assert run.publication.issuer == "recipe"
    run.publish(Publication(issuer="command"))
    assert run.publication.issuer == "command"
    (run.folder / "publication.json").write_text('{"issuer": 3}')
    with pytest.raises(RunError, match=r"publication.json.* is damaged"):
        _ = run.publication
