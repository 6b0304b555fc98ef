"""Kinds of problems of operators with gates: how strong, how parallel, how large.

A kind names a draw for each sort of input; `linkern.testing.problems.draws` holds the
draws. Every kind is one that production has or that shows a shortcut.
"""

from dataclasses import dataclass

__all__ = ["CALM", "RECORDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """The draw of each sort of input.

    Parameters
    ----------
    decays : str
        Of log-decays: ``mild``, ``typical``, ``strong``, ``open``, ``smooth``,
        ``steady``, ``floor``, ``sharp`` or ``trained``.
    keys : str
        Of the vectors that erase: ``unit``, ``long``, ``short``, ``parallel`` or
        ``repeated``.
    rates : str
        Of rates: ``uniform``, ``large``, ``smooth``, ``sigmoid`` or ``ends``.
    logits : str
        Of inputs that enter an exponential: ``normal``, ``shifted`` or ``spread``.
    scaled : bool
        Whether the inputs in which the output is linear are scaled by powers of two.
    """

    decays: str = "mild"
    keys: str = "unit"
    rates: str = "uniform"
    logits: str = "normal"
    scaled: bool = False

    @property
    def short(self) -> bool:
        """True if a bound on erases is proved of short sequences alone."""
        strong = self.decays in ("strong", "steady", "floor", "sharp", "trained")
        return strong or self.rates == "ends"


RECORDS = {
    "mild": Kind(),
    "typical": Kind("typical", logits="shifted"),
    # Mixes of no decay and of almost all, each token for itself.
    "strong": Kind("strong", logits="spread"),
    "open": Kind("open", logits="shifted"),
    # Keys that are not of length one, and erase more than there is.
    "long": Kind("mild", keys="long", rates="large", logits="spread"),
    # Keys of almost one direction, which make the triangular system hard.
    "parallel": Kind("mild", keys="parallel", logits="spread"),
    "aligned": Kind("open", keys="parallel", rates="ends", logits="shifted"),
    "repeated": Kind("typical", keys="repeated", rates="ends", logits="spread"),
    # Gates at both ends of what is declared, and just inside.
    "floor": Kind("floor", rates="ends", logits="shifted"),
    "steady": Kind("steady", keys="parallel", rates="sigmoid"),
    "sharp": Kind("sharp", keys="long", rates="sigmoid"),
    # What layers make of normal activations.
    "trained": Kind("trained", rates="sigmoid"),
    # Short keys with rates that make up for it, and inputs of other magnitudes.
    "scaled": Kind("typical", keys="short", scaled=True),
    # Gates that are not at the ends of what they may be, for difference quotients.
    "smooth": Kind("smooth", rates="smooth"),
}
# Gates under which the sums of all tokens stay as large as they are.
CALM = ("mild", "open")
