"""`heat-map` joins predictions by window and moment, and says what is missing. The tutorial's test draws a real run."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, decoders, models

from marin_dag.graph.graph import Graph
from pipelines import tootsie
from pipelines.corpus import laptop_corpus
from pipelines.heat_map_command import MOST_MOMENTS, Measured, _spread
from pipelines.scales import LAPTOP
from runtime.evaluation.stored_predictions import PREDICTIONS, file_of_step
from runtime.report.readings import heat_windows, window_tables
from tests.catalogue import check_message

WORDS = ["a", " fine", " day", "."]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="a"))
    made.decoder = decoders.Fuse()
    return made


def measured(phase: str, step: int, log_prob: float, *windows: tuple[str, str, list[int]]) -> Measured:
    rows: list[dict[str, Any]] = [
        {
            "domain": domain,
            "window": digest,
            "token": token,
            "log_prob": log_prob if position else None,
            "rank": 1 if position else None,
            "entropy": 0.5 if position else None,
            "likely": [2, 3, 0],
            "likely_log_prob": [-0.1, -3.0, -4.0],
        }
        for domain, digest, tokens in windows
        for position, token in enumerate(tokens)
    ]
    return Measured(phase, step, "hot", pa.Table.from_pylist(rows))


def test_windows_are_joined_over_moments(tokenizer: Tokenizer) -> None:
    web, code = ("web", "aa", [0, 1, 2, 3]), ("code", "bb", [0, 3])
    moments = [measured("kestrel", 5, -2.0, web).table, measured("ocelot", 9, -1.0, web, code).table]
    windows = {window.domain: window for window in heat_windows(window_tables(moments), tokenizer, 2)}
    assert list(windows["web"].texts) == WORDS
    first, second = windows["web"].moments
    assert first is not None and second is not None
    np.testing.assert_array_equal(first.log_prob, np.float32([np.nan, -2, -2, -2]))
    assert second.rank.tolist() == [-1, 1, 1, 1]
    assert second.likely == [[" day", ".", "a"]] * 2 and second.likely_log_prob.shape == (2, 3), "of the shown tokens"
    assert windows["code"].moments[0] is None and windows["code"].moments[1] is not None


def test_only_the_named_domains_are_drawn() -> None:
    moments = [measured("kestrel", 5, -2.0, ("web", "aa", [0, 1]), ("code", "bb", [0, 3])).table]
    assert [*window_tables(moments, ["code"])] == [("code", "bb")]


@pytest.mark.parametrize("number", [1, 2, MOST_MOMENTS, MOST_MOMENTS + 1, 1_000])
def test_shown_moments_keep_the_ends_and_their_order(number: int) -> None:
    every = [measured("kestrel", step, -1.0, ("web", "aa", [0, 1])) for step in range(number)]
    shown = [each.step for each in _spread(every, MOST_MOMENTS)]
    assert (shown[0], shown[-1]) == (0, number - 1)
    assert len(set(shown)) == len(shown) == min(number, MOST_MOMENTS) and shown == sorted(shown)


@pytest.mark.parametrize(
    "words",
    [[], ["--page", "heat.png"], ["kestrell", "--page", "heat.html"], ["kestrel", "--page", "heat.html"]],
    ids=["no-page", "no-html", "unknown-phase", "nothing-kept"],
)
def test_a_figure_without_data_gives_the_reason(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tootsie.main(["heat-map", *words, "--prefix", str(tmp_path / "runs")]) == 1
    printed = capsys.readouterr()
    check_message(printed.out + printed.err)
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_named_where_nothing_else_can_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kestrel = Graph(tootsie.tootsie(LAPTOP, laptop_corpus(LAPTOP))).step("kestrel")
    damaged = Path(file_of_step(f"{tmp_path}/runs/work/{kestrel.digest}/{PREDICTIONS}", 5))
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"PAR1 and no more")
    assert tootsie.main(["heat-map", "kestrel", "--page", "heat.html", "--prefix", str(tmp_path / "runs")]) == 1
    check_message(capsys.readouterr().err)
