"""Target on several ranks: calls are cut into shards, and replies are joined."""

from linkern.testing.target.protocol import Call, Reply, TargetConfig
from linkern.testing.target.ranks.sharding import Sharding
from linkern.testing.target.ranks.shards import joined, shards
from linkern.testing.target.ranks.world import World

__all__ = ["OverRanks"]


class OverRanks:
    """A target that runs on several ranks, one process each.

    The processes of every number of ranks are kept, and started again when one dies.

    Parameters
    ----------
    config : TargetConfig
        Name, layout and options of the target, and the numbers of ranks.
    timeout, load_timeout : float
        Seconds that one call may take, and loading.
    """

    def __init__(
        self, config: TargetConfig, timeout: float, load_timeout: float
    ) -> None:
        self.timeout, self._load_timeout = timeout, load_timeout
        self._worlds = {ranks: World(ranks) for ranks in config.ranks}
        self.reopen(config)

    def call(self, call: Call) -> Reply:
        """Call the target once, on all ranks; reply as if it ran on one."""
        config = self._config
        sharding = call.sharding or Sharding(config.ranks[0], order=config.ranks_order)
        world = self._worlds[sharding.ranks]
        if not world.is_ready:
            world.open(config, self._load_timeout)
        parts = shards(call, sharding, config)
        replies = world.call(parts, config, self.timeout)
        return joined(replies, call, sharding, config)

    def reopen(self, config: TargetConfig) -> None:
        """Load the target to be called in another way, in the same processes."""
        self._config = config
        for world in self._worlds.values():
            world.leave()
        first = self._worlds[config.ranks[0]]
        self.opened = first.open(config, self._load_timeout)
        self.interface = self.opened.interface

    def restart(self) -> bool:
        """Have the next call run in new processes."""
        self.close()
        return True

    def close(self) -> None:
        """End all processes."""
        for world in self._worlds.values():
            world.end()
