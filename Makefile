# make bench            from nothing to an answer, in minutes (EXPERIMENTS=..., PRESET=quick|full);
#                       on a GPU with more of it
# make gpu              a GPU at hand for a while (MINUTES=15): what is right and fast there, the
#                       board, points of papers; the same command goes on where it stopped
# make test             the tests of the code, five to six minutes on two CPU cores
# make test-published   makes published pages, boards and certificates again, and compares
# make test-accelerators  what programs ask of accelerators and of many devices, seen on a CPU
# make test-isa         what rests on rounding, as CPUs without AVX-512 and without AVX compute it,
#                       and tiny runs, which must be trained to the bits that were kept
# make test-slow        long forms of tests: pages, stories, further combinations, published numbers
# make test-browser     the leaderboard's page in a headless Chromium, which it installs on Debian
# make test-cluster     on Ray and on a Slurm of its own, both installed, started and stopped here
# make lint             ruff, mypy, and which room imports which
# make performance      packed training against one model at a time
# make aot              what a step asks of H100, H200 and TPU v5e, compiled without them (1.3 GB)
# make docs             docs/columns.md, from the declarations of columns, and the site in build/docs
# make pages            the site as it is published, with the board of today and of every tag, in build/pages
# make tutorial         executes docs/tutorial.ipynb, whose outputs are published
# make intervals       docs/intervals.md, by simulation: ten minutes of CPU
# make freedom         docs/freedom.md, degrees of freedom by formula and by rank: a quarter of an hour
# make assumptions      what theorems assume, on untrained ViT, BERT and GPT-2
# make test-pretrained  the tests that need the extra [pretrained]
#
# ACCEL=cpu|cuda12|cuda13|tpu chooses JAX's build, and with it what bench trains; the default asks
# nvidia-smi. Where only the workers of ON have GPUs, say which: ACCEL=cuda13.

PYTHON ?= python3
VENV ?= .venv
MINUTES ?= 15
# Workers, and the command that starts them, such as PROCESSES=8 ON='srun --gpus=1' on a cluster.
PROCESSES ?= $(and $(CUDA),$(shell command -v nvidia-cuda-mps-control),8)
ON ?=
WORKERS = $(if $(PROCESSES),--processes=$(PROCESSES)) $(if $(ON),--on='$(ON)')

# nvidia-smi names the newest CUDA its driver serves; JAX has none below 12.
CUDA := $(filter-out 8 9 10 11,$(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1))
ACCEL ?= $(if $(CUDA),$(if $(filter 12,$(CUDA)),cuda12,cuda13),cpu)
# A GPU takes more in the same minutes: first all figures of Dana et al. (2025) at the paper's size.
ifeq ($(filter cpu cuda12 cuda13 tpu,$(ACCEL)),)
$(error ACCEL must be cpu, cuda12, cuda13 or tpu, got $(ACCEL))
endif
ifneq ($(filter cuda%,$(ACCEL)),)
PRESET ?= bench-gpu
ifeq ($(origin EXPERIMENTS),undefined)
PAPER ?= dana2025
endif
EXPERIMENTS ?= board/typical
else
PRESET ?= bench
EXPERIMENTS ?= dana2025/heads board/typical
endif
EXTRA = $(if $(filter cpu,$(ACCEL)),,[$(ACCEL)])
# JAX's build for another CUDA, which a driver that was changed leaves behind; two do not go together.
STALE = $(if $(filter cuda%,$(ACCEL)),$(filter-out $(ACCEL),$(patsubst $(VENV)/.installed-%,%,$(wildcard $(VENV)/.installed-cuda*))))

ifeq ($(ACCEL),cpu)
export JAX_PLATFORMS = cpu
endif
# Tests hold float32 to 1e-5 and promise no accelerator.
test test-published test-accelerators test-isa test-slow test-pretrained test-browser test-cluster: export JAX_PLATFORMS = cpu

.PHONY: aot compile-for-accelerators bench gpu docs pages tutorial intervals freedom test test-published test-accelerators test-isa test-slow test-pretrained test-browser test-cluster lint performance assumptions clean FORCE
.DELETE_ON_ERROR:

# Why this trains on a CPU where a GPU may be meant.
ifeq ($(origin ACCEL) $(ACCEL),file cpu)
ifneq ($(shell command -v nvidia-smi),)
ON_CPU = @echo "nvidia-smi is here, but names no CUDA >= 12 (is the driver too old, or another version than its library?): this trains on the CPU"
else ifneq ($(ON),)
ON_CPU = @echo "no GPU is here: workers of ON train on CPUs; if they have GPUs, add ACCEL=cuda13"
endif
endif

