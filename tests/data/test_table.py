"""Tables: encoded record by record by the schema alone, and never quoted in a message."""

import codecs
import gzip
import itertools
import math
import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tacita.data import Schema, decode, files, load, loaders, read_table, write_csv

COLUMNS = {
    "age": {"type": "real", "low": 0, "high": 100},
    "wealth": {"type": "real", "low": 0, "high": 99, "scale": "log"},
    "job": {"type": "category", "values": ["clerk", "nurse", "a, b"]},
    "smoker": {"type": "bool"},
    "ill": {"type": "bool"},
}
HEADER = "age,wealth,job,smoker,ill"


def schema(target="ill", missing="zero", **more):
    return Schema.from_dict({"target": target, "missing": missing, "columns": COLUMNS} | more)


@pytest.fixture
def table(tmp_path):
    def write(*lines, header=HEADER, name="people.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes("\n".join([header, *lines]).encode(encoding))
        return path

    return write


def test_each_type_is_encoded_as_documented(table):
    data = read_table(table('25, 9, nurse, yes, TRUE\n150,-3,"a, b",No,0\n\n'), schema(groups=["job", "ill"]))
    np.testing.assert_array_equal(data.inputs, [[-0.5, 0, 0, 1, 0, 1], [1, -1, 0, 0, 1, -1]])
    np.testing.assert_array_equal(data.targets, [1, 0])
    assert (data.inputs.dtype, data.targets.dtype) == (np.float32, np.int64)
    assert data.classes == ("false", "true")
    assert data.feature_names == ("age", "wealth", "job=clerk", "job=nurse", "job=a, b", "smoker")
    np.testing.assert_array_equal(data.groups["job"], ["nurse", "a, b"])
    np.testing.assert_array_equal(data.groups["ill"], ["true", "false"])
    assert (data.name, data.source, data.nominal_size) == ("people", "people.csv", None)
    assert data.test_inputs.shape == (0, 6)
    assert len(data.test_groups["job"]) == 0


def test_real_targets_are_scaled_to_the_unit_interval_and_restored(table):
    data = read_table(table("30,9,nurse,1,1", "130,9,nurse,1,1"), schema(target="age"))
    np.testing.assert_allclose(data.targets, [0.3, 1.0])
    assert data.classes is None
    np.testing.assert_allclose(data.restore(data.targets), [30, 100], rtol=1e-6)


def test_category_targets_are_positions_in_the_classes(table):
    data = read_table(table("30,9,nurse,1,1", "130,9,clerk,1,1"), schema(target="job", nominal_size=7))
    np.testing.assert_array_equal(data.targets, [1, 0])
    assert data.classes == ("clerk", "nurse", "a, b")
    assert data.nominal_size == 7


MISSING = ["", "NA", "nan", "NaN", "?", "inf", "-inf", "1e999", "1_0", "x", "0x10", '"open', "\x00"]


@pytest.mark.parametrize("cell", MISSING)
def test_a_missing_value_follows_the_policy(table, cell):
    good = "25,9,nurse,yes,1"
    path = table(f"{cell},9,nurse,yes,1", good)
    broken = cell == '"open'  # takes the whole line with it, and no other
    kept = read_table(path, schema()).inputs
    np.testing.assert_array_equal(kept[-1], [-0.5, 0, 0, 1, 0, 1])
    if broken:
        assert len(kept) == 1
    else:
        np.testing.assert_array_equal(kept[0], [0, 0, 0, 1, 0, 1])
    assert len(read_table(path, schema(missing="drop")).inputs) == 1
    with pytest.raises(ValueError, match="cannot be read" if broken else "column 'age' has") as caught:
        read_table(path, schema(missing="error"))
    assert 'missing = "drop"' in str(caught.value)


def test_missing_categories_bools_targets_and_groups(table):
    path = table("25,9,cook,maybe,1", "25,9,nurse,yes,?", "25,9", "25,9,nurse,yes,1,1", "50,9,nurse,yes,0")
    data = read_table(path, schema(groups=["job", "smoker"]))
    np.testing.assert_array_equal(data.inputs, [[-0.5, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 1]])
    np.testing.assert_array_equal(data.groups["job"], ["(missing)", "nurse"])
    np.testing.assert_array_equal(data.groups["smoker"], ["(missing)", "true"])
    np.testing.assert_array_equal(read_table(path, schema(missing="drop")).targets, [0])


def test_a_listed_value_is_never_missing(table):
    columns = {"region": {"type": "category", "values": ["NA", "EU", 7]}, "ill": {"type": "bool"}}
    path = table("NA,1", "EU,0", "7,0", header="region,ill")
    data = read_table(path, Schema.from_dict({"target": "ill", "columns": columns, "missing": "error"}))
    np.testing.assert_array_equal(data.inputs, np.eye(3))


def test_marks_line_ends_extra_columns_and_bad_bytes(table, tmp_path):
    path = tmp_path / "odd.csv"
    lines = [
        b"ill , note,age,smoker,job,wealth",
        b"1,x,25,yes,nurse,9",
        b"1,\xff\xfe,25,yes,nurse,9",
        b"0,,75,no,clerk,0",
    ]
    path.write_bytes(codecs.BOM_UTF8 + b"\r\n".join(lines))
    np.testing.assert_array_equal(read_table(path, schema()).targets, [1, 0])
    np.testing.assert_array_equal(read_table(path, schema()).inputs, [[-0.5, 0, 0, 1, 0, 1], [0.5, -1, 1, 0, 0, -1]])


def test_a_test_file_is_read_by_the_same_schema(table):
    data = read_table(
        table("25,9,nurse,yes,1"), schema(groups=["job"]), test=table("75,0,clerk,no,0", "0,0,,no,0", name="test.csv")
    )
    np.testing.assert_array_equal(data.test_inputs[0], [0.5, -1, 1, 0, 0, -1])
    np.testing.assert_array_equal(data.test_groups["job"], ["clerk", "(missing)"])


def test_files_that_do_not_fit_get_one_line_without_their_content(table, tmp_path):
    cases = [
        (table("25,9,nurse,yes,1", header="SECRET,1,2,3,4"), "people.csv has no column 'age'"),
        (table("25", header=HEADER + ",age", name="twice.csv"), "more than one column 'age'"),
        (table(header="", name="empty.csv"), "must start with a header"),
        (table("1", name="wide.csv", encoding="utf-16"), "must start with a header"),
        (table(name="none.csv"), "holds no record"),
        (table("SECRET,,,,", name="lost.csv"), "holds no record"),
        (table("1", name="people.txt"), "must be a .csv, .csv.gz or .npz file"),
    ]
    for path, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            read_table(path, schema())
        assert "SECRET" not in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "nowhere.csv", schema())


