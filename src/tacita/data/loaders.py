"""The named sets: digits, mnist, fashion-mnist, adult, abalone, olivetti, retinamnist, cifar10.

Splits, classes, bounds and categories are public: they are written down here, never computed from the records.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita.data.dataset import Dataset
from tacita.data.domains import Category, Domain, Real
from tacita.data.files import File, present, read
from tacita.data.formats import parse_cifar, parse_idx, read_npz
from tacita.data.schema import Field, Schema
from tacita.data.table import encode_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from tacita._check import Floats
    from tacita.data.dataset import Inputs

    Root = Path | str | None

# Path, and the size and sha256 of what it holds, unpacked; in the order the files are read. Computed from copies
# with the published md5, or equal to a second public copy. The Olivetti faces' sha256 is scikit-learn's, their size a
# limit.
_MANIFEST = """
mnist/train-images-idx3-ubyte.gz 47040016 ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
mnist/train-labels-idx1-ubyte.gz 60008 65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
mnist/t10k-images-idx3-ubyte.gz 7840016 0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
mnist/t10k-labels-idx1-ubyte.gz 10008 ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2
fashion-mnist/train-images-idx3-ubyte.gz 47040016 c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
fashion-mnist/train-labels-idx1-ubyte.gz 60008 bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
fashion-mnist/t10k-images-idx3-ubyte.gz 7840016 5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
fashion-mnist/t10k-labels-idx1-ubyte.gz 10008 0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34
adult/adult.data 3974305 5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d
adult/adult.test 2003153 a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05
abalone/abalone.data 191873 de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f
retinamnist/retinamnist.npz 3291041 254915f5f0a2074665c4676356824cf4ef4a3bcab233894b4bafcaf48962bd69
cifar10/data_batch_1.bin 30730000 cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5
cifar10/data_batch_2.bin 30730000 a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed
cifar10/data_batch_3.bin 30730000 bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67
cifar10/data_batch_4.bin 30730000 014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48
cifar10/data_batch_5.bin 30730000 755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add
cifar10/test_batch.bin 30730000 8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b
olivetti/olivettifaces.mat 16777216 b612fb967f2dc77c9c62d3e1266e0c73d5fca46a4b8906c18e454d41af987794
"""
# The Olivetti pixels without the Matlab wrapping: read where there is a copy, never downloaded.
_OLIVETTI_COPY = File(
    "olivetti/olivetti.npz", 1412949, "1bc306c8729a0170c186c82adbabe9ca9b4f3a5bd8a01f37278c167a9f8e6404"
)
_TERMS = {
    "digits": "CC BY 4.0, UCI Optical Recognition of Handwritten Digits",
    "mnist": "CC BY-SA 3.0 as usually cited, LeCun, Cortes and Burges",
    "fashion-mnist": "MIT, Zalando SE",
    "adult": "CC BY 4.0, UCI Adult",
    "abalone": "CC BY 4.0, UCI Abalone",
    "olivetti": "AT&T Laboratories Cambridge, credit required; faces of real people",
    "retinamnist": "CC BY 4.0, MedMNIST",
    "cifar10": "free for research; cite Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
}
_DIGITS = tuple("0123456789")
_FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load(name: str, *, target: str | None = None, root: Root = None) -> Dataset:
    """Return a named set.

    Looked for in `root` (or else the folder the environment variable TACITA_DATA names), then in the cache
    (TACITA_CACHE, or tacita in XDG_CACHE_HOME or ~/.cache), and otherwise downloaded from its official address into the
    cache, which is announced on stderr. Every copy is checked against its sha256.

    Args:
        name: One of `NAMES`. "digits" comes with scikit-learn and needs no file.
        target: For "abalone" only: "age" (the default: ten rings or more) or "rings" (regression).
        root: A folder with a folder per set.

    Raises:
        ValueError: If the name is unknown or a copy has the wrong checksum.
        OSError: If a file is nowhere to be had; the message lists the files needed.

    Examples:
        >>> load("digits").inputs.shape
        (1437, 1, 8, 8)
    """
    loader = _LOADERS[_check.one_of("name", name, NAMES)]
    if name == "abalone":
        loader = partial(loader, target=_check.one_of("target", target or "age", ("age", "rings")))
    elif target is not None:
        raise ValueError(f"target is a choice of abalone only; {name} has one target, so leave it out.")
    return replace(loader(root), name=name, terms=_TERMS[name])


def example_norms(records: int = 10_000) -> Floats:
    """Return norms of simulated records, to try an accountant on: log-normal, median 0.2, log-spread 0.5, clipped at 1.

    Roughly the shape seen in private training: most records contribute a fifth of the clip norm, a few
    reach it. Always the same numbers.
    """
    rng = np.random.default_rng(20260101)
    return np.minimum(rng.lognormal(np.log(0.2), 0.5, size=records), 1.0)


def _files(name: str) -> tuple[File, ...]:
    rows = (line.split() for line in _MANIFEST.strip().splitlines())
    return tuple(File(path, int(size), sha256) for path, size, sha256 in rows if path.startswith(f"{name}/"))


def _split(size: int, test: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a fixed, public split. Python promises this generator's numbers for ever; numpy does not."""
    draw = random.Random(20260101)
    order = np.array(sorted(range(size), key=lambda _: draw.random()), dtype=np.int64)
    return order[test:], order[:test]


