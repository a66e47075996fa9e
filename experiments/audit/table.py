"""The table of planted bugs in docs/explanation/audit.md, from results.jsonl: how many audits called each broken."""

from __future__ import annotations

import json
from pathlib import Path

SETTINGS = {"every record, one step": "all, 1 step", "one in ten, 50 steps": "1 in 10, 50 steps"}


def main() -> None:
    """Print the table."""
    rows = [json.loads(line) for line in Path("results.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "by_tests" in row]  # older ones knew guesses only
    found = {(row["bug"], row["setting"], round(row["epsilon"])): f"{row['broken']} of {row['audits']}" for row in rows}
    columns = [(setting, epsilon) for setting in SETTINGS for epsilon in (1, 4, 8)]
    print("| bug | " + " | ".join(f"{SETTINGS[setting]}, claim {epsilon}" for setting, epsilon in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for bug in dict.fromkeys(row["bug"] for row in rows):
        cells = (found.get((bug, *column), "–") for column in columns)
        print(f"| {bug or 'none'} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