def test_a_packed_table_is_read_alike_and_a_damaged_one_is_refused(table):
    path = table("25,9,nurse,yes,1", "30,3,cook,no,0")
    packed = path.with_name("people.csv.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    plain, unpacked = read_table(path, schema()), read_table(packed, schema())
    assert np.array_equal(plain.inputs, unpacked.inputs)
    assert np.array_equal(plain.targets, unpacked.targets)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"people.csv.gz is damaged"):
        read_table(packed, schema())


ARRAYS = {
    "age": np.array([25, 150, np.nan]),
    "wealth": np.array([9, 0, 9], dtype=np.uint8),
    "job": np.array(["nurse ", "a, b", "cook"]),
    "smoker": np.array([True, False, True]),
    "ill": np.array([b"yes", b"0", b"\xff"]),
}


@pytest.fixture
def archive(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "people.npz", **arrays)
        return tmp_path / "people.npz"

    return write


def test_npz_columns_are_encoded_as_csv_is(archive):
    data = read_table(archive(**ARRAYS), schema())
    np.testing.assert_array_equal(data.inputs, [[-0.5, 0, 0, 1, 0, 1], [1, -1, 0, 0, 1, -1]])
    np.testing.assert_array_equal(data.targets, [1, 0])
    whole = ARRAYS | {"ill": np.array([1, 0, 1]), "age": np.array(["25", "x", "5"]), "job": np.array([1, 2, 3])}
    data = read_table(archive(**whole), schema())
    np.testing.assert_allclose(data.inputs[:, 0], [-0.5, 0, -0.9], rtol=1e-6)
    np.testing.assert_array_equal(data.inputs[:, 2:5], 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"age": np.zeros((3, 1))}, "'age' must be one-dimensional, of numbers or text"),
        ({"age": np.zeros(3, complex)}, "'age' must be one-dimensional, of numbers or text"),
        ({"age": np.zeros(4)}, "must hold equally many records"),
        ({"job": np.zeros(3)}, "'job' must be one-dimensional, of whole numbers, truth values or text"),
        ({"smoker": np.array([1.0, 0.0, 1.0])}, "'smoker' must be one-dimensional, of whole numbers"),
        ({"smoker": np.array([object()] * 3)}, "Python objects are never unpickled"),
    ],
)
def test_npz_columns_of_another_form_are_refused(archive, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_table(archive(**ARRAYS | changes), schema())
    assert "\n" not in str(caught.value)


def test_a_cell_of_an_npz_column_that_is_not_unicode_is_missing_and_spoils_no_other(archive):
    whole = read_table(archive(**ARRAYS), schema())
    for order, length in itertools.product("<>", (1, 8)):  # Python raises on a short one and takes a long one
        points = ARRAYS["job"].astype("<U8").view("<u4").reshape(3, 8).copy()
        points[0] = 0
        points[0, :length] = 0x110000
        text = points.view("<U8")[:, 0].astype(f"{order}U8")
        data = read_table(archive(**ARRAYS | {"job": text}), schema())
        np.testing.assert_array_equal(data.inputs[0, 2:5], 0)
        np.testing.assert_array_equal(data.inputs[1], whole.inputs[1])
        np.testing.assert_array_equal(data.targets, whole.targets)
    assert len(read_table(archive(**ARRAYS | {"job": np.zeros(3, "U0")}), schema()).targets) == 2


def images(classes=True, missing="zero"):
    targets = {"classes": ["cat", "dog"]} if classes else {"low": 10, "high": 20}
    return Schema.from_dict(
        {"missing": missing, "inputs": {"low": 0, "high": 255, "shape": [1, 2]}, "targets": targets}
    )


def test_arrays_of_inputs_and_targets(archive):
    inputs = np.array([[[0, 255]], [[51, 300]], [[np.nan, 51]], [[51, 51]]])
    path = archive(inputs=inputs, targets=np.array([0, 1, 1, 2]))
    data = read_table(path, images())
    np.testing.assert_allclose(data.inputs[:, 0], [[0, 1], [0.2, 1], [0, 0.2]], rtol=1e-6)
    np.testing.assert_array_equal(data.targets, [0, 1, 1])
    assert data.classes == ("cat", "dog")
    assert data.inputs.dtype == np.float32
    np.testing.assert_array_equal(read_table(path, images(missing="drop")).targets, [0, 1])
    with pytest.raises(ValueError, match="column 'inputs' has values that are missing"):
        read_table(path, images(missing="error"))
    data = read_table(archive(inputs=inputs, targets=np.array([10, 15, math.inf, 99])), images(classes=False))
    np.testing.assert_array_equal(data.targets, np.float32([0, 0.5, 1]))
    np.testing.assert_array_equal(data.restore(data.targets), [10, 15, 20])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": np.zeros((3, 2))}, r"'inputs' must have one record of shape \(1, 2\) per row"),
        ({"inputs": np.array([[["x", "y"]]] * 3)}, "'inputs' must be an array of real numbers"),
        ({"targets": np.zeros((3, 1), int)}, "'targets' must be one-dimensional, of whole numbers"),
        ({"targets": np.zeros(3)}, "'targets' must be one-dimensional, of whole numbers"),
        ({"targets": np.zeros(4, int)}, "must hold equally many records"),
        ({"inputs": np.zeros((0, 1, 2)), "targets": np.zeros(0, int)}, "holds no record"),
    ],
)
def test_arrays_of_another_form_are_refused(archive, arrays, message):
    with pytest.raises(ValueError, match=message):
        read_table(archive(**{"inputs": np.zeros((3, 1, 2)), "targets": np.zeros(3, int)} | arrays), images())


