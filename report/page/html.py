"""HTML of reports: elements whose text is always escaped, tables, figures with their full value."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

NONE = "-"
UNWEIGHTED = "Unweighted: every row counts once, whatever its weight."
WEIGHTED = "Weighted: every row counts by its weight."


class Markup(str):
    """Text that is HTML already and is not escaped again."""


def element(name: str, *content: Any, **attributes: Any) -> Markup:
    """Return an element; content that is no `Markup` is escaped, None is left out.

    Args:
        name: the element's name.
        content: its text and elements.
        attributes: its attributes, `class_` for class, `aria_label` for aria-label; True for one without a value, None and False for none.
    """
    words = []
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(f" {key}")
        elif value is not None and value is not False:
            words.append(f' {key}="{html.escape(str(value))}"')
    inside = joined(content)
    return Markup(f"<{name}{''.join(words)}>{inside}</{name}>")


def joined(content: Iterable[Any]) -> Markup:
    """Join texts and elements."""
    return Markup("".join(one if isinstance(one, Markup) else html.escape(str(one)) for one in content if one is not None))


def number(value: float | int | None, digits: int = 5) -> Markup:
    """Return a figure: its full value for programs, shown with some digits; a dash for None."""
    if value is None:
        return element("span", NONE, class_="none", title="undefined, or not in the log")
    return element("data", shown(value, digits), value=repr(value))


def shown(value: float | int, digits: int = 5) -> str:
    """Return a number as people read it: whole numbers in thousands, others with some digits."""
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.{digits}g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.{digits}g}"


def share(value: float | None) -> Markup:
    """Return a share in percent."""
    return number(None) if value is None else element("data", f"{100 * value:.4g}%", value=repr(value))


def size(count: float | None) -> Markup:
    """Return a number of bytes in the unit that suits it."""
    if count is None:
        return number(None)
    text, amount = f"{count:.0f} bytes", float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount /= 1024
        text = f"{amount:.4g} {unit}"
    return element("data", text, value=repr(count))


def interval(low: float | None, high: float | None, digits: int = 5) -> Markup:
    """Return an interval, or a dash where it is unknown."""
    return number(None) if low is None or high is None else joined([number(low, digits), " to ", number(high, digits)])


def code(command: str) -> Markup:
    """Return a command to type, which can be copied."""
    return element("pre", element("code", command), class_="command", tabindex="0", aria_label="command")


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], hidden_caption: bool = False) -> Markup:
    """Return a table that scrolls inside its box; the first cell of a row is the row's name.

    Args:
        caption: the name of the table.
        columns: the names of the columns.
        rows: cells: texts, elements, numbers, None.
        hidden_caption: show the caption to screen readers only.
    """
    lines = [[_cell(cell, place) for place, cell in enumerate(row)] for row in rows]
    right = [bool(lines) and all(line[place].startswith('<td class="n"') for line in lines) for place in range(len(columns))]
    head = element("tr", *(element("th", name, scope="col", class_="n" if numeric else None) for name, numeric in zip(columns, right, strict=True)))
    body = [element("tr", *line) for line in lines]
    named = element("caption", caption, class_="quiet" if hidden_caption else None)
    inside = element("table", named, element("thead", head), element("tbody", *body))
    return element("div", inside, class_="scroll", tabindex="0", role="region", aria_label=f"table: {caption}")


def _cell(cell: Any, place: int) -> Markup:
    numeric = isinstance(cell, (int, float)) or cell is None or (isinstance(cell, Markup) and cell.startswith(("<data", '<span class="none"')))
    content = number(cell) if isinstance(cell, (int, float)) or cell is None else cell
    return element("td", content, class_="n" if numeric else None) if place else element("th", content, scope="row")


def section(identity: str, title: str, *content: Any) -> Markup:
    """Return a section with a heading."""
    heading = element("h2", title, id=f"{identity}-title")
    return element("section", heading, *content, id=identity, aria_labelledby=f"{identity}-title")


def note(text: Any) -> Markup:
    """Return a paragraph of explanation."""
    return element("p", text, class_="note")


def described(pairs: Iterable[tuple[str, Any]]) -> Markup:
    """Return a list of names and values; values that are None are left out."""
    inside = [element("div", element("dt", name), element("dd", value)) for name, value in pairs if value is not None]
    return element("dl", *inside, class_="facts")
