import subprocess
import sys

from fractionate import statistics


def test_importing_it_stays_light():
    heavy = "torch", "transformers", "pandas", "statsmodels", "scipy.stats"
    script = f"import sys, fractionate.statistics; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_export_exists_and_is_documented():
    for name in statistics.__all__:
        assert getattr(statistics, name).__doc__, name