def test_an_array_schema_needs_an_archive(table):
    with pytest.raises(ValueError, match=r"must be .npz for a schema with inputs"):
        read_table(table("1"), images())


CELL = st.sampled_from(["25", "9", "nurse", "clerk", "yes", "no", "1", "0", '"a, b"', "?", '"', "1e400", "\r", "\xa0"])
LINE = st.lists(CELL | st.text(max_size=6), min_size=4, max_size=6).map(",".join) | st.just("25,9,nurse,yes,1")
LINES = st.lists(LINE.map(lambda line: line.replace("\n", "")), min_size=2, max_size=8)


def encoded(lines, policy="zero", header=HEADER):
    """Return a hashable encoding of each record that is kept."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes("\n".join([header, *lines]).encode("utf-8", "surrogatepass"))
        data = read_table(path, schema(missing=policy, groups=["job"]))
    rows = zip(data.inputs, data.targets, data.groups["job"], strict=True)
    return [(features.tobytes(), int(target), str(group)) for features, target, group in rows]


def refusal(call, *kinds):
    """Return the error of one of the kinds that the call raises, or None; any other passes."""
    try:
        call()
    except kinds as error:
        return error
    return None


@given(LINES, st.data(), st.sampled_from(["zero", "drop"]))
def test_leaving_a_record_out_changes_no_bit_of_the_others(lines, data, policy):
    anchor = "50,99,clerk,no,0"
    place = data.draw(st.integers(0, len(lines) - 1))
    rest = lines[:place] + lines[place + 1 :]
    alone = encoded([anchor, lines[place]], policy)[1:]
    before = encoded([anchor, *lines[:place]], policy)
    assert encoded([anchor, *lines], policy) == before + alone + encoded([anchor, *lines[place + 1 :]], policy)[1:]
    assert encoded([anchor, *rest], policy) == before + encoded([anchor, *lines[place + 1 :]], policy)[1:]


@given(
    st.lists(st.floats(width=64) | st.integers(-(2**62), 2**62).map(float), min_size=2, max_size=40), st.integers(0, 39)
)
def test_leaving_a_record_out_of_an_archive_changes_no_bit_of_the_others(values, place):
    assume(place < len(values))
    ages = np.array(values)
    size = len(values)
    arrays = {"age": ages, "wealth": ages, "job": np.array(["nurse"] * size), "smoker": ages > 3, "ill": ages > 5}

    def rows(keep):
        with tempfile.TemporaryDirectory() as folder:
            np.savez(Path(folder) / "t.npz", **{name: array[keep] for name, array in arrays.items()})
            return [row.tobytes() for row in read_table(Path(folder) / "t.npz", schema()).inputs]

    whole = rows(np.ones(size, bool))
    assert rows(np.arange(size) != place) == whole[:place] + whole[place + 1 :]


@given(st.lists(st.text(max_size=12), max_size=6), st.booleans(), st.sampled_from(["zero", "drop", "error"]))
def test_any_text_is_read_or_refused_without_being_quoted(cells, with_header, policy):
    lines = [",".join(f"§{cell}§" for cell in cells), "§,9,nurse,yes,1"]
    header = HEADER if with_header else lines[0]
    error = refusal(lambda: encoded(lines, policy, header=header), ValueError)
    assert "§" not in str(error)
    assert error is None or error.__context__ is None or error.__suppress_context__


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_read_or_refused(content, with_header):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("t.csv", "t.npz"):
            path = Path(folder) / name
            path.write_bytes((HEADER.encode() + b"\n" if with_header else b"") + content)
            assert "\n" not in str(refusal(partial(read_table, path, schema()), ValueError, OSError))


def test_encoded_records_decode_to_the_columns_they_came_from(table):
    data = read_table(table("25,9,nurse,yes,TRUE", '150,-3,"a, b",No,0', "x,0,cook,?,1"), schema())
    assert decode(data.inputs, data.targets, data.schema) == {
        "age": [25.0, 100.0, 50.0],  # clamped; a missing real is the middle of its scale
        "wealth": [pytest.approx(9, rel=1e-6), 0.0, 0.0],
        "job": ["nurse", "a, b", None],
        "smoker": ["true", "false", None],
        "ill": ["true", "false", "true"],
    }
    assert data.schema == schema()


def test_what_a_generator_puts_out_decodes_to_allowed_values():
    inputs = [[7, -7, 0.2, 0.3, 0.3, 1e-9], [-7, 7, 0, 0, 0, 0]]
    expected = {"age": [100, 0], "wealth": [0, 99], "job": ["nurse", "clerk"], "smoker": ["true", "false"]}
    assert decode(inputs, [0, 1], schema(missing="drop")) == {**expected, "ill": ["false", "true"]}
    real = decode(np.zeros((3, 6)), np.array([-1, 0.25, 2]), schema(target="age"))
    assert real["age"] == [0, 25, 100]
    assert real["ill"] == [None, None, None]
    with pytest.raises(ValueError, match=r"targets must be finite numbers"):
        decode(np.zeros((1, 6)), [math.nan], schema(target="age"))


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (np.zeros((2, 5)), [0, 0], r"inputs must have shape \(n, 6\)"),
        (np.zeros(6), [0], r"inputs must have shape \(n, 6\)"),
        (np.zeros((2, 6)), [0], r"targets must have shape \(2,\)"),
        (np.full((1, 6), math.inf), [0], "inputs must be finite"),
        (np.zeros((1, 6)), [2], "whole numbers from 0 to 1"),
        (np.zeros((1, 6)), [-1], "whole numbers from 0 to 1"),
        (np.zeros((1, 6)), [0.5], "whole numbers from 0 to 1"),
    ],
)
def test_arrays_that_do_not_fit_the_schema_are_not_decoded(inputs, targets, message):
    with pytest.raises(ValueError, match=message):
        decode(inputs, targets, schema())


def test_a_schema_of_arrays_has_no_columns_to_decode_to():
    with pytest.raises(ValueError, match=r"Only a schema with \[columns.NAME\]"):
        decode(np.zeros((1, 2)), [0], images())


def test_columns_that_are_not_a_table_are_not_written(tmp_path):
    for columns in ({}, {"a": [1], "b": [1, 2]}):
        with pytest.raises(ValueError, match="equally long"):
            write_csv(tmp_path / "t.csv", columns)
    for columns in ({"a": ["x\ny"]}, {"a\r": [1]}):
        with pytest.raises(ValueError, match="no line break"):
            write_csv(tmp_path / "t.csv", columns)


VALUE = st.text(min_size=1, max_size=6).filter(
    lambda text: text == text.strip() and not set(text) & set("\n\r\0") and text.isprintable()
)


@st.composite
def described_columns(draw):
    """A schema with a column of every type, and columns of values that it allows, None for missing."""
    low = draw(st.integers(-1000, 1000))
    high = low + draw(st.integers(1, 2000))
    jobs = draw(st.lists(VALUE, min_size=2, max_size=4, unique=True))
    scale = st.sampled_from(["linear", "log"])
    rate = {"type": "real", "low": 0, "high": 9}
    columns = {
        "real": {"type": "real", "low": low, "high": high, "scale": draw(scale)},
        "whole": {"type": "real", "low": low, "high": high, "scale": draw(scale), "whole": True},
        "job": {"type": "category", "values": jobs},
        "flag": {"type": "bool"},
        "goal": draw(st.sampled_from([{"type": "bool"}, {"type": "category", "values": jobs}, rate])),
    }
    goal = st.sampled_from(["false", "true"] if columns["goal"]["type"] == "bool" else jobs)
    row = st.tuples(
        st.floats(low, high),
        st.integers(low, high),
        st.sampled_from([*jobs, None]),
        st.sampled_from(["true", "false", None]),
        st.floats(0, 9) if columns["goal"]["type"] == "real" else goal,
    )
    rows = draw(st.lists(row, min_size=1, max_size=8))
    listed = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
    return Schema.from_dict({"target": "goal", "columns": columns}), listed


@given(described_columns())
def test_written_columns_are_read_back_and_decoding_inverts_encoding(described):
    schema, columns = described
    with tempfile.TemporaryDirectory() as folder:
        write_csv(Path(folder) / "t.csv", columns)
        data = read_table(Path(folder) / "t.csv", schema)
        decoded = decode(data.inputs, data.targets, data.schema)
        write_csv(Path(folder) / "t.csv", decoded)
        again = read_table(Path(folder) / "t.csv", schema)
    assert list(decoded) == list(columns)
    for name in ("whole", "job", "flag"):
        assert decoded[name] == columns[name]
    low, high = schema.columns[0].bounds
    wide = high - low
    np.testing.assert_allclose(decoded["real"], columns["real"], atol=2e-6 * (1 + wide))
    np.testing.assert_allclose(again.inputs, data.inputs, atol=1e-6)
    np.testing.assert_allclose(again.targets, data.targets, atol=1e-6)


def test_whole_numbers_need_whole_bounds():
    for wrong in ({"whole": 1}, {"whole": True, "high": 2.5}):
        columns = COLUMNS | {"age": COLUMNS["age"] | wrong}
        with pytest.raises(ValueError, match=r"columns.age: whole must be true or false"):
            Schema.from_dict({"target": "ill", "columns": columns})


@pytest.mark.parametrize(("name", "target"), [("adult", None), ("abalone", "age"), ("abalone", "rings")])
def test_a_named_table_decodes_to_a_file_that_encodes_the_same(name, target, tmp_path):
    root = os.environ.get("TACITA_DATA")
    if (root and not os.path.isdir(root)) or not all(files.present(f, root=None) for f in loaders._files(name)):
        pytest.skip(f"{name} is not at hand: set TACITA_DATA to a folder that holds it")
    data = load(name, target=target)
    some = slice(0, 3000)
    write_csv(tmp_path / "t.csv", decode(data.inputs[some], data.targets[some], data.schema))
    again = read_table(tmp_path / "t.csv", data.schema)
    assert again.classes == data.classes
    assert again.target_range == data.target_range
    np.testing.assert_array_equal(again.targets, data.targets[some])
    np.testing.assert_array_equal(again.inputs, data.inputs[some])
    assert again.schema == data.schema
