"""The example on records and people runs, and shows what its page says."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_what_protects_a_record_does_not_protect_a_person_with_many(capsys):
    runpy.run_path(str(ROOT / "examples" / "people.py"))["main"](repeats=1)
    rows = [line.rsplit(None, 4) for line in capsys.readouterr().out.splitlines() if "visit" not in line]
    found = {name: figures for name, *figures in rows}
    one, ten, forty, accuracy = found["records, epsilon 1"]
    assert (one, forty) == ("1.00", "none")
    assert float(ten) > 10.0
    for k in (1, 4, 40):
        assert found[f"people, epsilon 1, k = {k}"][:3] == ["1.00"] * 3
        assert float(found[f"people, epsilon 1, k = {k}"][3].rstrip("%")) > 83.0
    noisy = found["records, noise for 40 of them"]
    assert float(noisy[2]) < 1.01
    assert float(noisy[3].rstrip("%")) < float(found["people, epsilon 1, k = 4"][3].rstrip("%")) < float(accuracy[:-1])
    page = (ROOT / "docs" / "explanation" / "people.md").read_text()
    assert f"| {ten} |" in page
