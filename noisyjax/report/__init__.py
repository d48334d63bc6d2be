"""Tables, plots and one self-contained page from stored runs. Nothing here generates or scores."""

from noisyjax.report.numbers import to_json, write_json
from noisyjax.report.page import to_html, write_html
from noisyjax.report.text import print_report, to_markdown

__all__ = ["print_report", "to_html", "to_json", "to_markdown", "write_html", "write_json"]
