"""One host of a training phase, as a process of its own: CONFIG FOLDER INDEX HOSTS COORDINATOR.

CONFIG is a pickled TrainPhaseConfig; two devices in all, however many hosts there are. How many tokens it read of the
caches it writes to FOLDER/read-INDEX.
"""

import pickle
import sys
from pathlib import Path

import jax
import numpy as np

from marin_dag.context import Host
from runtime.data.cache import TokenCache
from steps.train_phase import train_phase
from tests.steps.test_train_phase import Attempt, Trajectory

if __name__ == "__main__":
    config, folder, index, num_hosts, coordinator = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", 2 // int(num_hosts))
    trajectory = Trajectory(Path(folder), "e" * 64)
    trajectory.attempts = 1
    attempt = Attempt(trajectory, None)
    attempt.host = Host(int(index), int(num_hosts), coordinator)
    read_all, counts = TokenCache.read_spans, []

    def counted(cache: TokenCache, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        counts.append(int(lengths.sum()))
        return read_all(cache, starts, lengths)

    TokenCache.read_spans = counted  # type: ignore[method-assign]
    train_phase.function(pickle.loads(Path(config).read_bytes()), attempt)
    assert jax.process_count() == int(num_hosts)
    assert jax.device_count() == 2
    Path(folder, f"read-{index}").write_text(str(sum(counts)))