bench: $(VENV)/.installed-$(ACCEL)
	$(ON_CPU)
	$(if $(PAPER),$(VENV)/bin/memobench run $(PAPER) --preset=paper --report $(WORKERS))
	$(VENV)/bin/memobench run $(EXPERIMENTS) --preset=$(PRESET) --report $(WORKERS)

gpu: $(VENV)/.installed-$(ACCEL) $(VENV)/.installed-test $(if $(filter cuda%,$(ACCEL)),$(VENV)/.installed-torch)
	$(ON_CPU)
	$(VENV)/bin/python -m memobench.experiments.performance.gpu --minutes=$(MINUTES)

test: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest -n 2 --dist=worksteal

test-published: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest -n 2 --dist=worksteal -m 'published and not slow'

test-accelerators: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest -n 2 --dist=worksteal -m 'accelerators and not slow'

test-isa: $(VENV)/.installed-test
	XLA_FLAGS=--xla_cpu_max_isa=AVX2 $(VENV)/bin/python -m pytest -n 2 --dist=worksteal -m 'rounding and not slow'
	XLA_FLAGS=--xla_cpu_max_isa=SSE4_2 $(VENV)/bin/python -m pytest -n 2 --dist=worksteal -m 'rounding and not slow'
	$(VENV)/bin/python -m pytest -m golden tests/test_golden.py

test-slow: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest -m slow

test-pretrained: $(VENV)/.installed-test $(VENV)/.installed-pretrained
	$(VENV)/bin/python -m pytest tests/experiments/assumptions

test-browser: $(VENV)/.installed-test $(VENV)/.installed-browser
	@(for x in chromium chromedriver; do command -v $$x || exit 1; done) >/dev/null || \
	  apt-get install --yes chromium chromium-driver
	MEMOBENCH_BROWSER=1 $(VENV)/bin/python -m pytest -m browser tests/browser

test-cluster: $(VENV)/.installed-test $(VENV)/.installed-ray
	@PATH=$$PATH:/usr/sbin; \
	  (for x in munged slurmctld slurmd slurmdbd mariadbd; do command -v $$x || exit 1; done) >/dev/null || \
	  ! command -v apt-get >/dev/null || { apt-get update --quiet=2 && DEBIAN_FRONTEND=noninteractive \
	  apt-get install --yes --no-install-recommends slurm-wlm slurmdbd munge mariadb-server; }
	$(VENV)/bin/python -m pytest -m cluster tests/cluster

lint: $(VENV)/.installed-lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

performance: $(VENV)/.installed-$(ACCEL) $(VENV)/.installed-torch
	$(VENV)/bin/python experiments/performance/packed_vs_alone.py
	$(VENV)/bin/python experiments/performance/labelled_contexts.py
	$(if $(CUDA),$(VENV)/bin/python experiments/performance/kernels.py)

# Apart, for compilers are plugins of JAX, and without a device each of its commands would complain.
aot:
	$(MAKE) VENV=build/aot ACCEL=cpu compile-for-accelerators

compile-for-accelerators: $(VENV)/.installed-aot
	$(VENV)/bin/python experiments/performance/registers.py
	$(VENV)/bin/python experiments/performance/accelerators.py

