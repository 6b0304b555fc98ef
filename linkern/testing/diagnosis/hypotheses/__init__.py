"""Known deviations from linear attention, as data: each predicts what it would return.

A family measures its parameters from what a target answered to fixed problems, and
proposes deviations; `testing.diagnosis.diagnose` names one only if it predicts every
answer within rounding.
"""