def _images(pixels: NDArray[np.uint8], *, scale: float = 255.0) -> Inputs:
    """Return (n, height, width[, channels]) pixels as (n, channels, height, width) in [0, 1]."""
    channels_first = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    return _scaled(channels_first, scale=scale)


def _scaled(pixels: NDArray[Any], *, scale: float = 255.0) -> Inputs:
    """Return pixels over `scale` in a fresh array; only one copy is held, as large sets are large."""
    inputs = np.array(pixels, dtype=np.float32, order="C")
    inputs /= np.float32(scale)
    return inputs


def _image_set(
    train: tuple[Inputs, NDArray[Any]],
    test: tuple[Inputs, NDArray[Any]],
    classes: tuple[str, ...],
    size: int,
    source: str,
) -> Dataset:
    """Return a set of images, whose name and terms `load` adds."""
    labels = [labels.reshape(-1).astype(np.int64) for _, labels in (train, test)]
    return Dataset(
        name="",
        inputs=train[0],
        targets=labels[0],
        test_inputs=test[0],
        test_targets=labels[1],
        classes=classes,
        source=source,
        nominal_size=size,
    )


def _digits(root: Root) -> Dataset:
    try:
        datasets = import_module("sklearn.datasets")
    except ImportError:
        raise _check.missing("The digits come with scikit-learn", "torch") from None
    found = datasets.load_digits()
    inputs, labels = _images(found.images, scale=16.0), found.target
    train, test = ((inputs[places], labels[places]) for places in _split(1797, 360))
    return _image_set(train, test, _DIGITS, 1437, "scikit-learn, load_digits")


def _idx_images(name: str, classes: tuple[str, ...], root: Root) -> Dataset:
    files = _files(name)
    contents, source = read(files, root=root)
    parts = [parse_idx(content, name=file.path) for file, content in zip(files, contents, strict=True)]
    return _image_set((_images(parts[0]), parts[1]), (_images(parts[2]), parts[3]), classes, 60000, source)


def _olivetti(root: Root) -> Dataset:
    """Return the faces; of each person's ten, in the published order, the last two are for testing."""
    copy = present(_OLIVETTI_COPY, root=root)
    contents, source = read((_OLIVETTI_COPY,) if copy else _files("olivetti"), root=root)
    if copy:
        pixels = read_npz(BytesIO(contents[0]), ["images"], name="olivetti.npz")["images"]
    else:  # a column per face, each face by columns
        faces = np.asarray(import_module("scipy.io").loadmat(BytesIO(contents[0]))["faces"])
        pixels = faces.T.reshape(400, 64, 64).transpose(0, 2, 1).astype(np.uint8)
    inputs, people = _images(pixels), np.repeat(np.arange(40), 10)
    held = np.arange(400) % 10 >= 8
    classes = tuple(f"person {i}" for i in range(40))
    return _image_set((inputs[~held], people[~held]), (inputs[held], people[held]), classes, 320, source)


def _retinamnist(root: Root) -> Dataset:
    """Return MedMNIST's training and test parts; its 120 validation images are left aside."""
    contents, source = read(_files("retinamnist"), root=root)
    wanted = ("train_images", "train_labels", "test_images", "test_labels")
    parts = read_npz(BytesIO(contents[0]), wanted, name="retinamnist.npz")
    train, test = ((_images(parts[f"{part}_images"]), parts[f"{part}_labels"]) for part in ("train", "test"))
    return _image_set(train, test, tuple(f"grade {i}" for i in range(5)), 1080, source)


