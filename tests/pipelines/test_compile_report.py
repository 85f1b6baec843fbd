"""--dry-run --compile: which programs are compiled, their report, and the cure of one that does not fit."""

import dataclasses

import jax
import pytest

from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu, Gpu, Tpu
from pipelines import compile_report
from pipelines.compile_programs import cures, programs_of, request_of
from pipelines.corpus import eight_b_corpus
from pipelines.scales import EIGHT_B
from pipelines.tootsie import main, phases
from runtime.cost import compile_program
from runtime.cost.collectives import Collective
from runtime.cost.request import Compiled, CompileRequest, DoesNotFit
from runtime.cost.roofline import roofline_of
from runtime.evaluation.window_batch import window_batch
from runtime.optim.ema import Ema
from runtime.optim.optimizer import Muon
from runtime.optim.skip_rule import SkipRule
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.train_step import ProgramOptions
from steps.ema_eval import EmaEvalConfig
from tests.catalogue import check_message, expect_error

GATHER = Collective("all-gather", "bf16", (1, 4096, 14_336), 2 * 4096 * 14_336, ("data_x",), 8, 64, 10**12)
SCATTER = Collective("reduce-scatter", "f32", (1, 512, 14_336), 4 * 4096 * 14_336, ("data_x",), 8, 32)
REDUCE = Collective("all-reduce", "f32", (4096, 14_336), 4 * 4096 * 14_336, ("data_y",), 8, 32)
COMPILED = Compiled(8 * 2**30, 120 * 2**20, (GATHER, SCATTER, REDUCE), 730 * 10**12, 100.0, 2 * 2**30, {"libtpu": "1"})


@pytest.fixture(scope="module")
def main_line():
    return phases(EIGHT_B, eight_b_corpus(EIGHT_B))


def test_phases_that_differ_only_in_arguments_of_the_program_share_one(main_line):
    train = {name: request_of(phase, "train") for name, phase in main_line.items()}
    assert train["ocelot"] == train["jellyfish"] == train["phoenix"]
    assert train["starling"] == train["deeper_starling"]
    assert len(set(train.values())) == 3
    assert (train["kestrel"].slice, train["kestrel"].num_slices) == ("v5litepod-256", 2)
    assert (train["kestrel"].num_averages, train["phoenix"].num_averages) == (0, 1)
    assert len({request_of(phase, "eval") for phase in main_line.values()}) == 2


def test_model_and_context_axes_of_a_phase_are_those_of_its_program(main_line):
    kestrel = main_line["kestrel"]
    axes = {"replica_parallel": 2, "model_parallel": 4, "context_parallel": 2}
    spread = dataclasses.replace(kestrel, config=kestrel.config.model_copy(update=axes))
    train, evaluation = request_of(spread, "train"), request_of(spread, "eval")
    assert (train.replica_parallel, train.model_parallel, train.context_parallel) == (2, 4, 2)
    assert train != request_of(kestrel, "train")
    # Evaluations split their batch over all chips.
    assert evaluation == dataclasses.replace(request_of(kestrel, "eval"), replica_parallel=2)
    assert train.layout.shape == (4, 16, 4, 2)
    assert compile_report._program(train, COMPILED, ["kestrel"])[0].endswith(
        "(v5e:16x16), replica 2, model 4, context 2: kestrel"
    )
    with expect_error(ValueError):
        _ = dataclasses.replace(train, model_parallel=12).layout


def test_fewer_copies_are_tried_where_memory_is_short_and_the_report_has_memory_by_chip(main_line):
    train = dataclasses.replace(request_of(main_line["phoenix"], "train"), replica_parallel=4)
    # 3 divides no axis of the torus.
    assert next(iter(cures(train))) == ("replica_parallel", dataclasses.replace(train, replica_parallel=2))
    assert "replica_parallel" not in dict(cures(dataclasses.replace(train, replica_parallel=1)))
    check_message("\n".join(compile_report._program(train, COMPILED, ["phoenix"])))


