"""Reads a page back, and text that a page must not obey."""

from html.parser import HTMLParser

HOSTILE = (
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }} {% raw %} <!-- \x00 \x1b[2J \x9b1m \ud800 "
    "</style></textarea><svg onload=alert(3)> javascript:alert(4) | **bold** $x$ `code` [a](b)\n| row |"
)


class Collector(HTMLParser):
    """Tags with their attributes, and the text outside of style."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def parse(page: str) -> Collector:
    collector = Collector()
    collector.feed(page)
    collector.close()
    return collector


ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "section", "footer", "nav", "ul", "li", "a"),
    *("h1", "h2", "h3", "h4", "p", "div", "span", "b", "q", "pre", "details", "summary", "figure", "figcaption"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("svg", "defs", "g", "path", "use", "text", "tspan", "clippath", "rect"),
}