docs: $(VENV)/.installed-docs
	$(VENV)/bin/python -m memobench.experiments.pages.columns > docs/columns.md
	$(VENV)/bin/python -m memobench.experiments.pages.quotes README.md docs/*.md
	$(VENV)/bin/python -m sphinx --quiet --fail-on-warning --keep-going -c docs . build/docs
	@echo build/docs/docs/index.html

# Addresses that stay: results/leaderboard.html and .csv, and boards/VERSION/ of today's, earlier and each tag's board.
# On the site pages are HTML and folders have no list; a board of a tag has its files and weights alone.
BOARD = 'results/leaderboard.*' results/board/weights
pages: docs
	rm -rf build/pages && cp -r build/docs build/pages && rm -rf build/pages/.doctrees
	cp -r results/. build/pages/results
	echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' > build/pages/index.html
	version=$$($(VENV)/bin/python -c 'from memobench.board import table; print(table.VERSION)'); \
	for name in $$version $$(git tag); do \
	  tag=$$name; [ $$name != $$version ] || tag=HEAD; mkdir -p build/pages/boards/$$name; \
	  git archive $$tag results | tar -x --strip-components=1 -C build/pages/boards/$$name --wildcards $(BOARD) || true; done
	sed -i 's#<a href="[^"]*\(\.md\|weights\|boards/[^"]*\)">[^<]*</a> · ##g; s# · <a href="[^"]*\(\.md\|boards/[^"]*\)">[^<]*</a>##g' build/pages/boards/*/leaderboard.html
	for board in results/boards/*.html; do name=$$(basename $$board .html); mkdir -p build/pages/boards/$$name; \
	  cp results/boards/$$name.csv build/pages/boards/$$name/leaderboard.csv; \
	  echo "<meta http-equiv=\"refresh\" content=\"0; url=../../results/boards/$$name.html\">" > build/pages/boards/$$name/leaderboard.html; done
	find build/pages -name '*.html' | xargs sed -i 's#\(download="" \)\?href="\([./]*\)_downloads/[0-9a-f]*/leaderboard.html"#href="\2results/leaderboard.html"#g; s#\(download="" \)\?href="\([./]*\)_downloads/[0-9a-f]*/\(v[0-9]*\).html"#href="\2results/boards/\3.html"#g'
	sed -i 's#<a href="\(../\)\?board/weights">[^<]*</a> · ##; s#README.md"#docs/index.html"#; s#<a href="\([^"]*\)\.md"#<a href="\1.html"#g; s#>Markdown</a>#>tables</a>#' build/pages/results/leaderboard.html build/pages/results/boards/*.html

tutorial: $(VENV)/.installed-docs
	JAX_PLATFORMS=cpu $(VENV)/bin/python -c 'import nbformat, nbclient; path = "docs/tutorial.ipynb"; \
	  book = nbformat.read(path, 4); [cell.metadata.clear() for cell in book.cells]; \
	  nbclient.NotebookClient(book, record_timing=False).execute(); nbformat.write(book, path)'

intervals: $(VENV)/.installed-test
	$(VENV)/bin/python -m tests.coverage > docs/intervals.md

freedom: $(VENV)/.installed-test
	$(VENV)/bin/python -m memobench.experiments.pages.freedom > docs/freedom.md

assumptions: $(VENV)/.installed-$(ACCEL) $(VENV)/.installed-pretrained
	$(VENV)/bin/python experiments/assumptions/kruskal_rank.py

clean:
	rm -rf $(VENV)

# What is installed names the folder it is in: in a clone that was renamed or copied, and where the
# Python of the environment is gone, it is made anew. Its own file says that it was made here.
$(VENV)/.folder: FORCE
	@[ -x $(VENV)/bin/python ] && [ "$$(cat $@ 2>/dev/null)" = "$$(pwd -P)" ] || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "memobench needs Python >= 3.11; name one with: make PYTHON=/path/to/python3.11"; exit 1; }; \
	  $(PYTHON) -m venv $$([ ! -e $@ ] || echo --clear) $(VENV) && pwd -P > $@; }

FORCE:

$(VENV)/.installed-$(ACCEL): setup.cfg setup.py pyproject.toml $(VENV)/.folder
	$(if $(STALE),$(VENV)/bin/python -m pip uninstall --quiet --yes $(STALE:%=jax-%-plugin) $(STALE:%=jax-%-pjrt))
	$(if $(STALE),rm $(STALE:%=$(VENV)/.installed-%))
	$(VENV)/bin/python -m pip install --quiet --editable '.$(EXTRA)'
	@touch $@

$(VENV)/.installed-test $(VENV)/.installed-lint $(VENV)/.installed-docs $(VENV)/.installed-torch $(VENV)/.installed-pretrained $(VENV)/.installed-browser $(VENV)/.installed-ray: $(VENV)/.installed-%: setup.cfg $(VENV)/.installed-$(ACCEL)
	$(VENV)/bin/python -m pip install --quiet --editable '.[$*]'
	@touch $@

# The compilers alone: without --no-deps the libraries of CUDA come with them, 4.7 GB.
$(VENV)/.installed-aot: $(VENV)/.installed-$(ACCEL)
	jax=$$($(VENV)/bin/python -c 'import jax; print(jax.__version__)'); \
	$(VENV)/bin/python -m pip install --quiet --no-deps libtpu nvidia-cuda-nvcc nvidia-cuda-nvrtc nvidia-nvvm \
	  "jax-cuda13-plugin==$$jax" "jax-cuda13-pjrt==$$jax"
	@touch $@