def test_a_cure_that_the_torus_cannot_hold_is_not_tried(main_line):
    small = dataclasses.replace(request_of(main_line["phoenix"], "train"), slice="v4-8", num_slices=1)
    assert "model_parallel" in dict(cures(small))
    one_chip = dataclasses.replace(small, slice="v5litepod-1")
    assert "model_parallel" not in dict(cures(one_chip))


@pytest.fixture
def unusual(main_line):
    """Return a phase that differs from kestrel in every field that decides its program."""
    kestrel = main_line["kestrel"]
    changes = {
        "model": dataclasses.replace(kestrel.config.model, num_hidden_layers=3, use_qk_norm=True),
        "sequence_length": 2048,
        "global_batch_size": 3072,
        "averages": (Ema(0.99), Ema(0.999, "slow")),
        "optimizer": Muon(),
        "compute_dtype": "float32",
        "reduce_dtype": "float32",
        "skip": SkipRule(window_steps=77, sigma=6.0, warmup_steps=2, max_consecutive=3),
        "attention_kernel": "chunked",
        "loss_kernel": "chunked",
        "scatter_kernel": "xla",
        "remat": "dots",
        "num_microbatches": 3,
        "replica_parallel": 2,
        "model_parallel": 4,
        "context_parallel": 2,
    }
    return dataclasses.replace(kestrel, config=kestrel.config.model_copy(update=changes)).on(
        Tpu("v4-128", num_slices=4)
    )


def test_every_field_of_a_phase_that_decides_its_program_is_in_what_is_compiled(main_line, unusual):
    usual, request, config = request_of(main_line["kestrel"], "train"), request_of(unusual, "train"), unusual.config
    fields = [field.name for field in dataclasses.fields(CompileRequest) if field.name not in ("step", "stored_dtype")]
    of_phase = [name for name in fields if hasattr(config, name)]
    assert {name: getattr(request, name) for name in of_phase} == {name: getattr(config, name) for name in of_phase}
    others = {"slice": "v4-128", "num_slices": 4, "num_averages": 2, "skip_window_steps": 77}
    assert {name: getattr(request, name) for name in fields if name not in of_phase} == others
    same = [name for name in fields if getattr(request, name) == getattr(usual, name)]
    assert same == [], "give `unusual` another value: what is left out would not be seen here"
    assert (usual.reduce_dtype, usual.skip_window_steps) == ("bfloat16", 0)


def test_the_compiler_is_given_the_program_of_the_request_and_a_state_with_its_history(unusual, monkeypatch):
    asked, models, states = {}, [], []

    class Program:
        def lower(self, state, *batch):
            states.append(state)
            return self

        def compile(self, compiler_options):
            return self

    def train_program(model, mesh, options, *, donate):
        asked.update(dataclasses.asdict(options), donate=donate)
        models.append(model)
        return Program()

    monkeypatch.setattr(compile_program, "train_program", train_program)
    compile_program.compiled_program(request_of(unusual, "train"), make_mesh(MeshShape(), jax.devices()[:1]))
    # Donated as in a run: otherwise the memory would count the state twice.
    named = (field.name for field in dataclasses.fields(ProgramOptions) if field.name != "optimizer")
    asked.pop("optimizer")
    assert asked == {name: getattr(unusual.config, name) for name in named} | {"donate": True}
    assert models == [unusual.config.model]
    (state,) = states
    assert (state.skip_window_steps, len(state.averages)) == (77, 2)


def test_a_phase_on_cpus_or_on_an_unknown_gpu_is_refused(main_line):
    with expect_error(UserError):
        request_of(main_line["kestrel"].on(Cpu(2)), "train")
    with expect_error(UserError):
        request_of(main_line["kestrel"].on(Gpu("V100", 8)), "train")


