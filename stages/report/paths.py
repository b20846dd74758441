"""Where the report is."""

from pathlib import Path

REPORT = Path("report")
TABLE = REPORT / "table.md"
CSV = REPORT / "table.csv"
PAPER = REPORT / "paper.md"
PLOTS = REPORT / "plots"
GALLERY = REPORT / "gallery"
STATEMENTS = REPORT / "privacy"
PUBLISHED = REPORT / "published.json"
