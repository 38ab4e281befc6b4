"""The page of a report: one HTML file that holds its figures, style, scripts and the charting library, and requests nothing."""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from report.page.html import Markup, element
from report.page.plots import Plot, content

_ASSETS = Path(__file__).parents[1] / "assets"
_LIBRARY = _ASSETS / "uplot"


def page(title: str, intro: str, sections: Sequence[tuple[str, Markup]], plots: Sequence[Plot]) -> str:
    """Return the whole page.

    Args:
        title: the page's title and first heading.
        intro: a line below it.
        sections: the text of each link of the contents, and its section.
        plots: the plots of all sections.
    """
    styles = [_asset(_LIBRARY / "uPlot.min.css"), _asset(_ASSETS / "page.css")]
    scripts = [_asset(_LIBRARY / "uPlot.iife.min.js"), _asset(_ASSETS / "page.js")]
    allowed = {"default-src": "'none'", "style-src": _digests(styles), "script-src": _digests(scripts), "base-uri": "'none'", "form-action": "'none'"}
    policy = "; ".join(f"{name} {sources}" for name, sources in allowed.items())
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        element("title", title),
        *(f"<style>{style}</style>" for style in styles),
    ]
    links = [element("li", element("a", text, href=f"#{_identity(body)}")) for text, body in sections]
    header = element("header", element("h1", title), element("p", intro, class_="intro"), element("div", id="controls", class_="controls"))
    contents = element("nav", element("ul", *links), aria_label="contents")
    main = element("main", *(body for _, body in sections), id="main")
    footer = element(
        "footer", element("p", "Every figure is from the log. Drawn by uPlot 1.6.32 (MIT licence, © Leon Sorokin). Made by python -m report.")
    )
    body = [
        element("a", "Skip to the report", class_="skip", href="#main"),
        header,
        contents,
        main,
        footer,
        element("div", id="said", class_="quiet", aria_live="polite"),
        f'<script type="application/json" id="plots-data">{_inside_script(json.dumps(content(plots), separators=(",", ":")))}</script>',
        *(f"<script>{script}</script>" for script in scripts),
    ]
    return "\n".join(["<!DOCTYPE html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", *body, "</body>", "</html>", ""])


def _identity(body: Markup) -> str:
    return body.split('id="', 1)[1].split('"', 1)[0]


def _asset(path: Path) -> str:
    """Return a file of style or script. The hashes of the policy are of these texts."""
    return path.read_text(encoding="utf-8").strip()


def _digests(texts: Sequence[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)


def _inside_script(text: str) -> str:
    """Escape what would end, or comment out, a script element."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
