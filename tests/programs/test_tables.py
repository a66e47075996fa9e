"""Records through a program's schema: every cell is some value, whatever it holds, and no cell touches another."""

import signal
import traceback

import numpy as np
import pytest

from tacita.data import Schema
from tacita.programs import Bool, Category, Program, Real, normal
from tacita.programs.tables import exact_numbers, read

SCHEMA = {"smoker": Bool(), "job": Category("a", "b", "c"), "age": Real()}


GOOD = ["yes,a,30", "NO,b,41.4", "1,c,-7"]


def program(n=3, **schema):
    return Program(schema=schema or SCHEMA, n=n, epsilon=100)


def csv(path, lines, header="smoker,job,age"):
    path.write_bytes("\n".join([header, *lines, ""]).encode("utf-8", "surrogateescape"))
    return path


def numbers(p, data):
    table = read(p, data)
    queries = [p.column("smoker").count(), p.column("job").histogram(), p.column("age").clamp(0, 100, step=5).sum()]
    return [exact_numbers(query, table) for query in queries]


def test_a_file_and_a_mapping_of_the_same_records_agree(tmp_path):
    expected = [(2,), (1, 1, 1), (6 + 8 + 0,)]
    assert numbers(program(), csv(tmp_path / "d.csv", GOOD)) == expected
    listed = {"smoker": ["yes", "NO", 1], "job": ["a", "b", "c"], "age": [30, "41.4", -7.0], "unused": [1]}
    assert numbers(program(), listed) == expected
    arrays = {"smoker": np.array([True, False, True]), "job": np.array(list("abc")), "age": np.array([30, 41.4, -7])}
    assert numbers(program(), arrays) == expected
    assert numbers(program(), {**arrays, "smoker": np.array([1.0, 0.0, 1.0])}) == expected
    assert numbers(program(), {**arrays, "job": np.array([b"a", b"b", b"c"])}) == expected


def test_columns_may_come_in_any_order_with_quotes_a_mark_and_other_columns(tmp_path):
    lines = ['"30", x,"a", yes ', "41.4,y,b,no", '"-7","z,""","c",1\r']
    path = csv(tmp_path / "d.csv", lines, header="\ufeffage,other,job,smoker")
    assert numbers(program(), path) == [(2,), (1, 1, 1), (14,)]


