"""`torchrun -m calibration.execute SCHEDULE ...`: one rank of a run across nodes."""

from __future__ import annotations

import sys

from calibration.execute.torchrun import main

sys.exit(main())
