"""What importing costs, and what a verdict costs."""


def timeraw_import_linkern():
    return "import linkern"


class Verify:
    """Judge a fixed correct kernel, with state and gradients, in this process."""

    params = ["quick", "default"]
    param_names = ("profile",)
    timeout = 300
    number = 1
    repeat = 2
    rounds = 1

    def time_verify(self, profile):
        from linkern.testing import verify
        from linkern.testing.correct import CORRECT

        verify(CORRECT["chunk_32_with_state"], op="linear_attention", profile=profile)
