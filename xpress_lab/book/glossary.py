"""The glossary: words of the field, and links to them from where they first stand."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from xpress_lab.book.prose import slug, to_html
from xpress_lab.errors import LabError

PAGE = "glossary.html"
CLOSED = {"a", "code", "pre", "math", "button", "select", "figure", "summary"}
CLOSED |= {"h1", "h2", "h3", "h4"}  # no links inside of these


@dataclass(frozen=True)
class Term:
    """A word, the forms that it is found by (itself first), and its explanation."""

    name: str
    forms: tuple[str, ...]
    markdown: str

    @property
    def anchor(self) -> str:
        return slug(self.name)

    @property
    def html(self) -> str:
        return to_html(self.markdown)


def read_glossary(path: Path) -> list[Term]:
    """Terms of a Markdown file: ``## word | other form | ...``, then its text."""
    terms = []
    for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        forms = tuple(form.strip() for form in heading.split("|"))
        if not text.strip() or not all(forms):
            raise LabError(f"{path}: the word {forms[0]!r} has no explanation.")
        terms.append(Term(forms[0], forms, text.strip()))
    return terms


def link_terms(html: str, terms: Sequence[Term]) -> str:
    """Link each term where it first stands in running text; headings, code and
    existing links are left alone."""
    linker = _Linker(terms)
    linker.feed(html)
    linker.close()
    return "".join(linker.out)


class _Linker(HTMLParser):
    """Writes a page again as it was, but for text nodes."""

    def __init__(self, terms: Sequence[Term]):
        super().__init__(convert_charrefs=False)
        self.out: list[str] = []
        self.inside = 0  # how many closed elements are open
        self.terms = {form.lower(): term for term in terms for form in term.forms}
        longest = sorted(self.terms, key=len, reverse=True)
        any_of = "|".join(map(re.escape, longest)) or r"(?!)"
        self.pattern = re.compile(rf"(?<![\w-])({any_of})(?![\w-])", re.IGNORECASE)
        self.done: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.inside += tag in CLOSED
        self.out.append(self.get_starttag_text())

    def handle_startendtag(self, tag, attrs):
        self.out.append(self.get_starttag_text())

    def handle_endtag(self, tag):
        self.inside -= tag in CLOSED
        self.out.append(f"</{tag}>")

    def handle_data(self, data):
        self.out.append(data if self.inside else self.pattern.sub(self._link, data))

    def handle_entityref(self, name):
        self.out.append(f"&{name};")

    def handle_charref(self, name):
        self.out.append(f"&#{name};")

    def handle_comment(self, data):
        self.out.append(f"<!--{data}-->")

    def _link(self, found: re.Match) -> str:
        term = self.terms[found[0].lower()]
        if term.name in self.done:
            return found[0]
        self.done.add(term.name)
        return f'<a class="term" href="{PAGE}#{term.anchor}">{found[0]}</a>'
