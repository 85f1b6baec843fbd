"""Machine choice: remat and micro-batches by machine, what is kept of a compile, and what a plan says."""

import dataclasses

import pytest

from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu, Gpu, Tpu
from pipelines import compile_report, machine_choice, tootsie
from pipelines.compile_programs import request_of
from pipelines.corpus import corpus_of
from pipelines.length import hours_on
from pipelines.machine_choice import (
    PROGRAMS,
    choice_for,
    choice_line,
    one_host_of,
    placed_on,
    request_for,
    time_of,
    tokens_for,
    with_kernels,
)
from pipelines.scales import LAPTOP
from pipelines.sizes import SCALES, scale_at
from runtime.cost.chips import GPUS
from runtime.cost.request import Compiled, DoesNotFit
from tests.catalogue import check_message, expect_error
from tests.pipelines.test_identity import write_corpus

H100 = Gpu("H100", 1)
SMALL = SCALES["125m"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MARIN_DAG_CACHE", str(tmp_path / "cache"))


def test_a_smaller_memory_takes_more_micro_batches_and_less_than_one_sequence_is_refused():
    kinds = {"A100-80G": 59.3, "H100": 59.3, "H200": 104.8}
    numbers = {kind: placed_on(SMALL, Gpu(kind, 1), compile_programs=False).batches for kind in kinds}
    assert numbers["A100-80G"][1].num_microbatches >= numbers["H100"][1].num_microbatches
    assert numbers["H100"][2].num_microbatches >= numbers["H200"][2].num_microbatches
    for kind in kinds:
        choice = choice_for(placed_on(SMALL, Gpu(kind, 1), compile_programs=False))
        assert choice.remat == "none" and max(choice.peaks_in_bytes) <= GPUS[kind].hbm_in_bytes
    with expect_error(UserError):
        placed_on(SCALES["8b"], H100, compile_programs=False)
    with expect_error(UserError):  # more chips than sequences
        placed_on(SCALES["32b"], Tpu("v4-2048"), compile_programs=False)


@pytest.mark.parametrize(("name", "machines"), [("125m", H100), ("30m", Tpu("v6e-8"))])
def test_the_time_is_the_longer_estimate_and_hours_give_its_length(name, machines):
    scale = placed_on(SCALES[name], machines, compile_programs=False)
    time = time_of(scale)
    is_longer = time.hours > hours_on(scale, machines)
    assert is_longer == (name != "125m") and is_longer == (time.basis == "at the bandwidth of memory and wires")
    tokens = tokens_for(time.hours, name, machines)
    assert time_of(placed_on(scale_at(name, tokens), machines, compile_programs=False)).hours == pytest.approx(
        time.hours, rel=0.02
    )


def test_every_step_runs_on_the_machines_and_what_cannot_be_shared_on_one_host():
    machines = Gpu("H100", 8, num_hosts=2)
    scale = placed_on(SCALES["3b"], machines, compile_programs=False)
    assert {scale.kestrel_resources, scale.main_resources, scale.branch_resources} == {machines}
    assert scale.scoring_resources == one_host_of(machines) == Gpu("H100", 8)
    assert one_host_of(Tpu("v5p-512")) == Tpu("v5p-8") and one_host_of(Tpu("v6e-8", 2)) == Tpu("v6e-8")
    assert placed_on(SCALES["8b"], Tpu("v5litepod-256", 2), compile_programs=False).kestrel_scatter_kernel != "xla"
    assert placed_on(SCALES["8b"], Tpu("v5p-512"), compile_programs=False).kestrel_scatter_kernel == "xla"


def test_machines_of_unknown_memory_keep_the_settings_of_the_scale():
    for machines in (Cpu(2), Gpu("V100", 1)):
        scale = placed_on(LAPTOP, machines, compile_programs=False)
        assert (scale.remat, scale.batches) == (LAPTOP.remat, LAPTOP.batches)
        check_message(choice_line(scale))


def test_what_is_compiled_is_the_step_of_the_phase(tmp_path):
    scale = placed_on(SMALL, Gpu("H200", 1), compile_programs=False)
    corpus = corpus_of(write_corpus(tmp_path / "corpus"), scale)
    main_line = tootsie.phases(scale, corpus)
    every = main_line | tootsie.branches(scale, corpus, main_line)
    choice = choice_for(scale)
    names = ("kestrel", "phoenix", "starling", "spoonbill_focused_fp32")
    for name, program, number in zip(names, PROGRAMS, choice.num_microbatches, strict=True):
        request = with_kernels(request_for(scale, program, choice.remat, number), scale.main_resources)
        assert request == request_of(every[name], "train"), name


def test_a_compile_corrects_the_choice_and_later_plans_take_it(monkeypatch):
    compiled = []

    def outcome_with_progress(request, place):
        compiled.append(request)
        if request.compute_dtype == "float32" and request.num_microbatches < 6:
            return DoesNotFit("too large")
        return Compiled(2**30 * len(compiled), 0, (), 1, 1.0, 1, {})

    monkeypatch.setattr(compile_report, "outcome_with_progress", outcome_with_progress)
    monkeypatch.setattr(machine_choice, "with_kernels", lambda request, machines: request)
    expected = choice_for(placed_on(SMALL, H100, compile_programs=False))
    assert not expected.is_compiled and expected.num_microbatches[-1] < 6 and not compiled
    verified = placed_on(SMALL, H100, compile_programs=True)
    assert verified.float32_num_microbatches == 6
    number = len(compiled)
    later = placed_on(SMALL, H100, compile_programs=False)
    assert later == verified and len(compiled) == number
    check_message(choice_line(later))
    # Its time is that of the compiled programs, and --hours counts on no kept compile.
    time = time_of(later)
    assert time.basis == "by their compiled programs" and time.hours != pytest.approx(hours_on(later, H100), rel=0.01)
    assert time_of(dataclasses.replace(later, batches=SCALES["400m"].batches)).basis == "at 40% of the peak"
    # Another length has other batches, or the same programs.
    other = dataclasses.replace(SMALL, batches=SCALES["400m"].batches)
    assert not choice_for(placed_on(other, H100, compile_programs=False)).is_compiled
