"""`python -m gateway.doubles.github` runs the double until it is ended."""

import sys

from gateway.doubles.github.process import main

sys.exit(main())
