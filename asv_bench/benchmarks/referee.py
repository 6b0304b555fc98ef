"""What importing costs, and what a verdict costs."""


def timeraw_import_linkern():
    return "import linkern"


class Verify:
    """Judge a fixed correct kernel in this process."""

    params = ["quick", "default"]
    param_names = ("profile",)
    timeout = 300
    number = 1
    repeat = 2
    rounds = 1

    def time_verify(self, profile):
        from linkern.testing import verify
        from linkern.testing.correct import CORRECT

        verify(CORRECT["chunk_16"], op="linear_attention", profile=profile)
