"""Markdown cells to HTML: formulas as MathML, tables that scroll, links to pages."""

import re
from html import escape

import mistune
from latex2mathml.converter import convert
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from xpress_lab.errors import LabError

BLOCK = r"^ {0,3}\$\$(?P<block_latex>[\s\S]+?)\$\$[ \t]*$"
INLINE = r"\$(?!\s)(?P<inline_latex>[^$\n]+?)(?<!\s)\$(?!\d)"
CODE = "code"  # the CSS class of highlighted code


class Renderer(mistune.HTMLRenderer):
    """What differs from plain HTML."""

    def heading(self, text: str, level: int, **_) -> str:
        return f'<h{level} id="{slug(text)}">{text}</h{level}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """Notebooks and the glossary are pages here; what lies elsewhere stays."""
        page = re.sub(r"^([\w-]+)\.(?:ipynb|md)(#.*)?$", r"\1.html\2", url)
        return super().link(text, page, title)

    def block_code(self, code: str, info: str | None = None) -> str:
        return highlighted(code, info or "text")

    def table(self, text: str) -> str:
        return scrolling(f"<table>\n{text}</table>")

    def block_formula(self, text: str) -> str:
        return f'<div class="scroll">{formula(text, "block")}</div>\n'

    def inline_formula(self, text: str) -> str:
        return formula(text, "inline")


def to_html(markdown: str) -> str:
    """A Markdown cell as HTML; HTML in it (such as ``<details>``) stays."""
    plugins = ["table", "strikethrough", _formulas]
    return mistune.create_markdown(
        escape=False, renderer=Renderer(escape=False), plugins=plugins
    )(markdown)


def plain(markdown: str) -> str:
    """A sentence without its marks, on one line: for alt texts and summaries."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    text = re.sub(r"[*`]", "", text)
    return re.sub(r"\s+", " ", text).strip()


def highlighted(code: str, language: str) -> str:
    """Code in colours, by classes that the style sheet explains."""
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return highlight(code, lexer, HtmlFormatter(cssclass=CODE))


def formula(latex: str, display: str) -> str:
    """MathML, which browsers draw by themselves; the LaTeX is its alternative text."""
    known = latex.strip().replace(r"\arg", r"\operatorname{arg}")
    drawn = convert(known, display=display)
    if left := re.search(r">(\\\w+)", drawn):
        raise LabError(f"{left[1]} in the formula {latex!r} is not known: say it anew.")
    return drawn.replace("<math ", f'<math alttext="{escape(plain(latex))}" ', 1)


def scrolling(html: str) -> str:
    """Wide content in a box of its own, so that the page never scrolls sideways."""
    return f'<div class="scroll" tabindex="0">{html}</div>\n'


def slug(text: str) -> str:
    """A heading's anchor: ``"1 · One text"`` to ``1-one-text``."""
    words = re.findall(r"\w+", re.sub(r"<[^>]+>|&\w+;", " ", text).lower())
    return "-".join(words)


def _formulas(md: mistune.Markdown) -> None:
    """A mistune plugin: ``$$...$$`` on lines of its own, ``$...$`` in a sentence."""

    def block(_, found, state) -> int:
        raw = found.group("block_latex")
        state.append_token({"type": "block_formula", "raw": raw})
        return found.end() + 1

    def inline(_, found, state) -> int:
        raw = found.group("inline_latex")
        state.append_token({"type": "inline_formula", "raw": raw})
        return found.end()

    md.block.register("block_formula", BLOCK, block, before="list")
    md.inline.register("inline_formula", INLINE, inline, before="link")
