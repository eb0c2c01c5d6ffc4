"""Write the samples: `python samples/generate.py OUT --seed 7 [--scale 1]`.

The same seed gives the same bytes. The samples in the repository are those of the default seed; the truth lies
beside each run as `truth.json`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from sample_generator import DEFAULT_SEED
from sample_generator.build import build


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the synthetic samples of tracelens.")
    parser.add_argument("out", type=Path, help="folder to write into")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of requests")
    options = parser.parse_args()
    build(options.out, options.seed, options.scale)


if __name__ == "__main__":
    main()
