"""Published figures: the paper's tables of generation, quoted beside measured ones.

None of them was measured here. Source: Katharopoulos et al. 2020, "Transformers are
RNNs: Fast Autoregressive Transformers with Linear Attention", tables 1 and 2
(throughput) and 5 (one image).
"""

from dataclasses import dataclass

__all__ = ["SOURCE", "TABLES", "QuotedRow", "QuotedTable"]

SOURCE = (
    'quoted from Katharopoulos et al. 2020, "Transformers are RNNs", '
    "tables 1, 2 and 5: whole models on other machines"
)


@dataclass(frozen=True)
class QuotedRow:
    """One method of a table."""

    # As in the paper.
    method: str
    # On a GPU, each method with the batch that suits it.
    images_per_second: float
    # For one image, batch 1.
    cpu_seconds: float
    gpu_seconds: float


@dataclass(frozen=True)
class QuotedTable:
    """Generating the images of one data set."""

    name: str
    # Tokens of an image; layers of the model, each with 8 heads of 32.
    length: int
    layers: int
    rows: tuple[QuotedRow, ...]

    def ratio(self, row: QuotedRow) -> float:
        """Return the images of linear attention over those of a method."""
        linear = next(x for x in self.rows if x.method == "linear")
        return linear.images_per_second / row.images_per_second


TABLES = (
    QuotedTable(
        "MNIST",
        784,
        8,
        (
            QuotedRow("softmax", 0.45, 72.6, 10.2),
            QuotedRow("stateful softmax", 7.56, 7.4, 10.4),
            QuotedRow("LSH-1", 0.68, 46.0, 19.2),
            QuotedRow("LSH-4", 0.27, 112.0, 55.8),
            QuotedRow("linear", 142.8, 5.5, 7.3),
        ),
    ),
    QuotedTable(
        "CIFAR-10",
        3072,
        16,
        (
            QuotedRow("softmax", 0.004, 8651.4, 300.1),
            QuotedRow("stateful softmax", 0.32, 71.9, 70.4),
            QuotedRow("LSH-1", 0.015, 2318.9, 221.6),
            QuotedRow("LSH-4", 0.005, 5263.7, 683.9),
            QuotedRow("linear", 17.85, 45.1, 61.3),
        ),
    ),
)
