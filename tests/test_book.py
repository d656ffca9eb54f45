"""The site on a tiny course: whole, linked, described, and nothing from outside."""

import base64
import re
from html.parser import HTMLParser

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from xpress_lab import notebooks
from xpress_lab.benchmarks.recording import Lane
from xpress_lab.book.cells import caption_after, png_size
from xpress_lab.book.glossary import Term, link_terms, read_glossary
from xpress_lab.book.prose import formula, plain, to_html
from xpress_lab.book.site import build
from xpress_lab.errors import LabError

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADCAYAAAC56t6BAAAAEUlEQVR4nGP4z8DwHxkzYBcAAN4fC/U"
    "0x1SgAAAAAElFTkSuQmCC"
)
GLOSSARY = """# Glossary

## tau | acceptance length
Tokens per *target* call.

## break-even tau
Where it pays.
"""
LANES = [
    Lane("ar", ("One", " <two>", "."), (1, 1, 1), (0.0, 1.0, 2.0)),
    Lane("xpress", ("One", " <two>."), (1, 2), (0.0, 0.5)),
]


def a_notebook(number: str, title: str, *more):
    first = f"""# {number} · {title}

**The question.** What is tau, and
what is `x`?

**Time.** About 1 minute. **Needs.** Nothing."""
    return new_notebook(cells=[new_markdown_cell(first), *more])


def ran(source: str, **data) -> nbformat.NotebookNode:
    kinds = {"png": "image/png", "html": "text/html", "plain": "text/plain"}
    kinds["widget"] = "application/vnd.jupyter.widget-view+json"
    data = {kinds[kind]: value for kind, value in data.items()}
    outputs = [new_output("display_data", data)] if data else []
    return new_code_cell(source, execution_count=1, outputs=outputs)


@pytest.fixture
def course(tmp_path):
    """Two notebooks and a glossary."""
    stream = new_output("stream", name="stdout", text="3 < 4\n")
    cells = [
        new_markdown_cell(
            "## 1 · How & why\n\nTau and tau, `tau`.\n\n$$\\frac{a}{b}$$"
        ),
        ran("draw()", png=PNG, plain="<Figure>"),
        new_markdown_cell("*Bars of **tau**\nand `K`.*\n\nMore."),
        ran("table", html="<style>td {}</style><table><td>1</td></table>"),
        ran("w.show()", widget={"model_id": "1"}, png=PNG, plain="Two are right."),
        new_code_cell("print()", execution_count=4, outputs=[stream]),
        new_markdown_cell(
            "## Next\n\nThen [the other](01_b.ipynb), with [words](glossary.md)."
        ),
    ]
    nbformat.write(a_notebook("00", "First", *cells), tmp_path / "00_a.ipynb")
    nbformat.write(a_notebook("01", "Second"), tmp_path / "01_b.ipynb")
    (tmp_path / "glossary.md").write_text(GLOSSARY, encoding="utf-8")
    return tmp_path


def make(course, **more):
    paths = sorted(course.glob("*.ipynb"))
    return build(paths, course / "book", glossary=course / "glossary.md", **more)


class Links(HTMLParser):
    """What a page refers to, its anchors, and pictures without a description.

    Links that a reader may follow to other sites are left out: nothing is loaded.
    """

    def __init__(self, html: str):
        super().__init__()
        self.refers, self.anchors, self.blind = [], set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if not (tag == "a" and attrs.get("href", "").startswith("https://")):
            self.refers += [attrs[name] for name in ("href", "src") if name in attrs]
        self.anchors.add(attrs.get("id"))
        if tag == "img" and not (attrs.get("alt") and attrs.get("width")):
            self.blind.append(attrs)


def read(path) -> str:
    return path.read_text(encoding="utf-8")


# the whole site ------------------------------------------------------------------


