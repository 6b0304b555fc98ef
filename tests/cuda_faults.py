"""Faults in the kernels, by file: what is between backquotes, and what takes its place.

Barriers and waits for copies are not here, since all of them are faults when left out.
"""

__all__ = ["RACES", "WRONG"]

# Wrong numbers, or addresses of what is not there.
WRONG = {
    "additive": {
        "`written <= reader` ? left * scores[i]": "written < reader",
        "bool there = `row < count` && channel": "true",
        "bool there = row < count && `channel + column < channels`": "true",
        "bool there = `panel + k < features` &&": "true",
        "bool there = panel + k < features && `column < values` &&": "true",
        "if (`row >= count` || column >= values) continue;": "false",
        "if (row >= count || `column >= values`) continue;": "false",
        "if (`panel + k >= features` || column >= values) continue;": "false",
        "if (panel + k >= features || `column >= values`) continue;": "false",
        "for (int k = 0; k < kPanel && `panel + k < features`; k++)": "true",
        "thread < kPanel && `panel + thread < features`)": "true",
        "`thread < kPanel` && panel + thread < features)": "true",
        "`thread < count` ? log_decay[": "true",
        "if (Decay && `thread < kChunk`)\n      tiles.log_decay": "true",
        "from = `first` ? memory_before : memory": "false",
    },
    "walk": {
        # landing.cuh: what is copied, and mapped
        "if (`row >= Height`) break;\n      const bool there = row < rows && unit": "false",
        "const bool there = `row < rows` && unit * kInUnit < columns;": "true",
        "const bool there = row < rows && `unit * kInUnit < columns`;": "true",
        "if (`row >= Height`) break;\n      const bool there = row < rows && column": "false",
        "const bool there = `row < rows` && column < columns;": "true",
        "const bool there = row < rows && `column < columns`;": "true",
        # chunks.cuh
        "if (`reader <= token`) until += other;": "reader < token",
        "if (`reader > token`) after += other;": "reader >= token",
        "if (`tile < Tiles`) within": "true",
        "if (`tile >= Tiles`) return;": "false",
        "if (`token == 15`) whole": "token == 14",
        "count = int(`rest < Cut::kTokens` ? rest": "false",
        "warp < `Cut::kKeepers`; warp++": "0",
        # matrices.cuh
        "`unit ^ (row * kExchanged / 8 % kExchanged)`": "unit",
        "kNarrow && `largest > enough` ?": "false",
        # walk.cu
        "next = `token < to.count` ? log_decay": "true",
        "if (`tokens > 0`) source.copy": "true",
        "if (`next < tokens`) source.copy": "true",
        "tokens = `rest < of.segment` ? rest": "true",
        "if (Decay && `threadIdx.x / 32 * 32 < Cut::kTokens`)": "true",
        "reads = `Reads && warp < Cut::kReaders`": "true",
        "keeps = `warp < Cut::kKeepers`": "true",
        # reader.cuh
        "`other < tile` || written <= group": "false",
        "|| `written <= group + 8 * down` ?": "written < group + 8 * down",
        "if (`other > tile`) continue;": "false",
        "`other < tile` ? decays.whole[other]": "false",
        "if (`16 * tile + row >= chunk.count` || at >= columns)": "false",
        "if (16 * tile + row >= chunk.count || `at >= columns`)": "false",
        # keeper.cuh
        "if (`k < features`) normalizer[i / 4]": "true",
        "if (`k < features`) total[k]": "true",
        "if (`k < features` && n < columns)": "true",
        "if (k < features && `n < columns`)": "true",
        # carry.cu
        "if (`head >= of.heads`) return;": "false",
        "= `before == nullptr` ? 0.0f": "false",
    },
}

# What two threads do with the same number, one of them without being asked to.
RACES = {
    "additive": {
        "if (Normalize && `slice == 0`)": "true",
    },
    "walk": {
        "0 : int(`number % 2`) * behind);": "0",
        "behind : int(`number % 2`) * behind);": "0",
        "of.normalizer && `column == 0` ?": "true",
        "of.left != nullptr && `column == 0` &&": "true",
        "of.left != nullptr && column == 0 && `threadIdx.x == 0`": "true",
        "if (`own_lane() == 0`) shared.largest": "true",
        "if (!Normalize || `column > 0` || pair > 0) continue;": "false",
        "if (!Normalize || column > 0 || `pair > 0`) continue;": "false",
        "if (total != nullptr && `column == 0` && pair == 0)": "true",
        "if (total != nullptr && column == 0 && `pair == 0`)": "true",
    },
}
