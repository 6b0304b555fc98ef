"""Linear attention on Dask arrays: planning a graph, and the cost of blocks."""

import time

from .ground import DIM, HEADS, needed, package, tokens


class DaskGraphs:
    """Graphs of blocks that are never computed: the time and the number of tasks."""

    params = (["chain", "blelloch"], [16, 256])
    param_names = ("scan", "blocks")

    def setup(self, scan, blocks):
        self.dask, array = package("dask"), package("dask.array")
        needed("scan_of_blocks", "linkern.validate")
        self.call = needed("linear_attention")
        shape, chunks = (HEADS, 64 * blocks, DIM), (HEADS, 64, DIM)
        self.x = array.zeros(shape, chunks=chunks, dtype="float32")

    def plan(self, scan):
        with self.dask.config.set({"linkern.scan": scan}):
            return self.call(self.x, self.x, self.x).output

    def time_plan(self, scan, blocks):
        self.plan(scan)

    def track_tasks_for_each_block(self, scan, blocks):
        (optimized,) = self.dask.optimize(self.plan(scan))
        return len(dict(optimized.dask)) / blocks


class DaskBlocks:
    """Eight blocks, one after the other: the processor time over that of one call."""

    params = (["chain", "blelloch"], ["linear_attention", "gated_delta_rule"])
    param_names = ("scan", "operator")
    unit = "times"
    length = 16384

    def setup(self, scan, operator):
        self.dask, array = package("dask"), package("dask.array")
        needed("scan_of_blocks", "linkern.validate")
        self.call, self.plain = needed(operator), tokens(self.length)
        self.plain[1] /= DIM  # keys that erase
        chunks = (HEADS, self.length // 8, DIM)
        self.blocks = [array.from_array(x, chunks=chunks) for x in self.plain]

    def track_processor_time_over_memory(self, scan, operator):
        with self.dask.config.set({"linkern.scan": scan}):
            output = self.call(*self.blocks).output
        computed = output.compute(scheduler="sync")
        exact = self.call(*self.plain).output
        assert abs(computed - exact).max() < 1e-3 * abs(exact).max()
        return least(lambda: output.compute(scheduler="sync")) / least(
            lambda: self.call(*self.plain)
        )


def least(call, times=3):
    """Return the least processor time of a few calls, all threads together."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)