def test_an_evaluation_is_compiled_in_its_own_dtype_and_with_its_own_windows(main_line):
    kestrel = main_line["kestrel"]
    own = EmaEvalConfig.model_construct(compute_dtype="float32", windows_per_batch=2048)
    request = request_of(kestrel, "eval", evaluation=own)
    assert (request.compute_dtype, request.global_batch_size) == ("float32", 2048)
    default = request_of(kestrel, "eval")
    assert (default.compute_dtype, default.global_batch_size) == ("bfloat16", 512)
    assert request_of(kestrel, "train", evaluation=own) == request_of(kestrel, "train")


def hours_in(row: str) -> float:
    return float(row.split()[-2].replace(",", ""))


def test_a_phase_on_gpus_is_compiled_for_them_with_their_kernels(main_line, monkeypatch):
    monkeypatch.setattr("runtime.kernels.attention_tokamax.missing", lambda: None)  # whatever is installed here
    kestrel = main_line["kestrel"].on(Gpu("H200", 8, num_hosts=4))
    train, evaluation = request_of(kestrel, "train"), request_of(kestrel, "eval")
    assert (train.slice, train.num_slices, train.attention_kernel) == ("4 x 8 x H200", 1, "tokamax")
    assert train.layout.shape == (1, 32, 1, 1)
    assert (evaluation.slice, evaluation.global_batch_size) == ("4 x 8 x H200", 32)
    alone = dataclasses.replace(COMPILED, collectives=())
    lines = compile_report._program(train, alone, ["kestrel"])
    check_message("\n".join(lines))
    (_, row, _) = compile_report._phases({"kestrel": kestrel}, {"kestrel": programs_of(kestrel)}, {train: alone})
    seconds = kestrel.config.until_step * roofline_of(train, alone).step_seconds
    assert hours_in(row) == pytest.approx(seconds / 0.5 / 3_600, abs=0.5)
    assert "num_microbatches" in dict(cures(train))


def test_a_program_is_reported_with_memory_flops_collectives_faults_and_the_roofline(main_line):
    request = request_of(main_line["phoenix"], "train")
    lines = "\n".join(compile_report._program(request, COMPILED, ["ocelot", "phoenix"]))
    check_message(lines)


def test_the_phases_add_up_to_hours_and_chip_hours(main_line):
    requests = {name: programs_of(phase) for name, phase in main_line.items()}
    outcomes = {programs["train"]: COMPILED for programs in requests.values()}
    lines = list(compile_report._phases(main_line, requests, outcomes))
    assert [line.split()[0] for line in lines] == ["phase", *main_line, "all"]
    hours = [hours_in(line) for line in lines[1:]]
    assert sum(hours[:-1]) == pytest.approx(hours[-1], abs=3)
    assert len({len(line) for line in lines}) == 1


