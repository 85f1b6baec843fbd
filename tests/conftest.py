"""Settings and fixtures that the whole suite shares.

- Hypothesis tries the same examples in each run, without a deadline, since a first call compiles.
- XLA optimises nothing, also in the processes that tests start. All processes share one cache of compiled programs.
- One fake Cloud Storage and one Ray cluster serve all tests of a worker; the first test that needs them starts them.
- The longest files run first. Files that share a slow start run on one worker.
"""

import atexit
import functools
import gc
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from marin_dag.ledger import provenance
from marin_dag.run.ray.cluster import ensure_token
from tests import catalogue, process_settings
from tests.gcs_server.control import GcsServerProcess
from tests.s3_server.server import S3Server

ROOT = Path(__file__).parents[1]
BUCKET = "test-bucket"
OPTIMIZATION = "--xla_backend_optimization_level"
ONE_MODULE = "--xla_cpu_parallel_codegen_split_count=1"
OLDER_FUSIONS = "--xla_cpu_use_fusion_emitters=false"
"""A flag of JAX 0.10's XLA; later versions refuse it."""
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_IN_BYTES = 2**31
SHARED_BY_WORKERS = "FOLDER_OF_ALL_TESTS"
LONGEST_FILES = (
    "tests/runtime/cost/test_compile_for_real.py",
    "tests/end_to_end/test_kill.py",
    "tests/steps/test_train_phase_gang.py",
    "tests/steps/test_lm_eval_gang.py",
    "tests/docs/test_own_recipe.py",
    "tests/marin_dag/run/test_kill.py",
    "tests/steps/test_train_phase.py",
    "tests/marin_dag/run/ray/test_gang.py",
    "tests/end_to_end/test_whole_run.py",
    "tests/marin_dag/run/ray/test_cluster.py",
    "tests/marin_dag/run/ray/test_detach.py",
    "tests/steps/test_train_phase_killed.py",
    "tests/marin_dag/run/test_driver.py",
    "tests/steps/test_hf_import.py",
    "tests/runtime/parallel/test_eight_devices.py",
    "tests/infra/test_slurm.py",
)
"""Files that start first. A long file that starts last would keep one worker busy while the others wait."""
TOGETHER = {
    "a Ray cluster with a dashboard": (
        "tests/marin_dag/run/ray/test_cluster.py",
        "tests/marin_dag/run/ray/test_detach.py",
    ),
    # `ray_cluster` takes seconds to start, and processor time while it runs.
    "a Ray cluster": (
        "tests/marin_dag/run/ray/test_control_actor.py",
        "tests/marin_dag/code/test_audit.py",
        "tests/marin_dag/ledger/test_fencing.py",
        "tests/marin_dag/run/test_force.py",
        "tests/marin_dag/run/test_driver.py",
        "tests/marin_dag/run/test_input_files.py",
        "tests/marin_dag/run/test_output_warnings.py",
        "tests/marin_dag/run/test_request_polling.py",
    ),
    # Importing torch takes six seconds (tests/deferred_import.py).
    "torch": (
        "tests/runtime/evaluation/test_harness.py",
        "tests/runtime/interop/test_huggingface.py",
        "tests/runtime/model/test_llama.py",
        "tests/runtime/model/test_rotary.py",
        "tests/runtime/optim/test_adamw.py",
        "tests/runtime/training/test_train_step_against_torch.py",
        "tests/steps/test_evaluation.py",
        "tests/steps/test_hf_import.py",
    ),
}
"""Groups of files that one worker runs, by what they share."""

settings.register_profile("suite", derandomize=True, deadline=None, print_blob=True, max_examples=50)
settings.load_profile("suite")

# A test computes little, so optimising machine code would take most of its time. XLA therefore compiles without
# optimisation and in one module, since all cores are busy. JAX 0.10 uses its older generator of fusions, which takes a
# third of the time. To compile as a run does, set XLA_FLAGS=--xla_backend_optimization_level=3.
if OPTIMIZATION not in os.environ.get("XLA_FLAGS", ""):
    fusions = OLDER_FUSIONS if importlib.metadata.version("jaxlib").startswith("0.10.") else ""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {OPTIMIZATION}=0 {ONE_MODULE} {fusions}".strip()

