"""Share of a data set: whole files of a hub by hash, nested in each other, and no others fetched."""

import pytest

from marin_dag.errors import RefusedConfigError
from runtime.text.fetch.hub import RemoteFile, share_of
from steps.download_share import DownloadShareConfig, download_share
from steps.fetch import UNPINNED, HuggingFaceDataset
from tests.catalogue import expect_error
from tests.steps.test_download import own_hub  # noqa: F401

FILES = [RemoteFile(f"data/{number:03d}.parquet", "", 1_000 + number) for number in range(200)]


@pytest.mark.parametrize("share", [1e-6, 0.01, 0.25, 0.5, 1.0])
def test_a_share_has_that_part_of_the_bytes_to_a_file_and_at_least_one(share):
    chosen = share_of(FILES, share)
    wanted = share * sum(file.size_in_bytes for file in FILES)
    found = sum(file.size_in_bytes for file in chosen)
    assert chosen and wanted <= found < wanted + 1_200
    assert [file.name for file in chosen] == sorted(file.name for file in chosen)
    assert set(share_of(FILES, share / 2)) <= set(chosen) == set(share_of(FILES[::-1], share))


LANGUAGES = {"go": 20, "java": 60, "python": 40, "tcl": 1}
BY_FOLDER = [
    RemoteFile(f"{language}/{number:03d}.parquet", "", 1_000)
    for language in LANGUAGES
    for number in range(LANGUAGES[language])
]


@pytest.mark.parametrize("least_folders", [1, 3, 4, 9])
def test_a_small_share_is_spread_over_folders(least_folders):
    smallest = share_of(BY_FOLDER, 1e-9, least_folders=least_folders)
    assert (
        len({file.name.partition("/")[0] for file in smallest}) == len(smallest) == min(least_folders, len(LANGUAGES))
    )
    chosen = share_of(BY_FOLDER, 0.2, least_folders=least_folders)
    assert set(smallest) <= set(chosen) <= set(share_of(BY_FOLDER, 0.4, least_folders=least_folders))
    for language, number in LANGUAGES.items():
        found = sum(file.name.startswith(language) for file in chosen)
        assert abs(found - 0.2 * number) <= 1, language


def test_only_files_of_the_share_are_fetched(run_alone, own_hub):  # noqa: F811
    fetch = HuggingFaceDataset(repo="someone/texts", revision="0" * 40, files=("data/*",))
    half, whole = (
        run_alone(download_share, DownloadShareConfig(fetch=fetch, share=share), f"share{share}").result.files
        for share in (0.5, 1.0)
    )
    (chosen,) = share_of([RemoteFile(name, "", 9) for name in sorted(own_hub.files)], 0.5)
    assert [file.name for file in half] == [chosen.name]
    assert [file.name for file in whole] == sorted(own_hub.files)


def test_a_share_without_a_revision_is_an_open_question():
    fetch = HuggingFaceDataset(repo="someone/texts", revision=UNPINNED, files=("*",))
    with expect_error(RefusedConfigError):
        download_share.check_decided(DownloadShareConfig(fetch=fetch, share=0.5))