def test_every_selected_phase_is_compiled_and_shared_steps_count_once(tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(compile_report, "outcome_of", lambda request: (asked.append(request), (COMPILED, False))[1])
    whole = dry_run(capsys, tmp_path, "--compile-all").out
    assert "spoonbill_hypnotic  " not in whole.partition("Compiled for machines")[2]
    check_message(report_in(whole))
    (scored,) = (request for request in asked if request.step == "score")
    assert (scored.slice, scored.layout.shape, scored.stored_dtype) == ("v6e-8", MeshShape(replica=8), "bfloat16")
    asked.clear()
    printed = dry_run(capsys, tmp_path, "--compile-all", "--only", "spoonbill_*", code=1).out
    assert {request.slice for request in asked} == {"v4-128"}
    check_message(report_in(printed))
    assert {request.compute_dtype for request in asked if request.step == "train"} == {"bfloat16", "float32"}
    table = printed.partition("\nphase ")[2].splitlines()[1:]
    hours = {row.split()[0]: hours_in(row) for row in table[: table.index("")] if row[-1].isdigit()}
    names = "hypnotic", "norms_half", "norms", "focused_fp32", "focused_zloss", "deeper"
    assert [*hours] == [*(f"spoonbill_{name}" for name in names), "all"]
    # norms_half and norms are stops on the way of hypnotic.
    own = sum(hours[f"spoonbill_{name}"] for name in names if not name.startswith("norms"))
    assert hours["all"] == pytest.approx(own, abs=3)


def test_a_selection_without_a_phase_has_nothing_to_compile(tmp_path, capsys):
    argv = ["--scale", "8b", "--dry-run", "--compile", "--prefix", str(tmp_path), "--only", "ema_eval/*"]
    assert main(argv) == 1
    check_message(capsys.readouterr().err)


def test_a_phase_s_own_kernels_micro_batches_and_remat_are_those_of_its_program(main_line):
    own = {"loss_kernel": "reference", "num_microbatches": 3, "remat": "dots"}
    phoenix = dataclasses.replace(main_line["phoenix"], config=main_line["phoenix"].config.model_copy(update=own))
    train, evaluation = request_of(phoenix, "train"), request_of(phoenix, "eval")
    assert (train.attention_kernel, train.loss_kernel) == ("splash", "reference")
    assert (train.num_microbatches, train.remat) == (3, "dots")
    assert evaluation == request_of(main_line["phoenix"], "eval")
    check_message(compile_report._program(train, COMPILED, ["phoenix"])[1])


def dry_run(capsys, tmp_path, *arguments, code=2):
    """Return what the command line prints, with the compiles answered by `outcome_of`."""
    ended = main(["--scale", "8b", "--dry-run", "--prefix", str(tmp_path), *arguments])
    printed = capsys.readouterr()
    assert ended == code, printed.err
    return printed


def report_in(out):
    """Return the report in a dry run's output, without the line on the cache folder."""
    return out.partition("Compiled for machines")[2].partition("\n")[2]


def test_the_command_line_compiles_each_program_of_the_main_line_once(tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(compile_report, "outcome_of", lambda request: (asked.append(request), (COMPILED, False))[1])
    printed = dry_run(capsys, tmp_path, "--compile-all")
    assert len(asked) == len(set(asked)) == 6
    check_message(report_in(printed.out))
    check_message(printed.err)
    assert not list(tmp_path.iterdir())
    assert "Compiled" not in dry_run(capsys, tmp_path).out
    (to_run,) = (line for line in printed.out.splitlines() if line.startswith("once decided "))
    assert "--scale 8b" in to_run and "--compile" not in to_run  # which a run refuses


def test_by_default_the_largest_program_of_each_kind_stands_for_smaller_ones(tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(compile_report, "outcome_of", lambda request: (asked.append(request), (COMPILED, False))[1])
    printed = dry_run(capsys, tmp_path, "--compile")
    assert [request.global_batch_size for request in asked if request.step == "train"] == [1024, 4096]
    assert {request.step for request in asked} == {"train", "eval"}
    check_message(printed.err)
    rows = report_in(printed.out).partition("\nphase ")[2].partition("\n\n")[0]
    check_message(rows)
    table = [row.split() for row in rows.splitlines()]
    steps = {row[0]: float(row[-5]) for row in table if row[:1] in (["ocelot"], ["starling"])}
    assert steps["ocelot"] == pytest.approx(3 / 4 * steps["starling"], rel=0.01)

    def outcome_of(request):  # as many rows of a chip as ocelot's
        asked.append(request)
        return (DoesNotFit("too large") if request.global_batch_size > 3072 else COMPILED, False)

    asked.clear()
    monkeypatch.setattr(compile_report, "outcome_of", outcome_of)
    dry_run(capsys, tmp_path, "--compile")
    sizes = [request.global_batch_size for request in asked if request.step == "train" and request.remat == "full"]
    assert sizes[:3] == [1024, 4096, 3072], "a smaller one is compiled where the largest does not fit"


def test_a_step_in_more_micro_batches_or_with_more_memory_is_compiled_itself(tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(compile_report, "outcome_of", lambda request: (asked.append(request), (COMPILED, False))[1])
    printed = dry_run(capsys, tmp_path, "--compile", "--set", "starling.num_microbatches=4")
    train = [(request.global_batch_size, request.num_microbatches) for request in asked if request.step == "train"]
    assert train == [(1024, 1), (3072, 1), (4096, 4)]
    assert "< " not in printed.out.partition("\nphase ")[2].partition("\n\n")[0]
    asked.clear()
    dry_run(capsys, tmp_path, "--compile", "--set", "ocelot.num_microbatches=3", "--set", "starling.num_microbatches=4")
    train = [(request.global_batch_size, request.num_microbatches) for request in asked if request.step == "train"]
    assert train == [(1024, 1), (4096, 4)], "as many sequences at a time, and more of them"


def test_a_failed_compile_is_one_message_without_a_traceback(tmp_path, capsys, monkeypatch):
    def outcome_of(asked):
        raise RuntimeError(
            "compiling the train step for 1 x v4-2048 failed:\nTraceback (most recent call last):\n  File ...\n"
            "ValueError: attention kernel 'splash': 100 tokens of a row are not a whole number of blocks of 128.\n"
            "--------------------\nFor simplicity, JAX has removed its internal frames."
        )

    monkeypatch.setattr(compile_report, "outcome_of", outcome_of)
    argv = ["--scale", "8b", "--dry-run", "--compile", "--prefix", str(tmp_path)]
    assert main(argv) == 1
    check_message(capsys.readouterr().err)


def test_a_compile_is_for_people_and_json_for_programs(tmp_path, capsys):
    argv = ["--scale", "8b", "--dry-run", "--compile", "--json", "--prefix", str(tmp_path)]
    assert main(argv) == 1
    check_message(capsys.readouterr().err)


@pytest.mark.parametrize("command", [(), ("why", "kestrel")])
def test_a_run_compiles_nothing_ahead_and_does_not_pass_over_the_wish(tmp_path, capsys, command):
    argv = [*command, "--scale", "8b", "--compile", "--prefix", str(tmp_path)]
    assert main(argv) == 1
    check_message(capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fits", "typed"),
    [
        # Of the 3 sequences a chip, 2 are no part.
        (lambda asked: asked.num_microbatches == 3, "--set ocelot.num_microbatches=3"),
        (lambda asked: asked.model_parallel == 2, "--set ocelot.model_parallel=2 --set starling.model_parallel=1"),
    ],
)
def test_the_printed_option_makes_the_step_fit(tmp_path, capsys, monkeypatch, fits, typed):
    def outcome_of(asked):
        is_large = asked.step == "train" and asked.global_batch_size == 3072
        return (DoesNotFit("CompileTimeHbmOom: 40G exceeds 30.75G") if is_large and not fits(asked) else COMPILED), True

    monkeypatch.setattr(compile_report, "outcome_of", outcome_of)
    printed = dry_run(capsys, tmp_path, "--compile-all").out
    assert "  does not fit    CompileTimeHbmOom: 40G exceeds 30.75G" in printed
    assert f"  fits with       {typed}: 8.00 GiB\n" in printed
    assert "too large" in printed
    assert "\nall that fit " in printed
    cured = dry_run(capsys, tmp_path, "--compile-all", *typed.split()).out
    assert "does not fit" not in cured and "too large" not in cured and "\nall  " in cured
    assert "ocelot, jellyfish, phoenix" in cured and "starling, deeper_starling" in cured


def test_a_report_says_where_no_change_helps(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compile_report, "outcome_of", lambda asked: (DoesNotFit("too large"), True))
    printed = dry_run(capsys, tmp_path, "--compile-all").out
    check_message(report_in(printed))


def test_an_impossible_slice_is_refused_before_compiling(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compile_report, "outcome_of", None)
    for option in ("num_microbatches=2", "attention_kernel=tokamax"):
        argv = ["--scale", "8b", "--dry-run", "--compile", "--prefix", str(tmp_path), "--set", f"ocelot.{option}"]
        assert main(argv) == 1
        check_message(capsys.readouterr().err)


def test_the_evaluation_that_is_compiled_is_the_one_that_runs(main_line):
    for phase, devices in ((main_line["kestrel"], 512), (main_line["phoenix"], 1024)):
        evaluation = request_of(phase, "eval")
        config = EmaEvalConfig.model_fields["windows_per_batch"]
        assert evaluation.global_batch_size == window_batch(config.default, devices) == devices
        assert evaluation.layout.shape == (phase.resources.num_slices, devices // phase.resources.num_slices, 1, 1)


def test_held_out_text_is_compiled_over_the_mesh_of_the_run_that_measures_it(main_line):
    kestrel = main_line["kestrel"]
    usual = programs_of(kestrel)
    assert usual["validation"] == usual["eval"], "one program, compiled once"
    own = {"model_parallel": 4, "context_parallel": 2, "loss_kernel": "chunked"}
    changes = {**own, "skip": SkipRule(window_steps=7, sigma=6.0, warmup_steps=2, max_consecutive=3)}
    spread = programs_of(dataclasses.replace(kestrel, config=kestrel.config.model_copy(update=changes)))
    assert spread["validation"].layout == spread["train"].layout
    assert spread["validation"] == dataclasses.replace(spread["eval"], **own, global_batch_size=64)
    without = dataclasses.replace(kestrel, config=kestrel.config.model_copy(update={"validate_every_steps": 0}))
    assert "validation" not in programs_of(without)


def test_held_out_text_is_counted_beside_the_state_of_the_run_that_measures_it(tmp_path, capsys, monkeypatch):
    outcome: list[Compiled | DoesNotFit] = [COMPILED]
    monkeypatch.setattr(
        compile_report, "outcome_of", lambda asked: (outcome[0] if asked.step == "eval" else COMPILED, True)
    )
    printed = dry_run(capsys, tmp_path, "--compile-all").out
    beside = 8 + 3 * 4 * EIGHT_B.model.num_parameters / 1024 / 2**30
    assert f"  while it trains {beside:.2f} GiB with moments and average, of " in printed
    assert printed.count("  while it trains ") == 3 and "does not fit" not in printed

    outcome[0] = dataclasses.replace(COMPILED, peak_memory_in_bytes=31 * 2**30)  # and 32 are all that a chip has
    printed = dry_run(capsys, tmp_path, "--compile-all").out
    check_message(report_in(printed))

    outcome[0] = DoesNotFit("too large")
    printed = dry_run(capsys, tmp_path, "--compile-all", "--set", "kestrel.model_parallel=2").out
    assert "--set kestrel.validate_every_steps=0" in printed


def test_a_larger_evaluation_does_not_stand_for_the_held_out_text_of_the_run(tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(compile_report, "outcome_of", lambda request: (asked.append(request), (COMPILED, False))[1])
    printed = dry_run(capsys, tmp_path, "--compile", "--set", "ema_eval/kestrel.windows_per_batch=1024").out
    assert {1024, 512} <= {request.global_batch_size for request in asked if request.step == "eval"}
    assert [line for line in printed.splitlines() if line.startswith("  while it trains ") and line.endswith("kestrel")]


def test_phases_that_do_not_fit_each_get_their_own_cure_and_none_undoes_another(tmp_path, capsys, monkeypatch):
    def outcome_of(request):
        sequences = request.global_batch_size // request.num_microbatches
        return (COMPILED if request.step == "eval" or sequences <= 1024 else DoesNotFit("too large"), True)

    monkeypatch.setattr(compile_report, "outcome_of", outcome_of)
    printed = dry_run(capsys, tmp_path, "--compile-all").out
    typed = [
        line.partition("fits with")[2].partition(":")[0].split() for line in printed.splitlines() if "fits with" in line
    ]
    reported = [option for line in typed for option in line if option != "--set"]
    assert {"ocelot.num_microbatches=3", "starling.num_microbatches=4"} <= set(reported)
    assert len({option.partition("=")[0] for option in reported}) == len(reported)
    assert (
        "does not fit" not in dry_run(capsys, tmp_path, "--compile-all", *(word for line in typed for word in line)).out
    )
