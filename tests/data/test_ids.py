"""Whose records they are: numbered by ids, read with a table, split by person."""

import numpy as np
import pytest

from tacita.data import Schema, read_table
from tacita.data.ids import capped, numbered
from tacita.training.recipes import dataset_of, held_out, parts_of, persons_of

TABLE = {
    "target": "ill",
    "person": "id",
    "columns": {"age": {"type": "real", "low": 0, "high": 100}, "ill": {"type": "bool"}},
}
LINES = ["7,30,yes", "8,40,no", "7,50,no", "9,60,", "8,?,yes"]


def write(path, lines, header="id,age,ill"):
    path.write_text("\n".join([header, *lines, ""]))
    return path


def test_ids_come_with_the_records_that_are_kept(tmp_path):
    path = write(tmp_path / "d.csv", [*LINES[:2], "", "broken", *LINES[2:]])
    dataset = read_table(path, Schema.from_dict(TABLE))
    assert dataset.persons.tolist() == [0, 1, 0, 1]  # the one without a target is left out
    assert dataset.test_persons.tolist() == []
    assert dataset.inputs.shape == (4, 1)
    assert dataset.feature_names == ("age",)
    dropped = read_table(path, Schema.from_dict(TABLE | {"missing": "drop"}))
    assert dropped.persons.tolist() == [0, 1, 0]
    plain = read_table(path, Schema.from_dict({k: v for k, v in TABLE.items() if k != "person"}))
    assert plain.persons is None


def test_arrays_have_an_array_of_ids(tmp_path):
    ids = np.array(["x", "y", "x"])
    np.savez(tmp_path / "d.npz", id=ids, age=np.array([1.0, 2.0, 3.0]), ill=np.array([True, False, True]))
    assert read_table(tmp_path / "d.npz", Schema.from_dict(TABLE)).persons.tolist() == [0, 1, 0]
    schema = {"person": "id", "inputs": {"low": 0, "high": 1, "shape": [2]}, "targets": {"classes": ["a", "b"]}}
    np.savez(tmp_path / "d.npz", id=ids, inputs=np.zeros((3, 2)), targets=np.array([0, 5, 1]))
    assert read_table(tmp_path / "d.npz", Schema.from_dict(schema)).persons.tolist() == [0, 0]
    np.savez(tmp_path / "d.npz", id=np.zeros((3, 2)), inputs=np.zeros((3, 2)), targets=np.array([0, 1, 1]))
    with pytest.raises(ValueError, match="one-dimensional"):
        read_table(tmp_path / "d.npz", Schema.from_dict(schema))


def test_nobody_is_in_both_files_and_missing_ids_are_refused(tmp_path):
    train, schema = write(tmp_path / "d.csv", LINES), Schema.from_dict(TABLE)
    other = read_table(train, schema, test=write(tmp_path / "t.csv", ["5,1,yes", "5,2,no", "6,3,no"]))
    assert not set(other.persons) & set(other.test_persons)
    with pytest.raises(ValueError, match="people who are in the other file"):
        read_table(train, schema, test=write(tmp_path / "t.csv", ["7,1,yes"]))
    write(train, [*LINES, "NA,1,yes", ",2,yes"])
    with pytest.raises(ValueError, match="A record has no id in 'id'"):
        read_table(train, schema)
    own = read_table(train, Schema.from_dict(TABLE | {"missing_person": "own"}))
    assert own.persons.tolist() == [0, 1, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"person": "age"}, "leave it out of the columns"),
        ({"person": 3}, "must name the column of ids"),
        ({"missing_person": "drop"}, "missing_person must be"),
    ],
)
def test_schemas_say_whose_the_records_are(changed, message):
    with pytest.raises(ValueError, match=message):
        Schema.from_dict(TABLE | changed)
    with pytest.raises(ValueError, match="goes with person"):
        Schema.from_dict({k: v for k, v in TABLE.items() if k != "person"} | {"missing_person": "own"})
    schema = Schema.from_dict(TABLE | {"missing_person": "own"})
    assert Schema.from_dict(schema.to_dict()) == schema


def test_a_column_of_ids_is_refused_where_people_are_not_protected(tmp_path):
    table = {**TABLE, "file": str(write(tmp_path / "d.csv", LINES))}
    with pytest.raises(ValueError, match="one record is one person"):
        dataset_of(table)
    assert dataset_of(table, persons=True).persons is not None


def test_whole_people_are_held_out(tmp_path, rng):
    ids = rng.integers(60, size=400)
    path = write(tmp_path / "d.csv", [f"{one},{i % 90},{'yes' if i % 2 else 'no'}" for i, one in enumerate(ids)])
    dataset = read_table(path, Schema.from_dict(TABLE))
    train, held, _ = parts_of(dataset, 0.3, 11)
    persons = persons_of(dataset, 0.3, 11)
    assert [len(part[1]) for part in (train, held)] == [len(whose) for whose in persons]
    assert not set(persons[0]) & set(persons[1])
    out = held_out(dataset, 0.3, 11)
    assert 5 <= len(set(dataset.persons[out])) <= 40
    assert np.array_equal(held[0].numpy(), dataset.inputs[out])
    with pytest.raises(ValueError, match="holdout_rate"):
        held_out(dataset, 1.0, 11)


def test_numbers_and_caps(rng):
    persons = numbered([3, 9, 3, 4, 3], missing="refuse", name="id")
    assert persons.tolist() == [0, 1, 0, 2, 0]
    for _ in range(20):
        kept = capped(persons, 2, coins=rng.random(5))
        assert sorted(persons[kept]) == [0, 0, 1, 2]
        assert list(kept) == sorted(kept)
    assert capped(persons[:0], 2, coins=rng.random(0)).tolist() == []
