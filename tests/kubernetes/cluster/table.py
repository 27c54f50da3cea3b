"""The table of what a scenario did and measured."""

import math
from dataclasses import dataclass, field


@dataclass
class Row:
    """A step: the pods at its end, the allocations since the one before, and what was killed."""

    step: str
    places: str = ""
    running: int = 0
    pending: int = 0
    tenants: int = 0
    allocated: list = field(default_factory=list)
    killed: str = ""
    lost: int = 0
    again: float = None
    left: int = None

    def cells(self):
        took = [f"{percentile(self.allocated, p):.1f}" for p in (50, 99)] if self.allocated else ["", ""]
        again = "" if self.again is None else f"{self.again:.1f} s"
        lost, left = self.lost if self.killed else "", "" if self.left is None else self.left
        return [self.step, self.places, self.running, self.pending, self.tenants, len(self.allocated), *took, self.killed, lost, again, left]


HEADINGS = ["step", "places", "pods", "pending", "tenants", "Allocate", "p50 ms", "p99 ms", "killed", "clients lost", "again after", "left"]


def percentile(values, percent):
    """The smallest value that so many percent are not above."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def print_table(rows):
    cells = [HEADINGS, *([str(cell) for cell in row.cells()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    for number, line in enumerate(cells):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |", flush=True)
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|", flush=True)
