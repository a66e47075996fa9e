"""Pages and pictures: pixels stand where they belong, and nothing a user writes becomes part of a page."""

import base64
import importlib.util
import sys
from io import BytesIO
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from markupsafe import escape

from tacita.label import Chart, Series
from tacita.synthesis import pages
from tacita.synthesis.pages import GAP, Bars, Picture, Section, grid_png, page


def loaded(name):
    """Return a module of the label's tests: the same browser and payloads judge these pages."""
    path = Path(__file__).parents[1] / "report" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"report_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CENSUS, CONTRAST, PAYLOADS = (getattr(loaded("test_browser"), name) for name in ("CENSUS", "CONTRAST", "PAYLOADS"))


def read(png):
    return np.round(matplotlib.image.imread(BytesIO(png)) * 255).astype(int)


def chart(text):
    lines = (
        Series(hue="typical", name=text, points=((0.0, 0.2), (1.0, 0.6))),
        Series(hue="plain", name=text + "2", points=((0.0, 0.1), (1.0, 0.5))),
    )
    return Chart(heading=text, caption=text, description=text, x_title=text, y_title=text, series=lines)


def everything(text, owner=False):
    """A page with the text in every place a user can write to."""
    picture = Picture(png=grid_png(torch.rand(3, 1, 4, 4), columns=2), alt=text, name=text, caption=text)
    bars = Bars(name=text, values=(text, text), shares=(0.25, 0.75), others=(0.5, 0.5), compared=text)
    sections = [
        Section(
            text, text, [picture], rows=((text, text, text), (text, text, "")), heads=(text, text, text), note=text
        ),
        Section(text, f"{text}\n\n{text}", [picture, bars, chart(text)], state="warning"),
        Section(text, text, [bars, chart(text), bars, chart(text)], state="holds"),
        Section(text, text, rows=((text, text, ""),), state="open"),
    ]
    return page(text, text, sections, owner=owner)


@pytest.mark.parametrize(("shape", "factor"), [((1, 8, 8), 6), ((3, 28, 28), 2), ((1, 64, 64), 1), ((1, 6, 12), 4)])
def test_a_grid_holds_every_pixel_upscaled_in_its_place(rng, shape, factor):
    images = torch.from_numpy(rng.random((5, *shape), dtype=np.float32))
    sheet = read(grid_png(images, columns=3))
    high, wide = shape[1] * factor, shape[2] * factor
    assert sheet.shape == (2 * high + GAP, 3 * wide + 2 * GAP, 4)
    expected = np.round(images.numpy() * 255).astype(int).transpose(0, 2, 3, 1)
    for i in range(5):
        top, left = i // 3 * (high + GAP), i % 3 * (wide + GAP)
        cell = sheet[top : top + high, left : left + wide]
        assert (cell[..., 3] == 255).all()
        assert (cell[::factor, ::factor, :3] == expected[i]).all()
        assert (cell == np.repeat(np.repeat(cell[::factor, ::factor], factor, 0), factor, 1)).all()
    assert (sheet[high + GAP :, 2 * (wide + GAP) :, 3] == 0).all()  # the sixth place is empty
    assert (sheet[high : high + GAP, :, 3] == 0).all()


def test_a_class_has_a_row_and_a_missing_one_an_empty_row():
    images = torch.tensor([0.2, 0.4, 0.6, 0.8]).reshape(4, 1, 1, 1).expand(4, 1, 8, 8)
    sheet = read(grid_png(images, columns=2, labels=torch.tensor([2, 0, 2, 2]), cell=8))
    cells = [[sheet[i * (8 + GAP), j * (8 + GAP)].tolist() for j in range(2)] for i in range(3)]
    seen = [[cell[0] if cell[3] else None for cell in row] for row in cells]
    assert seen == [[102, None], [None, None], [51, 153]]


def test_what_is_no_brightness_is_clipped_and_equal_images_give_equal_bytes():
    images = torch.tensor([-1.0, 2.0, float("nan"), float("inf")]).reshape(4, 1, 1, 1).expand(4, 1, 8, 8)
    sheet = read(grid_png(images, columns=4, cell=8))
    assert [int(sheet[0, j * (8 + GAP), 0]) for j in range(4)] == [0, 255, 0, 255]
    first, second = (grid_png(torch.ones(2, 3, 8, 8), columns=1) for _ in range(2))
    assert first == second
    assert b"atplotlib" not in first


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 2, 8, 8), (0, 1, 8, 8), (2, 1, 0, 8)])
def test_a_grid_refuses_other_shapes(shape):
    with pytest.raises(ValueError, match="images must have shape"):
        grid_png(torch.zeros(shape), columns=2)


