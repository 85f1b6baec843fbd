"""Machine choice: remat and micro-batches by machine, what is kept of a compile, and what a plan says."""

from pathlib import Path

import pytest

from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu, Gpu, Tpu
from marin_dag.quantities import typed_count
from pipelines import compile_report, machine_choice, tootsie
from pipelines.compile_programs import request_of, with_kernels
from pipelines.corpus import corpus_of
from pipelines.length import tokens_named
from pipelines.machine_choice import (
    LARGEST,
    PROGRAMS,
    choice_for,
    choice_line,
    placed_on,
    request_for,
    times_of,
    tokens_for,
)
from pipelines.machines import one_host_of
from pipelines.sizes import SCALES, scale_at
from runtime.cost import expected, roofline
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
    numbers = {kind: placed_on(SMALL, Gpu(kind, 1)).batches for kind in kinds}
    assert numbers["A100-80G"][1].num_microbatches >= numbers["H100"][1].num_microbatches
    assert numbers["H100"][2].num_microbatches >= numbers["H200"][2].num_microbatches
    for kind in kinds:
        choice = choice_for(placed_on(SMALL, Gpu(kind, 1)))
        assert choice.remat == "none" and max(choice.peaks_in_bytes) <= GPUS[kind].hbm_in_bytes
    with expect_error(UserError):
        placed_on(SCALES["8b"], H100)
    with expect_error(UserError):  # more chips than sequences
        placed_on(SCALES["32b"], Tpu("v4-2048"))


@pytest.mark.parametrize(
    ("name", "machines", "hours", "basis"),
    [
        ("125m", H100, 1.0, "at 40% of the peak"),
        ("30m", Tpu("v6e-8"), 0.02, "at the bandwidth of memory and wires"),
        # Batches of the scale's own length do not divide over these.
        ("1b", Tpu("v6e-64"), 24.0, "at 53% of the peak"),
    ],
)
def test_hours_give_the_length_that_takes_them_evaluations_included(name, machines, hours, basis):
    tokens = tokens_for(hours, name, machines, num_sources=8)
    assert tokens_named(typed_count(tokens)) == tokens
    scale = placed_on(scale_at(name, tokens), machines)
    (time,) = times_of(scale, 8)
    assert time == (pytest.approx(hours, rel=0.01), basis)
    ((training, _),), ((two_of_eight, _),) = times_of(scale, 0), times_of(scale, 2)
    assert two_of_eight - training == pytest.approx((time.hours - training) / 4) and time.hours > training


def test_eight_times_the_machines_take_an_eighth_of_the_time():
    ((one, _),), ((eight, _),) = (times_of(placed_on(SCALES["1b"], Gpu("H100", count)), 8) for count in (1, 8))
    assert one == pytest.approx(8 * eight, rel=0.01)


@pytest.mark.parametrize(
    ("hours", "machines"),
    [(1.0, Cpu(2)), (1.0, Gpu("L40S", 1)), (1e300, H100), (1.0, Tpu("v6e-64"))],
    ids=["cpus", "another-gpu", "too-many", "too-few"],
)
def test_hours_for_which_no_length_is_found_are_refused(hours, machines):
    with expect_error(UserError):
        tokens_for(hours, "1b", machines, num_sources=8)


def test_every_step_runs_on_the_machines_and_what_cannot_be_shared_on_one_host():
    machines = Gpu("H100", 8, num_hosts=2)
    scale = placed_on(SCALES["3b"], machines)
    assert {scale.kestrel_resources, scale.main_resources, scale.branch_resources} == {machines}
    assert scale.scoring_resources == one_host_of(machines) == Gpu("H100", 8)
    assert one_host_of(Tpu("v5p-512")) == Tpu("v5p-8") and one_host_of(Tpu("v6e-8", 2)) == Tpu("v6e-8")
    assert placed_on(SCALES["8b"], Tpu("v5litepod-256", 2)).kestrel_scatter_kernel != "xla"
    assert placed_on(SCALES["8b"], Tpu("v5p-512")).kestrel_scatter_kernel == "xla"


@pytest.mark.parametrize("machines", [Cpu(2), Gpu("L40S", 1)], ids=["cpus", "another-gpu"])
def test_machines_of_unknown_memory_keep_the_settings_of_the_scale(machines):
    scale = placed_on(SMALL, machines)
    assert (scale.remat, scale.batches, scale.main_resources) == (SMALL.remat, SMALL.batches, machines)
    assert times_of(scale, 8) == []
    check_message(choice_line(scale))


