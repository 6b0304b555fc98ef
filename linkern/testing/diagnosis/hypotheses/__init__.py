"""Known deviations from an operator, as data: each predicts what it would return.

A hypothesis measures its parameters from what a target answered to fixed problems, and
proposes deviations; `testing.diagnosis.diagnose` names one only if it predicts every
answer within rounding. Every module of this package registers its hypotheses.
"""

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
