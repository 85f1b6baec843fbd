"""Mixture search: the number of proxies that one call takes."""

from marin_dag.cli.session import program_words
from pipelines.mixture_search import MOST_PROXIES, main, num_proxies
from tests.catalogue import check_message


def test_more_proxies_than_a_search_can_use_are_refused_at_once(tmp_path, capsys):
    assert main(["--proxies", str(MOST_PROXIES + 1), "--dry-run", "--prefix", str(tmp_path)]) == 1
    check_message(capsys.readouterr().err.replace(" ".join(program_words()), "python RECIPE.py"))
    assert num_proxies(str(MOST_PROXIES)) == MOST_PROXIES
