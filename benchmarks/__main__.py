"""Run the benchmarks and print one table; exit code 1 when a bound is not kept.

python -m benchmarks                        all of them (about ten minutes on two cores)
python -m benchmarks decode reuse           only these
python -m benchmarks --json results.json    also as JSON
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import experts, judge, memory, rows, schedule, speed, training
from noisyjax.errors import UsageError

ALL = {
    "decode": speed.decode,
    "samples": speed.samples,
    "reuse": speed.reuse,
    "refill": schedule.refill,
    "programs": schedule.programs,
    "capture": schedule.capture,
    "layout": schedule.layout,
    "memory": memory.long_prompt,
    "judge": judge.verdicts,
    "experts": experts.dispatch,
    "rows": rows.shared,
    "grpo": training.grpo,
}


def _figures(detail: dict[str, object]) -> str:
    return ", ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in detail.items())


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*ALL, []], help=", ".join(ALL))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console()
    lines, absent = [], []
    for name in options.names or ALL:
        console.print(f"[dim]{name}: {(ALL[name].__doc__ or '').splitlines()[0]}[/]")
        try:
            for line in ALL[name]():
                console.print(f"  {line.name}: {line.ratio:.2f} ({line.bound}) {'ok' if line.ok else 'MISSED'}")
                console.print(f"    [dim]{_figures(line.detail)}[/]")
                lines.append(line)
        except UsageError as error:
            console.print(f"  [red]not run: {error}[/]")
            absent.append(name)
    table = Table("line", "what", "ratio", "bound", "kept", "figures")
    for line in lines:
        table.add_row(
            line.name, line.claim, f"{line.ratio:.2f}", line.bound, "yes" if line.ok else "NO", _figures(line.detail)
        )
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(line) | {"ok": line.ok} for line in lines], indent=1) + "\n")
    return 0 if all(line.ok for line in lines) and not absent else 1


if __name__ == "__main__":
    sys.exit(main())