BROKEN = {
    "too few fields": "yes,a",
    "too many fields": "yes,a,30,1",
    "an open quote": 'yes,"a,30',
    "blank": "",
    "not UTF-8": "yes,a,30\udcff",
    "a return inside": "yes,a\ryes,30",
    "unknown everywhere": "perhaps,z,old",
    "missing": ",,",
    "not finite": "maybe,?,inf",
    "no number": "maybe,?,NaN",
    "underscores": "maybe,?,1_000",
    "a very long field": "maybe,?," + "9" * 200_000,
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_broken_line_is_one_record_of_unreadable_cells(line, place, tmp_path):
    p = program(n=4)
    path = csv(tmp_path / "d.csv", [*GOOD[:place], line, *GOOD[place:]])
    assert numbers(p, path) == [(2,), (2, 1, 1), (14,)]  # false, the first label, the lower bound
    assert dict(read(p, path).unreadable) == {"smoker": 1, "job": 1, "age": 1}


def test_blank_lines_beyond_the_last_record_are_none(tmp_path):
    assert numbers(program(), csv(tmp_path / "d.csv", [*GOOD, "", "  ", ""])) == numbers(
        program(), csv(tmp_path / "e.csv", GOOD)
    )
    with pytest.raises(ValueError, match="has 5"):
        read(program(), csv(tmp_path / "d.csv", [*GOOD, "", "x"]))


def test_packed_files_and_files_without_a_header(tmp_path):
    import gzip

    plain = csv(tmp_path / "d.csv", GOOD)
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert numbers(program(), tmp_path / "d.csv.gz") == numbers(program(), plain)
    (tmp_path / "bare.csv").write_bytes(plain.read_bytes().split(b"\n", 1)[1])
    whole, table = read(program(), plain), read(program(), tmp_path / "bare.csv", header=["smoker", "job", "age"])
    assert {n: list(v) for n, v in table.columns.items()} == {n: list(v) for n, v in whole.columns.items()}


@pytest.mark.parametrize(
    "cell", [None, object(), float("nan"), [1], b"\xff", 10**400, 1j, "x" * 10**6, type("T", (), {"__str__": None})()]
)
def test_odd_cells_of_a_mapping_are_unreadable(cell):
    cells = np.empty(3, dtype=object)
    cells[:] = [cell, cell, cell]
    assert numbers(program(), {"smoker": cells, "job": cells, "age": cells}) == [(0,), (3, 0, 0), (0,)]


def test_the_number_of_records_is_the_public_one(tmp_path):
    with pytest.raises(ValueError, match=r"for n=4 records, but column 'smoker' has 3; give the program the true n"):
        read(program(n=4), csv(tmp_path / "d.csv", GOOD))
    with pytest.raises(ValueError, match="column 'job' has 2"):
        read(program(), {"smoker": [1, 1, 1], "job": ["a", "b"], "age": [1, 1, 1]})


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("smoker,jobs,age", "has no column 'job'"),
        ("smoker,job,age,job", "more than one column 'job'"),
        ("", "must start with a header line"),
    ],
)
def test_the_header_is_held_against_the_schema(header, message, tmp_path):
    with pytest.raises(ValueError, match=message) as refusal:
        read(program(), csv(tmp_path / "d.csv", GOOD, header=header))
    assert "jobs" not in str(refusal.value)  # without a header it would be a record


def test_a_mapping_without_a_column_or_of_the_wrong_shape():
    with pytest.raises(ValueError, match="The data have no column 'age'"):
        read(program(), {"smoker": [1] * 3, "job": ["a"] * 3})
    with pytest.raises(ValueError, match="'age' must hold one value for each record"):
        read(program(), {"smoker": [1] * 3, "job": ["a"] * 3, "age": np.zeros((3, 2))})


def test_spellings_and_other_labels():
    p = program(2, smoker=Bool(true=["j", "ja"], false="n"), job=Category("a", "b", other="b"), size=Category(3))
    table = read(p, {"smoker": ["JA", "yes"], "job": ["a", "z"], "size": [2, 2.0]})
    found = [exact_numbers(p.column(name).histogram(), table) for name in ("smoker", "job", "size")]
    assert found == [(1,), (1,), (0, 0, 2)]