def test_every_link_leads_somewhere_and_nothing_comes_from_outside(course):
    written = make(course, races={"Why?": LANES})
    names = [path.name for path in written]
    assert names == ["index.html", "00_a.html", "01_b.html", "glossary.html"]
    pages = {path.name: Links(read(path)) for path in written}
    for name, page in pages.items():
        assert not page.blind
        for where in page.refers:
            file, _, anchor = where.partition("#")
            assert not re.match(r"\w+:|//", where), where
            assert (course / "book" / (file or name)).is_file(), where
            if anchor:
                assert anchor in pages[file or name].anchors, where
    assert not re.search(r"url\(|@import", read(course / "book" / "style.css"))


def test_a_page_has_its_parts(course):
    make(course)
    page = read(course / "book" / "00_a.html")
    assert 'alt="Bars of tau and K."' in page and 'alt="Two are right."' in page
    assert "run the notebook to move it" in page
    assert "<style>" not in page and 'class="scroll"' in page
    assert "<math" in page and "<mfrac>" in page
    assert "3 &lt; 4" in page
    assert '<a href="#1-how-amp-why">' not in page  # entities are no words
    assert '<h2 id="1-how-why">' in page and '<a href="#1-how-why">' in page
    assert '<a href="01_b.html">the other</a>' in page
    assert '<a href="glossary.html">words</a>' in page
    assert 'rel="next" href="01_b.html"' in page and 'rel="prev"' not in page
    assert page.count('class="term"') == 1
    pictures = sorted(path.name for path in (course / "book" / "img").iterdir())
    assert pictures == ["00_a_2_0.png", "00_a_5_0.png"]


def test_front_page_lists_the_course_and_plays_the_race(course):
    make(course, races={"Why <so>?": LANES})
    front = read(course / "book" / "index.html")
    assert "<p>What is tau, and what is x?</p>" in front
    assert '<p class="small">About 1 minute.</p>' in front
    assert '<span data-at="1.0000" data-tokens="1"> &lt;two&gt;</span>' in front
    assert 'data-seconds="2.0000"' in front and "Why &lt;so&gt;?" in front
    assert "4 tokens a second" in front  # without a script: the finished texts
    make(course)
    assert "player" not in read(course / "book" / "index.html")


def test_front_page_shows_shipped_tables_and_figures(course):
    from xpress_lab.presets import data_folder

    make(course, results=data_folder() / "results")
    front = read(course / "book" / "index.html")
    assert front.count("<table") == 6 and "xPress K=6" in front
    assert "GSM8K" in front and front.count("<img") == 2
    with pytest.raises(LabError, match="No table of results at .*summary.csv"):
        make(course, results=course)


def test_instructors_have_a_page_of_their_own(course):
    teaching = course / "teaching.md"
    text = "# Teaching\n\nShow [the first](00_a.ipynb).\n\n| a |\n|---|\n| tau |\n"
    teaching.write_text(text, encoding="utf-8")
    written = make(course, teaching=teaching)
    page = read(course / "book" / "teaching.html")
    assert written[-1].name == "teaching.html" and '<a href="00_a.html">' in page
    assert '<h1 id="teaching">Teaching</h1>' in page and 'class="scroll"' in page
    assert 'href="teaching.html"' in read(course / "book" / "00_a.html")
    make(course)
    assert "teaching.html" not in read(course / "book" / "00_a.html")


# what is refused -----------------------------------------------------------------


def test_notebooks_that_were_not_run_make_no_book(course):
    make(course)
    cell = new_code_cell("1 + 1")
    nbformat.write(a_notebook("02", "Third", cell), course / "02_c.ipynb")
    with pytest.raises(LabError, match="02_c has a cell that was not run"):
        make(course)
    assert (course / "book" / "index.html").is_file()  # the old book is whole
    error = new_output("error", ename="ValueError", evalue="", traceback=[])
    cell = new_code_cell("1 / 0", execution_count=1, outputs=[error])
    nbformat.write(a_notebook("02", "Third", cell), course / "02_c.ipynb")
    with pytest.raises(LabError, match="02_c ends in ValueError"):
        make(course)


