import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves the tests' own helpers (tiny_models.py) unfound