def test_what_is_compiled_is_the_step_of_the_phase(tmp_path):
    scale = placed_on(SMALL, Gpu("H200", 1))
    corpus = corpus_of(write_corpus(tmp_path / "corpus"), scale)
    main_line = tootsie.phases(scale, corpus)
    every = main_line | tootsie.branches(scale, corpus, main_line)
    choice = choice_for(scale)
    names = ("kestrel", "phoenix", "starling", "spoonbill_focused_fp32")
    for name, program, number in zip(names, PROGRAMS, choice.num_microbatches, strict=True):
        request = with_kernels(request_for(scale, program, choice.remat, number), scale.main_resources)
        assert request == request_of(every[name], "train"), name


@pytest.fixture
def compiled(monkeypatch):
    """Return the requests that are compiled: more than `most_rows` sequences at a time do not fit."""
    requests, most_rows = [], {"bfloat16": 12, "float32": 4}

    def outcome_with_progress(request, place):
        requests.append(request)
        if request.global_batch_size > most_rows[request.compute_dtype] * request.num_microbatches:
            return DoesNotFit("too large")
        return Compiled(2**30 * len(requests), 0, (), 1, 1.0, 1, {})

    monkeypatch.setattr(compile_report, "outcome_with_progress", outcome_with_progress)
    monkeypatch.setattr(machine_choice, "with_kernels", lambda request, machines: request)
    return requests


def test_the_largest_step_is_compiled_and_smaller_ones_take_its_micro_batches(compiled):
    scale = scale_at("125m", 1_000_000_000)
    expected = choice_for(placed_on(scale, H100))
    assert expected.compiles == "none" and expected.num_microbatches[2] < 3 and not compiled
    verified = placed_on(scale, H100, compiles="largest")
    assert [batch.global_batch_size // batch.num_microbatches for batch in verified.batches] == [8, 8, 8]
    assert {request.global_batch_size for request in compiled} == {scale.batches[LARGEST.batch].global_batch_size}
    assert verified.float32_num_microbatches == expected.num_microbatches[-1]
    check_message(choice_line(verified))
    number = len(compiled)
    later = placed_on(scale, H100)
    assert later == verified and len(compiled) == number
    every = placed_on(scale, H100, compiles="all")
    assert [batch.global_batch_size // batch.num_microbatches for batch in every.batches] == [8, 12, 8]
    assert every.float32_num_microbatches == 6
    check_message(choice_line(every))
    number = len(compiled)
    assert placed_on(scale, H100, compiles="largest") == every and len(compiled) == number
    # Another length has other batches, or the same programs.
    assert choice_for(placed_on(SMALL, H100)).compiles == "none"


@pytest.mark.parametrize("module", [expected, roofline, machine_choice])
def test_a_choice_is_not_kept_past_an_edit_of_the_figures_behind_it(compiled, module, tmp_path, monkeypatch):
    placed_on(SMALL, H100, compiles="largest")
    assert choice_for(placed_on(SMALL, H100)).compiles == "largest"
    edited = tmp_path / "edited.py"
    edited.write_bytes(Path(module.__file__).read_bytes() + b"# edited\n")
    paths = [edited if path == Path(module.__file__) else path for path in machine_choice.CHOSEN_BY]
    monkeypatch.setattr(machine_choice, "CHOSEN_BY", paths)
    assert choice_for(placed_on(SMALL, H100)).compiles == "none"


def test_hours_are_the_same_length_before_and_after_a_compile_and_the_plan_has_both_times(compiled):
    tokens = tokens_for(1.0, "125m", H100, num_sources=8)
    scale = scale_at("125m", tokens)
    (expected,) = times_of(placed_on(scale, H100), 8)
    verified = placed_on(scale, H100, compiles="largest")
    number = len(compiled)
    assert number and tokens_for(1.0, "125m", H100, num_sources=8) == tokens
    again, by_programs = times_of(verified, 8)
    assert again == expected and by_programs.hours < 0.9 * expected.hours
    assert by_programs.basis == "at 50% of the roofline of compiled programs"
    assert len(compiled) == number
