"""The site: one page a notebook, a front page, a glossary, and nothing from outside."""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import nbformat
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from pygments.formatters import HtmlFormatter

from xpress_lab.benchmarks.recording import Lane
from xpress_lab.benchmarks.tables import paper_layout, published_layout
from xpress_lab.book.cells import cells_to_html, figure, png_size
from xpress_lab.book.glossary import PAGE, Term, link_terms, read_glossary
from xpress_lab.book.prose import CODE, plain, scrolling, to_html
from xpress_lab.errors import LabError
from xpress_lab.files import write_text
from xpress_lab.viz.labels import benchmark_label
from xpress_lab.viz.style import label_of, look_of

TEACHING = "teaching.html"
LABS = {
    "pocket": "The pocket lab",
    "laptop": "SmolLM2-135M on the seven benchmarks",
}
FIGURES = {
    "pocket/jacobi": "One block, pass by pass. The drafter's own draft is on top; "
    "every pass repairs slots whose left neighbours have settled. The last row is the "
    "target's verdict.",
    "laptop/tau": "Tokens per target call (tau) for dFlash, Markov and xPress on seven "
    "benchmarks, greedy and sampled, with 95 % intervals; the target is SmolLM2-135M.",
}


@dataclass(frozen=True)
class Page:
    """One notebook as a page. sections: heading and anchor of each part."""

    name: str
    number: str
    title: str
    question: str
    minutes: str
    body: str
    sections: list[tuple[str, str]]

    @property
    def href(self) -> str:
        return f"{self.name}.html"


def build(
    notebooks: Sequence[Path],
    out: Path,
    *,
    glossary: Path,
    teaching: Path | None = None,
    races: Mapping[str, Sequence[Lane]] | None = None,
    results: Path | None = None,
) -> list[Path]:
    """Write the site into ``out``, which is made anew; returns its pages.

    Args:
        notebooks: executed, in the order of the course.
        glossary: Markdown file of :func:`read_glossary`.
        teaching: Markdown file for instructors, which begins with its title.
        races: recorded lanes by prompt, for the front page.
        results: folder with a folder for each of ``LABS``, which holds ``summary.csv``
            and figures.
    """
    if not notebooks:
        raise LabError("A book needs at least one notebook: there is none.")
    refuse_to_replace(out)
    partial = out.with_name(f"{out.name}.partial")  # a book appears whole or not at all
    shutil.rmtree(partial, ignore_errors=True)
    pictures = partial / "img"
    pictures.mkdir(parents=True)
    terms = read_glossary(glossary)
    pages = [read_page(path, pictures, terms) for path in notebooks]
    templates = Environment(
        loader=PackageLoader("xpress_lab", "templates/book"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {"pages": pages, "glossary_page": PAGE, "look_of": look_of}
    templates.globals["teaching_page"] = TEACHING if teaching else None

    def write(name: str, template: str, **values) -> Path:
        html = templates.get_template(template).render(**values)
        write_text(partial / name, html)
        return out / name

    light, dark = (
        HtmlFormatter(style=style).get_style_defs(f".{CODE}")
        for style in ("friendly", "github-dark")
    )
    write("style.css", "style.css", light=light, dark=dark)
    written = [
        write(
            "index.html",
            "index.html.j2",
            here="home",
            races=races or {},
            tables=tables(results) if results else [],
            figures=copy_figures(results, pictures) if results else [],
        )
    ]
    if races:
        write("race.js", "race.js")
    for place, page in enumerate(pages):
        after = pages[place + 1] if place + 1 < len(pages) else None
        before = pages[place - 1] if place else None
        neighbours = {"before": before, "after": after}
        written.append(write(page.href, "page.html.j2", here=page, **neighbours))
    written.append(write(PAGE, "glossary.html.j2", here="glossary", terms=terms))
    if teaching:
        body = link_terms(to_html(teaching.read_text(encoding="utf-8")), terms)
        values = {"here": "teaching", "body": body}
        written.append(write(TEACHING, "teaching.html.j2", **values))
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    return written


def refuse_to_replace(out: Path) -> None:
    """Only an empty folder or an earlier book is replaced."""
    if out.exists() and any(out.iterdir()) and not (out / PAGE).is_file():
        raise LabError(f"{out} holds something other than a book: choose another one.")


def read_page(path: Path, pictures: Path, terms: Sequence[Term]) -> Page:
    """A notebook as a page; its title and question come from the first cell."""
    notebook = nbformat.read(path, as_version=4)
    first = notebook.cells[0].source if notebook.cells else ""
    title = re.match(r"# (\d\d) · (.+)", first)
    if not title:
        raise LabError(f"{path.name} must begin with a heading such as '# 00 · Title'.")
    body = cells_to_html(notebook, path.stem, pictures)
    sections = re.findall(r'<h2 id="([^"]+)">(.+?)</h2>', body)
    return Page(
        path.stem,
        title[1],
        plain(title[2]),
        _said(first, "The question."),
        _said(first, "Time."),
        link_terms(body, terms),
        [(unescape(re.sub(r"<[^>]+>", "", text)), anchor) for anchor, text in sections],
    )


def _said(markdown: str, label: str) -> str:
    """The paragraph or sentence behind a label in bold type; "" without one."""
    found = re.search(
        rf"\*\*{re.escape(label)}\*\*\s*(.+?)(?=\n\s*\n|\*\*|\Z)", markdown, re.DOTALL
    )
    return plain(found[1]) if found else ""


def tables(results: Path) -> list[tuple[str, str]]:
    """Speed-up and tau: ours by lab, and the paper's own beside them."""
    labs = {}
    for lab, title in LABS.items():
        path = results / lab / "summary.csv"
        if not path.is_file():
            raise LabError(f"No table of results at {path}: run `make results`.")
        labs[title] = pd.read_csv(path)
    found = []
    for temperature in (0.0, 1.0):
        tables = {
            title: paper_layout(lines, temperature).rename(index=benchmark_label)
            for title, lines in labs.items()
        }
        tables["The paper (Qwen3-8B on one H200)"] = published_layout(temperature)
        found += [
            (f"{title}, T = {temperature:g}", _table(table.rename(columns=label_of)))
            for title, table in tables.items()
        ]
    return found


def _table(frame: pd.DataFrame) -> str:
    frame = frame.rename_axis(index=None, columns=None)
    return scrolling(frame.to_html(border=0, na_rep="–"))


def copy_figures(results: Path, pictures: Path) -> list[str]:
    """The two pictures of the front page."""
    drawn = []
    for path, alt in FIGURES.items():
        picture = (results / f"{path}.png").read_bytes()
        name = path.replace("/", "-")
        (pictures / f"{name}.png").write_bytes(picture)
        note = f"<figcaption>{alt}</figcaption>"
        source = f"{pictures.name}/{name}.png"
        drawn.append(figure(source, png_size(picture), alt, note))
    return drawn
