# The front door. `make` lists the targets; only python3 and make are needed.
#
# Where python3 is too old, name another one:  make install PYTHON=python3.12
# pip reads its usual settings, so a CPU-only torch can be chosen through
# PIP_EXTRA_INDEX_URL without any change here.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Tests must not reach the Hub or draw progress bars. Tiny models run slower, not
# faster, when spread over many cores: one test a core instead.
TEST_ENV := HF_HUB_OFFLINE=1 TQDM_DISABLE=1 OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1}
JOBS ?= auto

.DEFAULT_GOAL := help
.PHONY: help install reproduce lab test lint train results costs laptop eagle layers losses \
    notebooks book lock clean python-ok

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile \
	| while IFS='|' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

install: $(INSTALLED) ## create the virtual environment with the locked versions

reproduce: $(INSTALLED) ## run every method on the pocket tier, write tables and figures
	$(BIN)/xpress-lab reproduce --out outputs/reproduce

lab: $(INSTALLED) ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks/

# Both runs always happen, and either one can fail the target. A file stays with one
# worker, so that what its tests share is made once. The longest notebook comes first:
# beginning it late would leave the other workers idle at the end.
LONGEST := notebooks/04_train_a_refiner.ipynb
test: $(INSTALLED) ## run the tests, then every notebook from top to bottom
	@status=0; \
	$(TEST_ENV) MPLBACKEND=Agg $(BIN)/python -m pytest -n $(JOBS) --dist loadfile tests || status=1; \
	$(TEST_ENV) $(BIN)/python -m pytest -n $(JOBS) --nbmake --nbmake-kernel=python3 \
	    --nbmake-timeout=300 --timeout=1200 $(LONGEST) notebooks/*.ipynb || status=1; \
	exit $$status

lint: $(INSTALLED) ## check style and formatting of modules and notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

OTHERS := eagle,markov-gated,markov-rnn,dflash/confidence,markov/confidence,xpress/confidence
train: $(INSTALLED) ## train the pocket tier again from its generated corpus
	$(BIN)/xpress-lab train --tier pocket
	$(BIN)/xpress-lab train --tier pocket --only $(OTHERS),cards

PASSES := OMP_NUM_THREADS=1 $(BIN)/xpress-lab bench --methods markov,xpress \
    --passes 0,4,6,fixed --limit 72
TREES := OMP_NUM_THREADS=1 $(BIN)/xpress-lab bench --budget 16,32,64 --limit 10 \
    --rescoring marginals,paths \
    --methods ar,dflash,xpress,dflash+ddtree,dflash+presto,xpress+ddtree,xpress+presto \
    --temperature 0 --temperature 1
BATCHES := OMP_NUM_THREADS=1 $(BIN)/xpress-lab bench --batch-size 1,4,16,32 \
    --limit 22 --turns 3 --methods ar,dflash,markov,xpress --confidence 0,auto \
    --temperature 0 --temperature 1
CERTIFICATES := --candidates 16,64,256,1024 --temperature 0 --temperature 1
FAMILY := OMP_NUM_THREADS=1 $(BIN)/xpress-lab bench --limit 24 \
    --temperature 0 --temperature 1
results: $(INSTALLED) ## measure the shipped results in data/results anew
	rm -rf data/results/pocket
	$(BIN)/xpress-lab reproduce --out data/results/pocket
	rm -f data/results/passes-T*.csv
	$(PASSES) --temperature 0 --out data/results/passes-T0.csv
	$(PASSES) --temperature 1 --seed 0 --seed 1 --seed 2 --out data/results/passes-T1.csv
	rm -f data/results/trees.csv
	$(TREES) --out data/results/trees.csv
	rm -f data/results/batches.csv
	$(BATCHES) --out data/results/batches.csv
	rm -f $(addprefix data/results/,methods.csv calibration.csv cuts.csv)
	$(FAMILY) --methods all --rescoring marginals,paths --out data/results/methods.csv
	$(FAMILY) --calibrate dflash,markov,xpress --out data/results/calibration.csv
	$(FAMILY) --methods ar,markov,xpress --confidence 0,0.2,0.4,0.6,0.8 \
	    --out data/results/cuts.csv

costs: $(INSTALLED) ## measure the shipped times of passes and rounds anew (leave it alone)
	rm -f $(addprefix data/results/,kernels-*.csv tuning.csv certificates.csv profile.csv)
	for dtype in float32 bfloat16; do $(BIN)/xpress-lab bench --kernels --device cpu \
	    --dtype $$dtype --out data/results/kernels-$$dtype.csv || exit 1; done
	$(BIN)/xpress-lab bench --tune --limit 8 --out data/results/tuning.csv
	$(BIN)/xpress-lab bench $(CERTIFICATES) --limit 72 --seed 0 --seed 1 --seed 2 \
	    --out data/results/certificates.csv
	OMP_NUM_THREADS=1 $(BIN)/xpress-lab bench --profile --methods ar,dflash,xpress \
	    --limit 1 --max-new-tokens 32 --out data/results/profile.csv

LAPTOP := --tier laptop --dtype bfloat16 $(if $(PROMPTS),--prompts $(PROMPTS))
laptop: $(INSTALLED) ## fetch and measure the laptop tier, for hours: make laptop PROMPTS=DIR
	$(BIN)/xpress-lab fetch laptop
	$(BIN)/xpress-lab evaluate $(LAPTOP) --out data/results/laptop
	$(BIN)/xpress-lab bench $(LAPTOP) --tune --limit 2 --out data/results/laptop/tuning.csv
	$(BIN)/xpress-lab bench $(LAPTOP) --context 256,1024,4096 \
	    --methods ar,dflash,markov,xpress --out data/results/laptop/context.csv
	$(BIN)/xpress-lab bench $(LAPTOP) --profile --methods ar,dflash,xpress --limit 1 \
	    --benchmarks gsm8k,humaneval,mt-bench --max-new-tokens 16 \
	    --out data/results/laptop/profile.csv
	$(BIN)/xpress-lab bench $(LAPTOP) --batch-size 1,4,16,32 --limit 5 --turns 3 \
	    --max-new-tokens 32 --methods ar,dflash,markov,xpress \
	    --out data/results/laptop/batches.csv
	$(BIN)/xpress-lab bench $(LAPTOP) $(CERTIFICATES) --limit 5 \
	    --out data/results/laptop/certificates.csv

EAGLE := outputs/train/laptop
eagle: $(INSTALLED) ## train EAGLE-3 for the laptop target and measure it: needs PROMPTS=DIR
	$(BIN)/xpress-lab fetch laptop
	$(BIN)/xpress-lab train --tier laptop --texts 2000 --prompts $(PROMPTS) \
	    --only questions,responses,eagle --out $(EAGLE)
	$(BIN)/xpress-lab bench $(LAPTOP) --weights $(EAGLE) --limit 4 \
	    --methods ar,dflash,markov,eagle,xpress --out data/results/laptop/eagle/rows.csv

layers: $(INSTALLED) ## train and measure the pocket drafter with 1, 2 and 3 layers
	$(BIN)/xpress-lab sweep-layers --layers 1,2,3 --out outputs/layers

losses: $(INSTALLED) ## train and measure xpress without each term of its loss in turn
	$(BIN)/xpress-lab sweep-losses --out outputs/losses

notebooks: $(INSTALLED) ## execute the notebooks in place, keeping their outputs
	$(BIN)/python -m xpress_lab.notebooks

book: $(INSTALLED) ## build the site of the executed notebooks in outputs/book
	$(BIN)/python -m xpress_lab.book

# The stamp comes last, so an interrupted install starts again next time.
$(INSTALLED): pyproject.toml requirements.lock
	@$(MAKE) --no-print-directory python-ok
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c requirements.lock -e '.[dev]'
	@touch $@

python-ok:
	@command -v $(PYTHON) >/dev/null || \
	{ echo "$(PYTHON) was not found; install Python 3.11 or newer." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "xpress-lab needs Python 3.11 or newer, and $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>&1). Try: make install PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	{ echo "$(PYTHON) lacks the venv module; install it" \
	    "(on Debian and Ubuntu: apt install python3-venv)." >&2; exit 1; }

# torch comes first so that nothing else chooses its version, and with it the Triton
# that its CUDA build asks for: one lock must fit both builds. What only some platforms
# can install (CUDA libraries, the +cpu mark) is left out.
LOCK_TORCH ?= 2.13.0
LOCK_TRITON ?= 3.7.1
LOCK_VENV ?= .venv-lock
lock: python-ok ## write requirements.lock anew from a clean Python 3.11 environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	{ echo "the lock is for Python 3.11: make lock PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install torch==$(LOCK_TORCH)
	$(LOCK_VENV)/bin/python -m pip install torch==$(LOCK_TORCH) \
	    triton==$(LOCK_TRITON) -e '.[dev]'
	$(LOCK_VENV)/bin/python -m pip freeze --all --exclude pip \
	    --exclude-editable > $(LOCK_VENV)/frozen.txt
	{ echo '# Constraints for Python 3.11 on a CPU: everything that .[dev] brings.'; \
	  echo '# Written by `make lock`; use with: pip install -c requirements.lock -e .[dev]'; \
	  sed -e 's/+[a-z0-9.]*$$//' -e '/^nvidia-/d' -e '/^cuda-/d' \
	      $(LOCK_VENV)/frozen.txt; } > $(LOCK_VENV)/requirements.lock
	mv $(LOCK_VENV)/requirements.lock requirements.lock
	rm -rf $(LOCK_VENV)

clean: ## remove the virtual environment, outputs and caches
	rm -rf $(VENV) $(LOCK_VENV) outputs build dist *.egg-info
	rm -rf .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
