"""Where the report is."""

from pathlib import Path

REPORT = Path("report")
PAGE = REPORT / "index.html"
TABLE = REPORT / "table.md"
CSV = REPORT / "table.csv"
SCORES = REPORT / "scores.json"
PAPER = REPORT / "paper.md"
PLOTS = REPORT / "plots"
GALLERY = REPORT / "gallery"
STATEMENTS = REPORT / "privacy"
PUBLISHED = REPORT / "published.json"
