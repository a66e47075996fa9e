"""One reader for training tables and programs: each line, and each cell, is read by itself."""

import gzip

import numpy as np
import pytest

from tacita._guard import held
from tacita.data.cells import open_csv, read_cells, records
from tacita.data.domains import Bool, Category, Real


def test_lines_are_records_and_broken_ones_change_no_other(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbfa, "b",c\r\n1,"x,y",3\n\n1,2\n"open,2,3\n\xff,2,3\n 4 ,5,6')
    for file in (path, path.with_suffix(".csv.gz")):
        file.write_bytes(path.read_bytes() if file == path else gzip.compress(path.read_bytes()))
        with open_csv(file) as (lines, header):
            assert header == ["a", "b", "c"]
            found = list(records(lines, header, ["c", "b"], file=file.name))
        assert found == [["3", "x,y"], [], None, None, None, ["6", "5"]]


def test_a_header_may_be_given(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1,2\n")
    with open_csv(path, ["a", "b"]) as (lines, header):
        assert list(records(lines, header, ["b"], file="t.csv")) == [["2"]]


@pytest.mark.parametrize(("header", "message"), [(["SECRET"], "no column 'a'"), (["a", "a"], "more than one column")])
def test_columns_that_are_missing_or_twice_are_refused_without_the_header(header, message):
    with pytest.raises(ValueError, match=message) as caught:
        list(records([b"1,2"], header, ["a"], file="t.csv"))
    assert "SECRET" not in str(caught.value)


def test_cells_are_read_by_their_domain():
    class Odd:
        def __float__(self):
            raise KeyboardInterrupt

    with held():
        truths = read_cells(Bool(), [True, np.True_, "no", b"yes", None, "?", Odd()])
        places = read_cells(Category("1", "2"), [1, 2.0, "2", np.int64(1), 1.5, None])
        numbers = read_cells(Real(), [1, "2.5", np.float32(3), "x", float("inf"), None, Odd()])
    assert truths.tolist() == pytest.approx([0, 0, 1, 0, np.nan, np.nan, np.nan], nan_ok=True)
    assert places.tolist() == pytest.approx([0, 1, 1, 0, np.nan, np.nan], nan_ok=True)
    assert numbers.tolist() == pytest.approx([1, 2.5, 3, np.nan, np.nan, np.nan, np.nan], nan_ok=True)
