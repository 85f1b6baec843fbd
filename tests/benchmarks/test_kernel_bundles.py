"""Schedules of TPU kernels are found by name, or are an error; figures have the form of the rows."""

import os
from pathlib import Path

from benchmarks.kernel_bundles import Schedule, figures_of_splash, schedules_of, write_schedules
from runtime.kernels.block_sizes import MIB, SplashBlocks
from tests.catalogue import expect_error

CALL = """
  %{name} = (f32[8,128]{{1,0:T(8,128)}}) custom-call(%p), custom_call_target="tpu_custom_call", kernel_metadata={{
"a": 1
}}, backend_config={{"scoped_memory_configs":[{{"size":"16777216"}}],"used_scoped_memory_configs":[{{"memory_space":"1","offset":"0","size":"{size}"}}]}}
"""  # noqa: E501
NAMES = {"transpose_jvp_splash_mha_dkv__.2": 300, "splash_mha_fwd.1": 20}
PROGRAM = """
  %splash_mha_fwd = f32[8]{0} fusion(%p), backend_config={"used_scoped_memory_configs":[{"offset":"0","size":"7"}]}
""" + "".join(CALL.format(name=name, size=size) for name, size in NAMES.items())


def write(folder: Path, name: str, text: str, number: int = 71) -> None:
    (folder / f"179-{name}-{number}-schedule-analysis_final_bundles.txt").write_text(f"Schedule analysis:\n\t{text}\n")


def test_kernels_are_found_by_name_whatever_their_order_and_with_their_own_memory(tmp_path):
    write(tmp_path, "splash_mha_fwd.1", "non empty scheduled bundles: 5982")
    write(tmp_path, "transpose_jvp_splash_mha_dkv__.2", "non empty scheduled bundles: 10203")
    write(tmp_path, "splash_mha_fwd", "non empty scheduled bundles: 1")  # of the fusion, which is no kernel
    found = schedules_of(tmp_path, PROGRAM, ("splash_mha_fwd", "splash_mha_dkv"))
    assert found == [Schedule(5982, 20), Schedule(10203, 300)]


def test_a_kernel_without_one_schedule_is_an_error(tmp_path):
    with expect_error(LookupError):
        schedules_of(tmp_path, PROGRAM, ("cross_entropy",))
    with expect_error(LookupError):
        schedules_of(tmp_path, PROGRAM, ("splash_mha_fwd",))
    write(tmp_path, "splash_mha_fwd.1", "nothing that is known")
    with expect_error(LookupError):
        schedules_of(tmp_path, PROGRAM, ("splash_mha_fwd",))
    for number in (71, 72):
        write(tmp_path, "splash_mha_fwd.1", "non empty scheduled bundles: 5982", number)
    with expect_error(LookupError):
        schedules_of(tmp_path, PROGRAM, ("splash_mha_fwd",))


def test_figures_count_the_grid_steps_of_a_head_that_are_not_above_the_diagonal():
    forward, backward = Schedule(6000, 4 * MIB), Schedule(10_000, 8 * MIB)
    square = SplashBlocks(1024, 1024, 512, 1024, 1024, 1024)  # 1 + 2 + 3 + 4 of 16
    assert figures_of_splash("v5e", square, 4096, [forward, backward]) == "fwd 60k, bwd 100k bundles; 8.0 of 16 MiB"
    oblong = square._replace(key=2048, query_backward=2048)  # 1 + 1 + 2 + 2 of 8, and 2 + 4 of 8
    assert figures_of_splash("v6e", oblong, 4096, [forward, backward]) == "fwd 36k, bwd 60k bundles; 8.0 of 32 MiB"


def test_options_for_the_schedules_are_added_to_those_that_are_set(monkeypatch, tmp_path):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--one")
    write_schedules(str(tmp_path))
    assert os.environ["LIBTPU_INIT_ARGS"].startswith(f"--one --xla_jf_dump_to={tmp_path} ")
