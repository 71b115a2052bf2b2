"""What the writers of banked answers are told: `python -m tests.checks.bank 02.3 [name]`."""

from __future__ import annotations

import sys
import time

from course_lib.checks import examine
from course_lib.checks.catalog import find
from tests.checks.bank import banked

for each in banked(sys.argv[1]):
    if len(sys.argv) < 3 or each.name in sys.argv[2:]:
        print(f"\n=== {each.number} {each.name}, {'right' if each.is_right else 'wrong'}", flush=True)
        began = time.monotonic()
        print(examine(find(each.number), each.answer, seed=1))
        print(f"--- {time.monotonic() - began:.1f} s", flush=True)
