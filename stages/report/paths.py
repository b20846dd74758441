"""Where the report is."""

from pathlib import Path

REPORT = Path("report")
TABLE = REPORT / "table.md"
CSV = REPORT / "table.csv"
PAPER = REPORT / "paper.md"
PLOTS = REPORT / "plots"
STATEMENTS = REPORT / "privacy"
PUBLISHED = REPORT / "published.json"
