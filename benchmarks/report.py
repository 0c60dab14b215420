"""The results of all benchmarks in one file, and as the tables of docs/performance.md."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.results import Section, load_section, markdown_table, section_of, summary

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def merge(folder: Path, names: Sequence[str]) -> list[Section]:
    """The sections that a folder has, in order; writes them to its `results.json`.

    A benchmark that was run part by part has one file for each part.
    """
    sections = [load_section(path) for name in names for path in _files(folder, name)]
    text = json.dumps({"sections": [asdict(section) for section in sections]}, indent=1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    return sections


def _files(folder: Path, name: str) -> list[Path]:
    whole = folder / f"{name}.json"
    return [whole] if whole.exists() else sorted(folder.glob(f"{name}-*.json"))


def load(path: Path) -> list[Section]:
    """The sections of a `results.json`."""
    values = json.loads(path.read_text(encoding="utf-8"))["sections"]
    return [section_of(section) for section in values]


def write_report(sections: Sequence[Section], path: Path) -> None:
    """Put the tables between the two marks of a Markdown file.

    Raises:
        ValueError: The file lacks the marks.
    """
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"{path} lacks the lines {BEGIN} and {END}: put them back")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    path.write_text(f"{before}{BEGIN}\n\n{markdown(sections)}\n{END}{after}", encoding="utf-8")


def markdown(sections: Sequence[Section]) -> str:
    """The summary of all sections, then the tables of each."""
    parts = ["### Summary\n", markdown_table(summary([r for s in sections for r in s.rows])), ""]
    parts += [f"- {row.work}: {row.note}" for s in sections for row in s.rows if row.note]
    for section in sections:
        minutes = f"{section.seconds / 60:.1f} minutes"
        parts += [
            f"\n### {section.title}\n",
            f"`{section.command}`, {minutes}. {section.environment}.\n",
        ]
        for table in section.tables:
            parts += [f"**{table.title}**\n", markdown_table(table), ""]
    return "\n".join(parts)
