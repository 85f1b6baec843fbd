"""Heat map: the page's data are the predictions, the hardest windows come first, and strangers' text stays text."""

import json
import re

import numpy as np
import pytest

from runtime.report.contents import HeatWindow, Moment
from runtime.report.heat_map import MOST_CELLS, MOST_CELLS_OF_A_REPORT, heat_map, page

HOSTILE = "</script><b>\u202e<!--"


def moment(log_probs, likely=("a", "b")):
    values = np.array([np.nan, *log_probs], np.float32)
    return Moment(
        log_prob=values,
        rank=np.where(np.isfinite(values), np.round(-values), -1).astype(np.int32),
        entropy=np.where(np.isfinite(values), 1.5, np.nan).astype(np.float32),
        likely=[likely] * len(values),
        likely_log_prob=np.full((len(values), len(likely)), -0.7, np.float32),
    )


def window(domain, texts, *moments, digest="0" * 12):
    return HeatWindow(domain, digest, texts, moments)


def data_of(text):
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


def fill_in_the_blanks():
    """Two windows of one template, which the model knows but for the blanks, and a window of prose."""
    template = ["Dear", " ", "NAME", ",", " you", " owe", " us", " ", "SUM", "."]
    known, blank = -0.01, -6.0
    template_loss = [blank if text in ("NAME", "SUM") else known for text in template[1:]]
    filled = [[text.replace("NAME", name).replace("SUM", total) for text in template] for name, total in
              (("Ada", "5"), ("Alan", "7"))]  # fmt: skip
    prose = window("prose", ["It", " rained", " on", " the", " moor"], moment([-3.0, -4.0, -2.0, -5.0]))
    letters = [
        window("letters", text, moment(template_loss), digest=f"{index}" * 12) for index, text in enumerate(filled)
    ]
    return [*letters, prose]


def test_the_page_holds_each_prediction():
    texts = ["The", " cat", " sat"]
    before, after = moment([-2.0, -3.0]), moment([-1.25, -0.5], likely=(" sat", " ran"))
    (shown,) = data_of(page("t", ["early", "late"], [window("web", texts, before, after)]))["windows"]
    assert shown["texts"] == texts
    assert [each["logProb"] for each in shown["moments"]] == [[None, -2.0, -3.0], [None, -1.25, -0.5]]
    assert shown["moments"][1]["rank"] == [-1, 1, 0]
    assert shown["moments"][1]["likely"] == [[], *[[[" sat", -0.7], [" ran", -0.7]]] * 2]


def test_suspiciously_easy_windows_come_first_then_the_hardest_and_a_template_shows_its_blanks():
    usual = window("web", ["a", "b", "c"], moment([-1.0, -2.0]))
    text = page("t", ["now"], [usual, *fill_in_the_blanks()])
    shown = data_of(text)["windows"]
    assert [each["texts"][0] for each in shown] == ["Dear", "Dear", "It", "a"]
    assert text.count("as easy as text that was trained on") == 2
    for letter in shown[:2]:
        hard = [word for word, value in zip(letter["texts"], letter["moments"][0]["logProb"], strict=True)
                if value is not None and value < -1]  # fmt: skip
        assert hard in (["Ada", "5"], ["Alan", "7"])


def test_trailing_spaces_at_the_end_of_documents_show_as_what_changed():
    texts = ["The", " sea", ".", "  ", "The", " sun", ".", "  "]
    before = moment([-2.0, -1.0, -4.0, -2.0, -2.0, -1.0, -4.0])
    after = moment([-1.9, -0.9, -0.1, -1.8, -1.9, -0.9, -0.1])
    (shown,) = data_of(page("t", ["early", "late"], [window("web", texts, before, after)]))["windows"]
    early, late = (each["logProb"][1:] for each in shown["moments"])
    changes = [abs(new - old) for old, new in zip(early, late, strict=True)]
    most = sorted(range(len(changes)), key=lambda index: -changes[index])[:2]
    assert [shown["texts"][index + 1] for index in most] == ["  ", "  "]


def test_a_text_as_easy_as_trained_text_is_marked():
    easy = window("web", ["a", "b", "c"], moment([-0.001, -0.002]))
    hard = window("code", ["a", "b", "c"], moment([-1.0, -2.0]))
    options = re.findall(r"<option[^>]*>(.*?)</option>", page("t", ["now"], [easy, hard]), re.DOTALL)
    assert ["trained" in option for option in options if "000000" in option] == [True, False]


def test_text_of_strangers_cannot_become_part_of_the_page():
    text = page(HOSTILE, [HOSTILE], [window(HOSTILE, [HOSTILE, "x"], moment([-1.0], likely=(HOSTILE, "y")))])
    assert HOSTILE not in text and "\u202e" not in text
    assert text.count("</script>") == 2


def test_a_large_page_is_cut_and_says_so():
    length = MOST_CELLS
    windows = [window("web", ["x"] * length, moment([-1.0] * (length - 1)), digest=f"{i}" * 12) for i in range(2)]
    text = page("t", ["now"], windows)
    assert len(data_of(text)["windows"][0]["texts"]) == MOST_CELLS // 2
    assert len(text) < 5_000_000
    assert f"first {MOST_CELLS // 2:,} tokens" in text


def test_the_heat_map_of_a_report_of_25_domains_and_26_phases_keeps_within_its_share():
    windows = [window(f"domain {i}", ["x"] * 50, *[moment([-1.0] * 49)] * 26) for i in range(25)]
    made = heat_map([f"phase {i}" for i in range(26)], windows, MOST_CELLS_OF_A_REPORT)
    assert {len(each["texts"]) for each in data_of(made)["windows"]} == {MOST_CELLS_OF_A_REPORT // (25 * 26)}
    assert len(made) < 1_200_000


def test_a_window_without_a_moment_stays():
    (shown,) = data_of(page("t", ["early", "late"], [window("web", ["a", "b"], None, moment([-1.0]))]))["windows"]
    assert shown["moments"][0] is None


def test_equal_inputs_give_equal_bytes():
    assert page("t", ["now"], fill_in_the_blanks()) == page("t", ["now"], fill_in_the_blanks())


@pytest.mark.parametrize("value", [-1e-9, -30.0])
def test_extreme_losses_are_numbers(value):
    assert data_of(page("t", ["now"], [window("web", ["a", "b"], moment([value]))]))