def test_a_folder_with_other_things_is_left_alone(course):
    (course / "book").mkdir()
    (course / "book" / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(LabError, match="something other than a book"):
        make(course)
    assert read(course / "book" / "thesis.txt") == "mine"


def test_headings_and_glossaries_must_have_their_form(course):
    nbformat.write(new_notebook(), course / "02_c.ipynb")
    with pytest.raises(LabError, match="02_c.ipynb must begin with a heading"):
        make(course)
    (course / "glossary.md").write_text("\n## tau\n\n## K\nPasses.", encoding="utf-8")
    with pytest.raises(LabError, match="'tau' has no explanation"):
        read_glossary(course / "glossary.md")


# parts ---------------------------------------------------------------------------

TERMS = [Term("tau", ("tau", "acceptance length"), "."),
         Term("break-even tau", ("break-even tau",), ".")]  # fmt: skip


@pytest.mark.parametrize(
    ("html", "linked"),
    [
        ("<p>Tau, tau.</p>", ["Tau"]),
        ("<p>The break-even tau and tau</p>", ["break-even tau", "tau"]),
        ("<h2>tau</h2><pre>tau</pre><a href='x'>tau</a> taut pre-tau", []),
        ("<p><code>tau</code> &amp; acceptance length</p>", ["acceptance length"]),
    ],
)
def test_terms_are_linked_once_and_only_in_running_text(html, linked):
    out = link_terms(html, TERMS)
    assert re.findall(r'class="term"[^>]*>([^<]+)</a>', out) == linked
    assert re.sub(r'<a class="term"[^>]*>([^<]+)</a>', r"\1", out) == html


def test_formulas_are_drawn_without_a_script():
    assert "<msup>" in to_html("Here $x^{2}$, for 5$ or 6$.")
    assert to_html("Here $x^{2}$, for 5$ or 6$.").count("<math") == 1
    assert 'display="block"' in to_html("$$a =\n b$$")
    assert "\\" not in re.sub('alttext="[^"]*"', "", formula(r"\arg\max x", "inline"))
    with pytest.raises(LabError, match="nosuch"):
        formula(r"\nosuch x", "inline")


def test_html_and_tables_in_markdown():
    html = to_html("<details>\n<summary>S</summary>\n\n**a**\n\n</details>")
    assert "<details>" in html and "<strong>a</strong>" in html
    assert '<div class="scroll"' in to_html("|a|b|\n|---|---|\n|1|2|")
    assert plain("A [link](x.html), **bold** `code`\nand *so*") == (
        "A link, bold code and so"
    )


def test_captions_and_sizes():
    cells = [ran("1"), ran("2"), new_markdown_cell("Not one. *Really*.")]
    assert caption_after(cells, 0) == ""
    assert png_size(base64.b64decode(PNG)) == (2, 3)
    with pytest.raises(LabError, match="not a PNG"):
        png_size(b"GIF89a")


# the real course -----------------------------------------------------------------


def test_the_real_glossary_explains_the_words_of_the_field():
    terms = read_glossary(notebooks.FOLDER / "glossary.md")
    forms = [form.lower() for term in terms for form in term.forms]
    assert len(set(forms)) == len(forms)
    assert len({term.anchor for term in terms}) == len(terms)
    assert set(
        "target drafter refiner anchor block slot tau marginal joint verification "
        "lossless".split()
    ) | {"jacobi pass", "break-even tau", "fixed point", "gumbel noise"} <= set(forms)


def test_the_real_notebooks_become_pages_with_described_figures(tmp_path):
    written = build(
        notebooks.find([]),
        tmp_path / "book",
        glossary=notebooks.FOLDER / "glossary.md",
    )
    for path in written:
        page = Links(read(path))
        assert not page.blind, path.name
        for where in page.refers:
            file = where.partition("#")[0]
            assert not file or (tmp_path / "book" / file).is_file(), where
    assert "A figure of the cell above" not in "".join(map(read, written))
