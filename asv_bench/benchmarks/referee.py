"""What importing costs, and what a verdict costs."""

from pathlib import Path

from .ground import needed, skip

EXAMPLES = Path(__file__).parents[2] / "examples"


def timeraw_import_linkern():
    return "import linkern"


def timeraw_import_operators():
    return "import linkern; linkern.linear_attention"


def timeraw_first_call():
    return """
    import numpy, linkern
    x = numpy.ones((4, 2))
    linkern.linear_attention(x, x, x)
    """


def timeraw_import_referee():
    return "from linkern.testing import verify"


class Verify:
    """Judge a fixed correct kernel, with state and gradients, in this process."""

    params = ["quick", "default"]
    param_names = ("profile",)
    timeout = 300
    number = 1
    repeat = 2
    rounds = 1
    checks = ()  # all

    def setup(self, profile):
        self.verify = needed("verify", "linkern.testing")
        kernels = needed("CORRECT", "linkern.testing.kernels.correct")
        if "chunk_32_with_state" not in kernels:
            skip("this commit has no kernel chunk_32_with_state")
        entry = kernels["chunk_32_with_state"]  # in earlier commits the kernel itself
        self.kernel = getattr(entry, "kernel", entry)

    def time_verify(self, profile):
        some = {"checks": self.checks} if self.checks else {}
        self.verify(self.kernel, op="linear_attention", profile=profile, **some)


class VerifyExample:
    """Judge the examples as a newcomer does: by name, in processes of their own."""

    params = [
        ["chunked_attention:attention", "gated_delta_rule:gated_delta_rule"],
        ["quick", "default"],
    ]
    param_names = ("kernel", "profile")
    timeout = 600
    number = 1
    repeat = 2
    rounds = 1
    checks = ()  # all

    def setup(self, kernel, profile):
        self.verify = needed("verify", "linkern.testing")
        module, name = kernel.split(":")
        if not (EXAMPLES / f"{module}.py").exists():
            skip(f"there is no example {module}")
        operators = {"attention": "linear_attention"}
        self.target = f"{EXAMPLES / module}.py:{name}"
        self.op = operators.get(name, name)

    def time_verify(self, kernel, profile):
        some = {"checks": self.checks} if self.checks else {}
        self.verify(self.target, op=self.op, profile=profile, **some)


class Exact:
    """The exact answer to one problem, token by token in float64, T = 512."""

    def setup(self):
        import numpy as np

        self.evaluate = needed("evaluate", "linkern.oracle")
        self.inputs = np.random.default_rng(0).uniform(0.1, 1, size=(3, 1, 512, 64))

    def time_evaluate(self):
        self.evaluate(*self.inputs, causal=True)
