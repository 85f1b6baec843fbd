"""The page of data stalls: every phase, cause and stall is on it, in the look of the report."""

import html
import re

from runtime.report.pages import stalls_page as page
from runtime.tracking.stalls import DataStalls, Stall

STALLS = [
    DataStalls("kestrel", 2, 100.0, 12.0, {"packing": 2.0, "cache not built yet": 10.0}, (
        Stall(4, "cache not built yet", 7.5), Stall(9, "cache not built yet", 2.5), Stall(11, "packing", 1.25),
    )),
    DataStalls("<phoenix>", 1, 50.0, 0.5, {"store read": 0.5}, ()),
]  # fmt: skip


def rows(made: str) -> list[list[str]]:
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", made)]
    return [[html.unescape(cell) for cell in row] for row in found]


def test_stalls_are_listed_by_phase_and_cause_with_number_and_longest():
    made = page("Data stalls", STALLS, [])
    table = rows(made)
    causes = "cache not built yet 10.00 s, packing 2.00 s"
    assert ["kestrel", "2", "100.0", "12.00", "12.00%", "3", causes] in table
    assert ["<phoenix>", "1", "50.0", "0.50", "1.00%", "0", "store read 0.50 s"] in table
    assert ["kestrel", "cache not built yet", "2", "10.0", "7.5", "5"] in table
    assert ["kestrel", "packing", "1", "1.2", "1.2", "12"] in table
    assert "2 phases waited 12.5 s for data,\n8.33% of 150 s in the loop" in made
    assert "<phoenix>" not in made


def test_a_run_without_stalls():
    assert "No stall was longer than a second." in page("Data stalls", STALLS[1:], [])