def _cifar10(root: Root) -> Dataset:
    """Return the five training batches in their order, and the test batch."""
    files = _files("cifar10")
    contents, source = read(files, root=root)
    parts = [parse_cifar(content, name=file.path) for file, content in zip(files, contents, strict=True)]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return _image_set((_scaled(images), labels), (_scaled(parts[-1][0]), parts[-1][1]), _CIFAR10, 50000, source)


def _category(labels: str) -> Category:
    return Category(*labels.split())


# Categories as adult.names lists them. fnlwgt is left out: it says how many people a record stands for in the census
# and is set by the survey, not a trait of the person. Money is on a log scale: most have none, a few very much.
_ADULT: dict[str, Domain] = {
    "age": Real(0, 100, whole=True),
    "workclass": _category(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked"
    ),
    "education": _category(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
        "Doctorate 5th-6th Preschool"
    ),
    "education-num": Real(1, 16, whole=True),
    "marital-status": _category(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": _category(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces"
    ),
    "relationship": _category("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": _category("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": _category("Female Male"),
    "capital-gain": Real(0, 99999, "log", whole=True),
    "capital-loss": Real(0, 5000, "log", whole=True),
    "hours-per-week": Real(0, 100, whole=True),
    "native-country": _category(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
        "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
        "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands"
    ),
    "income": _category("<=50K >50K"),
}
_ADULT_FIELDS = (*list(_ADULT)[:2], "fnlwgt", *list(_ADULT)[2:])

# Lengths are in units of 200 mm and weights in units of 200 g, as abalone.names says; no shell is higher than half of
# 200 mm, and no animal weighs more than 600 g.
_ABALONE: dict[str, Domain] = {
    "sex": _category("M F I"),
    "length": Real(0, 1),
    "diameter": Real(0, 1),
    "height": Real(0, 0.5),
    "whole-weight": Real(0, 3),
    "shucked-weight": Real(0, 1.5),
    "viscera-weight": Real(0, 1),
    "shell-weight": Real(0, 1.5),
    "rings": Real(0, 30, whole=True),
}


def _schema(columns: dict[str, Domain], target: str, groups: tuple[str, ...]) -> Schema:
    fields = {name: Field(name, domain) for name, domain in columns.items()}
    return Schema(target=fields.pop(target), columns=tuple(fields.values()), groups=groups)


def _adult(root: Root) -> Dataset:
    contents, source = read(_files("adult"), root=root)
    schema = _schema(_ADULT, "income", ("sex", "race"))
    train_lines = contents[0].splitlines()
    test_lines = contents[1].replace(b"K.\n", b"K\n").splitlines()[1:]  # a remark, then records that end in a full stop
    train = encode_lines(train_lines, _ADULT_FIELDS, schema, name="adult.data")
    test = encode_lines(test_lines, _ADULT_FIELDS, schema, name="adult.test")
    return train.dataset(test, schema, name="adult", source=source, nominal_size=32561)


def _abalone(root: Root, *, target: str) -> Dataset:
    contents, source = read(_files("abalone"), root=root)
    schema = _schema(_ABALONE, "rings", ("sex",))
    table = encode_lines(contents[0].splitlines(), tuple(_ABALONE), schema, name="abalone.data")
    if target == "age":  # not a column of the file, but one that its records decode to
        table = replace(table, targets=(np.rint(table.targets * 30) >= 10).astype(np.int64))
        schema = replace(schema, target=Field("age", Category("under 10 rings", "10 rings or more")))
    train, test = _split(4177, 836)
    return table[train].dataset(table[test], schema, name="abalone", source=source, nominal_size=3341)


_LOADERS: dict[str, Callable[..., Dataset]] = {
    "digits": _digits,
    "mnist": partial(_idx_images, "mnist", _DIGITS),
    "fashion-mnist": partial(_idx_images, "fashion-mnist", _FASHION),
    "adult": _adult,
    "abalone": _abalone,
    "olivetti": _olivetti,
    "retinamnist": _retinamnist,
    "cifar10": _cifar10,
}
NAMES = tuple(_LOADERS)