def test_pictures_are_embedded_pngs_with_words():
    picture = Picture(png=grid_png(torch.zeros(1, 1, 8, 8), columns=1, cell=40), alt="black")
    assert picture.width == 40
    assert base64.b64decode(picture.address.removeprefix("data:image/png;base64,")) == picture.png


def test_the_banner_says_who_may_see_the_page():
    public, own = everything("x"), everything("x", owner=True)
    assert "Made from the released set alone." in public
    assert "computed from the data" not in public
    assert "For the data&#39;s owner." in own
    assert "Everything here was computed from the data" in own
    assert "noindex" in own
    assert "noindex" not in public


def test_a_page_carries_a_policy_and_asks_for_nothing():
    document = everything("plain words")
    assert "default-src 'none'" in document
    assert "http://" not in document
    assert "https://" not in document
    assert "<script" not in document
    assert document.count('<figure class="chart">') == 3


def test_rows_without_limits_have_no_third_column():
    with_limit = page("t", "l", [Section("s", "x", rows=(("a", "b", "c"),))], owner=False)
    without = page("t", "l", [Section("s", "x", rows=(("a", "b", ""),))], owner=False)
    assert "What it does not show" in with_limit
    assert "What it does not show" not in without


def test_a_legend_is_shown_once_for_drawings_side_by_side():
    bars = Bars(name="x", values=("a",), shares=(1.0,), others=(1.0,), compared="the other one")
    document = page("t", "l", [Section("s", "x", [bars, bars, bars])], owner=False)
    assert document.count("the other one") == 1


@pytest.mark.parametrize("payload", PAYLOADS)
def test_s4_no_payload_is_written_as_it_is(payload):
    document = everything(payload)
    if any(letter in payload for letter in "<>\"'&"):
        assert payload not in document


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    pages.template.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[report\]'"):
        page("t", "l", [], owner=False)


@pytest.mark.parametrize("owner", [False, True])
def test_s4_no_payload_adds_a_node_or_asks_for_anything(visit, owner):
    opened = visit()
    expected = opened.show(everything("harmless", owner)).evaluate(CENSUS)
    assert opened.stayed_quiet()
    for payload in PAYLOADS[::11] if owner else PAYLOADS:
        shown = opened.show(everything(payload, owner))
        assert shown.evaluate(CENSUS) == expected, payload
        assert shown.title() == payload
        assert opened.stayed_quiet(), (payload, opened.requests, opened.dialogs, opened.complaints)
    careless = everything(PAYLOADS[3], owner).replace(f"<h1>{escape(PAYLOADS[3])}", f"<h1>{PAYLOADS[3]}")
    assert opened.show(careless).evaluate(CENSUS) != expected


@pytest.mark.parametrize("width", [360, 1100])
def test_the_page_never_scrolls_sideways_and_its_pictures_are_there(visit, width):
    opened = visit(viewport={"width": width, "height": 800})
    for text in ("harmless words", "W" * 400):
        shown = opened.show(everything(text, owner=True))
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert shown.evaluate("[...document.querySelectorAll('.panel')].every(e => e.scrollWidth <= e.clientWidth)")
        assert shown.evaluate("[...document.images].every(e => e.alt && e.naturalWidth > 0)")
    smallest = "Math.min(...[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height))"
    assert shown.evaluate(smallest) >= 11


@pytest.mark.parametrize(("scheme", "media"), [("light", "screen"), ("dark", "screen"), ("dark", "print")])
def test_text_stands_out(visit, scheme, media):
    opened = visit(color_scheme=scheme)
    opened.page.emulate_media(media=media, color_scheme=scheme)
    for owner in (False, True):
        assert opened.show(everything("x", owner)).evaluate(CONTRAST) == []
    repeated = "(ids => ids.length - new Set(ids).size)([...document.querySelectorAll('[id]')].map(e => e.id))"
    assert opened.page.evaluate(repeated) == 0