def test_a_program_uses_the_schema_that_training_uses():
    """One schema language: bounds that the schema declares need no clamp, and whole numbers have a step of 1."""
    columns = {"age": {"type": "real", "low": 0, "high": 120, "whole": True}, "ill": {"type": "bool"}}
    schema = Schema.from_dict({"target": "ill", "columns": columns})
    p = Program(schema=schema.domains, n=3, epsilon=1)
    table = read(p, {"age": [50.4, 300, "?"], "ill": ["yes", "no", "1"]})
    assert exact_numbers(p.column("age").sum(), table) == (170,)
    assert p.column("age").sum().sensitivity.stay == 120
    assert exact_numbers(p.column("age").histogram(bins=3), table) == (1, 1, 1)
    assert exact_numbers(p.column("age").clamp(0, 60, step=0.1).sum(), table) == (504 + 600,)
    assert p.column("age").posterior(normal(50, 10, record_sd=20)).sensitivity.stay == 120
    assert exact_numbers(p.column("ill").count(), table) == (2,)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Program(schema={"x": Bool}, n=1, epsilon=1), TypeError, r"must be Bool\(\)"),
        (lambda: Program(schema={}, n=1, epsilon=1), ValueError, "at least one column"),
        (lambda: Program(schema=SCHEMA, n=0, epsilon=1), ValueError, "n must be a whole number"),
    ],
)
def test_schemas_say_what_they_need(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_values_are_rounded_to_the_grid_and_bounded(rng):
    values = np.concatenate([rng.normal(0, 3, 500), [1e308, -1e308, np.nan, 0.25, -0.25]])
    p = program(len(values), x=Real())
    table = read(p, {"x": values})
    column = p.column("x").clamp(-2, 2.5, step=0.5)
    expected = [max(-4, min(5, round((-2 if np.isnan(v) else max(-9, min(9, v))) / 0.5))) for v in values]
    assert exact_numbers(column.sum(), table) == (sum(expected),)
    bounded = np.clip(np.where(np.isnan(values), -2, values), -2, 2.5)  # counted before they are rounded
    assert exact_numbers(column.histogram(bins=3), table) == tuple(np.histogram(bounded, [-2, -0.5, 1, 2.5])[0])
    assert exact_numbers(column.histogram(bins=2), table) == ((bounded < 0.25).sum(),)


def test_steps_that_are_not_binary_fractions_lose_nothing():
    p = program(4, x=Real())
    table = read(p, {"x": [0.3, 0.1, 0.7, 0.05]})
    assert exact_numbers(p.column("x").clamp(0, 1, step=0.1).sum(), table) in ((11,), (12,))  # 0.05 lies between
    assert exact_numbers(p.column("x").clamp(0.1, 0.7, step=0.1).sum(), table) == (3 + 1 + 7 + 1,)


def test_a_table_prints_nothing_of_its_records():
    p = program(1)
    assert repr(read(p, {"smoker": [1], "job": ["b"], "age": [77]})) == "Table()"


@pytest.mark.parametrize(
    ("odd", "own"), [("\x00", 0), ('"', 0), ("yes,a,50", 50), ('x"y,a,50', 50), ("a,b,c,d", 0), ("yes,c,50", 0)]
)
def test_a_line_changes_nothing_but_its_own_numbers(odd, own, tmp_path):
    p = program(5)
    lines, jobs, ages = [*GOOD, "no,b,3", "yes,c,9"], "abcbc", [30, 41, 0, 3, 9]
    query = p.where(job=["a", "b"]).column("age").clamp(0, 100).sum()
    for place in range(5):
        path = csv(tmp_path / "d.csv", [*lines[:place], odd, *lines[place + 1 :]])
        others = sum(age for i, age in enumerate(ages) if i != place and jobs[i] != "c")
        assert exact_numbers(query, read(p, path)) == (others + own,)


def test_a_column_of_a_part_keeps_its_conditions_as_a_condition():
    p = program(4, job=Category("lab", "office"), age=Real())
    table = read(p, {"job": ["lab", "office", "office", "office"], "age": [70, 70, 70, 70]})
    senior = p.where(job="lab").column("age").map(lambda v: v >= 65, to=Bool())
    assert exact_numbers(p.where(senior).count(), table) == (1,)
    assert [exact_numbers(part.count(), table) for part in p.partition(senior).values()] == [(1,), (0,)]
    labelled = p.where(job="office").column("job")
    assert [exact_numbers(part.count(), table) for part in p.partition(labelled).values()] == [(0,), (3,)]


def test_a_sum_stays_in_its_domain_whatever_the_column_was_made_of():
    import dataclasses

    p = program(2, x=Real())
    x = p.column("x")
    swapped = dataclasses.replace(x, domain=x.clamp(0, 1, step=1).domain)
    assert exact_numbers(swapped.sum(), read(p, {"x": [1e6, 0.0]})) == (1,)


@pytest.mark.parametrize("damage", ["plain", "checksum", "cut", "stream"])
def test_a_damaged_archive_says_nothing_of_its_content(damage, tmp_path):
    import gzip

    packed = bytearray(gzip.compress(b"x,y\n" + b"1,2\n" * 500))
    if damage == "plain":
        packed = bytearray(b"71,2\n")
    elif damage == "checksum":
        packed[-6] ^= 1
    elif damage == "cut":
        packed = packed[:-12]
    else:
        packed[12:20] = b"\xff" * 8
    (tmp_path / "d.csv.gz").write_bytes(packed)
    p = program(500, x=Real())
    with pytest.raises(ValueError, match=r"^d\.csv\.gz is damaged: it cannot be unpacked\.$"):
        read(p, tmp_path / "d.csv.gz", header=["x", "y"] if damage == "plain" else None)


@pytest.mark.parametrize(
    ("cells", "bad"),
    [([[1, 2], [3, 4]], 2), ([[1, 2], 1], 1), ([np.zeros((2, 2)), np.zeros((2, 3))], 2), ([True, object()], 1)],
)
def test_lists_are_read_cell_by_cell(cells, bad):
    p = program(2, smoker=Bool())
    assert read(p, {"smoker": cells}).unreadable["smoker"] == bad


def test_numpy_truth_values_and_marks_before_the_first_cell(tmp_path):
    p = program(2, x=Bool(true="ja", false="nein"))
    assert exact_numbers(p.column("x").count(), read(p, {"x": [np.True_, np.False_]})) == (1,)
    (tmp_path / "d.csv").write_text("\ufeffja\nnein\n")
    table = read(p, tmp_path / "d.csv", header=["x"])
    assert exact_numbers(p.column("x").count(), table) == (1,)
    assert table.unreadable["x"] == 0


def test_a_cell_that_raises_when_it_is_read_is_unreadable():
    class Odd:
        def __float__(self):
            raise KeyboardInterrupt

        __str__ = __float__

    p = program(3)
    table = read(p, {"smoker": [True, Odd(), True], "job": ["b", Odd(), "b"], "age": [1, Odd(), 2]})
    assert table.unreadable == {"smoker": 1, "job": 1, "age": 1}


def test_ctrl_c_waits_until_the_records_are_counted_and_shows_none_of_them():
    p = program(3, x=Real())
    seen = []

    def presses(value):
        if value == 31337.25:
            signal.raise_signal(signal.SIGINT)
        seen.append(value)
        return value

    mapped = p.column("x").map(presses, low=0, high=9, step=1)
    table = read(p, {"x": [4.0, 31337.25, 3.0]})
    with pytest.raises(KeyboardInterrupt) as caught:
        exact_numbers(mapped.sum(), table)
    assert seen[-3:] == [4.0, 31337.25, 3.0]
    assert "presses" not in "".join(traceback.format_exception(caught.value))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_stops_a_function_where_it_is():
    p = program(2, x=Real())

    def presses(value):
        if value == 31337.25:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError
        return value

    mapped = p.column("x").map(presses, low=0, high=9, step=1)
    with pytest.raises(KeyboardInterrupt) as caught:
        exact_numbers(mapped.sum(), read(p, {"x": [31337.25, 3.0]}))
    assert "presses" not in "".join(traceback.format_exception(caught.value))


def test_another_signal_that_python_listens_to_waits_too():
    p = program(2, x=Real())
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(len(seen)))
    seen = []

    def presses(value):
        if value == 31337.25:
            signal.raise_signal(signal.SIGTERM)
        seen.append(value)
        return value

    try:
        mapped = p.column("x").map(presses, low=0, high=9, step=1)
        tried = len(seen)
        assert exact_numbers(mapped.sum(), read(p, {"x": [31337.25, 3.0]})) == (12,)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [tried + 2]


def test_a_record_that_a_column_cannot_give_is_unreadable():
    class Lazy:
        def __len__(self):
            return 3

        def __getitem__(self, place):
            if place == 1:
                raise OSError("/secret/path")
            return 1

    p = program(3, x=Real())
    table = read(p, {"x": Lazy()})
    assert table.unreadable == {"x": 1}
    assert exact_numbers(p.column("x").clamp(0, 9, step=1).sum(), table) == (2,)
