"""All benchmarks, each in a process of its own, and one summary: `python -m benchmarks`."""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.report import load, merge, write_report
from benchmarks.results import summary, text_table

ROOT = Path(__file__).parents[1]
SECTIONS = ("floor", "rollouts", "divergence", "step", "study", "workers", "memory")


def main() -> int:
    """Run the chosen benchmarks, or write the report of an earlier run; returns an exit code."""
    flags = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run all benchmarks; flags that are not named here go to each of them.",
    )
    flags.add_argument("--output", type=Path, default=Path("runs/benchmarks"), help="results")
    flags.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    flags.add_argument(
        "--report", type=Path, help="write docs/performance.md from this results.json, run nothing"
    )
    arguments, others = flags.parse_known_args()
    if arguments.report is not None:
        write_report(load(arguments.report), ROOT / "docs/performance.md")
        return 0
    failed = [name for name in arguments.only if not _run(name, arguments.output, others)]
    sections = merge(arguments.output, SECTIONS)
    rows = [row for section in sections for row in section.rows]
    print(text_table(summary(rows)))
    print(f"\nResults: {arguments.output / 'results.json'}")
    if failed:
        print(f"Failed: {', '.join(failed)}")
    return 1 if failed else 0


def _run(name: str, output: Path, others: list[str]) -> bool:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--output", str(output), *others]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