# Tests write to memory where the machine has enough (a container may have little). Flushing to a disk would prove
# nothing: tests kill processes, not machines. The process that started the workers removes their shared folder.
if SHARED_BY_WORKERS not in os.environ:
    if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > SHARED_MEMORY_IN_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHARED_MEMORY))
    os.environ[SHARED_BY_WORKERS] = tempfile.mkdtemp(prefix="tests", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
    atexit.register(shutil.rmtree, os.environ[SHARED_BY_WORKERS])

# All processes share compiled programs, above all those that are killed and started again. A folder that the developer
# sets also shortens the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{os.environ[SHARED_BY_WORKERS]}/programs")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# All processes share the summaries of source files. A test of their absence sets a folder of its own.
os.environ.setdefault("MARIN_DAG_CACHE", f"{os.environ[SHARED_BY_WORKERS]}/cache")

# gcsfs reads this at its import, which may come before the first fake Cloud Storage. If it is unset, gcsfs spends a
# minute asking a server for the kind of a bucket.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

# Ray runs its workers at niceness 15. Beside other tests on a busy machine, a step of one second would take a minute.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 -- its own name

# A script's background job ignores SIGINT, and so would every process that the suite starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def asks_git_once() -> Iterator[None]:
    """Ask git for the state of a folder once a process instead of once a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "git_state", functools.cache(provenance.git_state))
        yield


@pytest.fixture(autouse=True)
def no_variables_of_an_earlier_step() -> Iterator[None]:
    """Restore the variables that a step of this process sets for JAX, which child processes would read."""
    flags = os.environ["XLA_FLAGS"]
    yield
    os.environ["XLA_FLAGS"] = flags
    os.environ.pop("PJRT_NPROC", None)


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServerProcess]:
    """Yield this project's fake Cloud Storage, in its own process, so that Ray's workers reach it too."""
    with GcsServerProcess(buckets=[BUCKET]) as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment().items():
            environment.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def gcs_bucket(gcs_server: GcsServerProcess) -> str:
    """Name of a bucket on the fake Cloud Storage."""
    return BUCKET


@pytest.fixture(scope="session")
def importable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder for modules that tests write; this process and the cluster's workers import from it."""
    folder = tmp_path_factory.mktemp("importable")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def ray_cluster(gcs_bucket: str, importable: Path) -> Iterator[None]:
    """Yield a small Ray cluster without a dashboard, whose workers reach the fake Cloud Storage."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_AUTH_TOKEN", "only-for-this-test-session-0123456789")
        ensure_token()
        environment.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *sys.path]))
        import ray
        from ray._private.node import Node

        options = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 128 * 2**20}
        # The log monitor sends workers' output to drivers. No test reads it, and it takes a twentieth of a core.
        environment.setattr(Node, "start_log_monitor", lambda node: None)
        ray.init(address="local", num_cpus=2, **options)  # "local": never join a cluster that runs on this machine
        yield
        ray.shutdown()
        os.environ.pop("RAY_AUTH_MODE", None)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Yield a fake S3 in this process; the environment holds its address and credentials."""
    with S3Server() as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment().items():
            environment.setenv(name, value)
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def s3_bucket(s3_server: S3Server) -> str:
    """Name of a bucket on the fake S3."""
    return BUCKET


class Together(LoadFileScheduling):
    """Scheduler that gives a whole file, and all files of one group of `TOGETHER`, to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((shared for shared, files in TOGETHER.items() if file in files), file)


@pytest.hookimpl(optionalhook=True)
def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-messages", action="store_true", help="rewrite tests/messages/")


def pytest_configure(config: pytest.Config) -> None:
    catalogue.start(is_updating=config.getoption("--update-messages"))
    # A plugin, since pytest calls a conftest's `pytest_fixture_setup` for no fixture of the whole session.
    config.pluginmanager.register(process_settings)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Check after a passed test that the catalogue has no further message for it."""
    result = yield
    catalogue.finish_test()
    return result


def pytest_sessionfinish() -> None:
    catalogue.write_updates()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Return the scheduler of `--dist loadfile`."""
    return Together(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage during imports, and exclude the imported objects from later collections."""
    gc.disable()
    collected = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return collected


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the longest files to the front."""
    rank = {ROOT / file: index for index, file in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Return the argument's name for bytes: compressed bytes hold the time, and two workers would disagree."""
    return argname if isinstance(val, bytes) else None
