import pytest

from tests.programs.surveys import write_survey


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with survey.py and people.csv, as the current one."""
    monkeypatch.chdir(tmp_path)
    return write_survey(tmp_path)
