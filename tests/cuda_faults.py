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
        "`row >= Height`) break;\n      const bool there = row < rows && unit": "false",
        "const bool there = `row < rows` && unit * kInUnit < columns;": "true",
        "const bool there = row < rows && `unit * kInUnit < columns`;": "true",
        "`row >= Height`) break;\n      const bool there = row < rows && col": "false",
        "const bool there = `row < rows` && column < columns;": "true",
        "const bool there = row < rows && `column < columns`;": "true",
        # chunks.cuh
        "if (`reader <= token`) until += other;": "reader < token",
        "if (`reader > token`) after += other;": "reader >= token",
        "if (`token == 15`) whole": "token == 14",
        "if (`tile < Tiles`) within": "true",
        "if (`tile >= Tiles`) return;": "false",
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
    },
    "carry": {
        "if (`head >= of.heads`) return;": "false",
        "= `before == nullptr` ? 0.0f": "false",
    },
    "token": {
        "bool there = `row < count` && column < channels": "true",
        "bool there = row < count && `column < channels`": "true",
        "if (`entry < kSpan * Width`)": "true",
        "nullptr && `feature_of(i) < sizes.features`;": "true",
        "if (there && `column < sizes.values`)": "true",
        "if (there && `column + c < sizes.values`)": "true",
        "if (`feature_of(i) >= sizes.features`) continue;": "false",
        "if (`column < sizes.values`) *reinterpret": "true",
        "if (`column + c < sizes.values`) memory": "true",
        "if (Whole || `feature_of(i) < features`)": "true",
        "if (`start + t >= sizes.tokens`) break;": "false",
        "== 0 && `start + t < sizes.tokens` &&": "true",
        "< sizes.tokens && `column + c < sizes.values`)": "true",
    },
    "token_plain": {
        "if (`there`)\n      head.memory": "true",
        "if (Erased != NO_ERASE && `there`)": "true",
        "written = `there` ? Real(wide(value[column]))": "true",
        "k < features && `there`; k": "true",
        "if (warp == 0 && `there`) put": "true",
    },
    "decode": {
        "if (`row < count`) rows[i]": "true",
        "if (`row >= count`) continue;": "false",
        "if (`column + c < values`) value": "true",
        "count = `min(features - start, kFeatures)`": "features - start",
        "rows = `column < of.pitch` ? count": "true",
        "for (int k = thread; `k < count`; k += kThreads)": "k <= count",
        "if (`thread >= kColumns` || written >= values) return;": "false",
        "if (thread >= kColumns || `written >= values`) return;": "false",
    },
    "backward": {
        # place.cuh
        "int(`of.sizes.tokens - start < kChunk` ? of.sizes": "false",
        "`thread < count` ? rows(of.log_decay)": "true",
        "if (Decay && `thread < kChunk`)": "true",
        "return `panel + k < features` && slice + lane < width;": "true",
        "return panel + k < features && `slice + lane < width`;": "true",
        "Normalize && `slice + lane == values`\n": "false",
        "take(memory, `kept(segment)`, panel": "kept(0)",
        # panels.cuh
        "if (`thread < kChunk`) {\n    Real before": "true",
        "if (`thread < kChunk`) {\n    Real sum": "true",
        "if (`reader > thread`) sum": "reader >= thread",
        # backward.cu
        "k < kPanel && `panel + k < features`; k += kChunk": "true",
        "pair = `written <= reader` ? between": "true",
        "nullptr || `reader >= count`;": "false",
        "if (`row < count` && slice + lane < values)": "true",
        "if (row < count && `slice + lane < values`)": "true",
        "= `-tiles.factor[row]` * sum": "tiles.factor[row]",
        "if (`row >= count` || panel + lane >= features) continue;": "false",
        "if (row >= count || `panel + lane >= features`) continue;": "false",
        "tiles.through[row][0] = `entered[i]`": "0",
        "`entering(kChunk - 1) * tiles.outside[k][lane] + sum`": "sum",
        "i = thread; `i <= kChunk`": "i < kChunk",
        "if (`thread < count`) {": "true",
        # features.cuh
        "return `feature < Real(1) ? feature : Real(1)`": "Real(1)",
    },
    "backward_walk": {
        # passing.cuh
        "count(int(`rest < Cut::kTokens` ? rest": "false",
        "`unit < kUnits`; unit += Cut::kThreads)\n      *(uint4": "0",
        "`unit < kUnits`; unit += Cut::kThreads)\n      copy_": "0",
        # puller.cuh
        "if (`4 * pair < columns`) *(Words": "true",
        "`row(down) < chunk.count` ? columns - column : 0": "true",
        "bool there = `row(down) < chunk.count`;": "true",
        "has_features(`part * kTall < Cut::kTall`)": "true",
        "if (`other == tile` && written > group + 8 * down) sums": "false",
        "&& `written > group + 8 * down`) sums": "written >= group + 8 * down",
        "between = `other < tile` ? whole_between(": "false",
        "entered = `other < tile` ? between": "false",
        "* place = `other < tile` ? decays.leaving": "true",
        "other = `written + 1`; other < reader": "written",
        # through.cuh
        "for (int other = 0; `other < tile`; other++) sum": "other <= tile",
        "for (int j = 0; `j < token`; j++)\n      for (int part": "j <= token",
        "for (int j = 16 * tile; `j < token`; j++) {": "j <= token",
        "other = `tile + 1`; other < Tiles": "tile",
        # backward_walk.cu
        "keeps = `warp < Cut::kKeepers`;": "true",
        "tokens = `rest < of.segment` ? rest": "true",
        "`token < to.count` ? rows(of.log_decay": "true",
        "copy(0, `last == 0`);": "false",
        "copy(number + 1, `number + 1 == last`);": "false",
        "if (`number < last`) {": "true",
        "if (`number > 0`) copy(number - 1": "true",
        "if (`number > 0`) tiles.before.come_back": "true",
        "if (Decay && `token < chunk.count`)": "true",
        "sum += `tiles.before.normalizer[k]` *": "0.0f",
        "= `whole()` * sum;": "1.0f",
        "keep(`whole()`, added, totals);": "1.0f",
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
    "token": {
        "spans[`start / kSpan % 2`]": "0",
        "if (`lane % kSharing == 0` &&": "true",
    },
    "token_plain": {
        "sum_over_warps(`parts.found`,": "parts.erased",
        "if (`warp == 0` && there) put": "true",
    },
    "decode": {
        "if (`lane < kLanes<Real>`)": "true",
        "if (`lane == 0`) shared.weight": "true",
    },
    "backward": {
        "if (`written == 0`)": "true",
        "if (`lane == 0`) tiles.weight_cotangent": "true",
        "if (`lane == 0`) tiles.through[row]": "true",
        "if (`lane == 0`) tiles.through[kChunk]": "true",
        "if (`lane == 0`) tiles.partial": "true",
        "if (`thread == 0`)": "true",
    },
    "backward_walk": {
        "landed(bytes + (kSplits ? 0 : int(`number % 2`) * kLanded": "0",
        "split(bytes + (kSplits ? 1 : int(`number % 2`)) * kLanded": "0",
        "split(bytes + (kSplits ? `1` : int(number % 2)) * kLanded": "0",
        "if (`part > 0` || pair > 0) continue;": "false",
        "if (part > 0 || `pair > 0`) continue;": "false",
        "if (`pair == 0`) store_shared(&tiles.sums": "true",
        "if (`pair == 0`) store_shared(&tiles.through.behind": "true",
        "if (`pair == 0`) store_shared(&rows": "true",
        "if (`group == 0`) store_shared(&columns": "true",
        "if (`own_lane() == 0`) tiles.through.whole": "true",
    },
}
