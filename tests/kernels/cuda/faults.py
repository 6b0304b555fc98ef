"""Faults in the kernels, by file: the text between backquotes, and its replacement.

Barriers and waits for copies are not listed: leaving out any of them is a fault.
"""

__all__ = ["RACES", "WRONG"]

# Wrong numbers, or accesses out of bounds.
WRONG = {
    "chunk_fwd_simt": {
        "`other <= row` ? decay * scores[i]": "other < row",
        "bool valid = `row < count` && channel": "true",
        "bool valid = row < count && `channel + column < channels`": "true",
        "bool valid = `panel + k < features` &&": "true",
        "bool valid = panel + k < features && `column < values` &&": "true",
        "if (`row >= count` || column >= values) continue;": "false",
        "if (row >= count || `column >= values`) continue;": "false",
        "if (`panel + k >= features` || column >= values) continue;": "false",
        "if (panel + k >= features || `column >= values`) continue;": "false",
        "for (int k = 0; k < kPanel && `panel + k < features`; k++)": "true",
        "thread < kPanel && `panel + thread < features`)": "true",
        "`thread < kPanel` && panel + thread < features)": "true",
        "if (`thread < count`) gate.load(log_decay": "true",
        "if (Decay && `thread < kChunk`) {\n      LoadedGate": "true",
        "source = `first` ? initial_state : state": "false",
    },
    "chunk_fwd": {
        # smem_stage.cuh: copies and conversions
        "`row >= Height`) break;\n      const bool valid = row < rows && unit": "false",
        "const bool valid = `row < rows` && unit * kPerUnit < columns;": "true",
        "const bool valid = row < rows && `unit * kPerUnit < columns`;": "true",
        "`row >= Height`) break;\n      const bool valid = row < rows && col": "false",
        "const bool valid = `row < rows` && column < columns;": "true",
        "const bool valid = row < rows && `column < columns`;": "true",
        # chunk_tiles.cuh
        "if (`query <= token`) until += other;": "query < token",
        "if (`query > token`) after += other;": "query >= token",
        "if (`token == 15`) tile_decay": "token == 14",
        "if (`tile < Tiles`) decay_mask": "true",
        "if (`tile >= Tiles`) return;": "false",
        "count(int(`remaining < Shape::kTokens` ? remaining": "false",
        # fwd_storage.cuh
        "warp < `Shape::kStateWarps`; warp++": "0",
        # mma.cuh
        "`unit ^ (row * kSwizzled / 8 % kSwizzled)`": "unit",
        "kNarrowRange && `largest > limit` ?": "false",
        # chunk_fwd.cu
        "if (`token < to.count`) next_log_decay.load": "true",
        "if (`tokens > 0`) loader.copy": "true",
        "if (`next < tokens`) loader.copy": "true",
        "tokens = `remaining < params.segment_tokens` ? remaining": "true",
        "has_output = `Output && warp < Shape::kOutputWarps`": "true",
        "has_state = `warp < Shape::kStateWarps`": "true",
        # output_tile.cuh
        "`other < tile` || key <= group": "false",
        "|| `key <= group + 8 * down` ?": "key < group + 8 * down",
        "if (`other > tile`) continue;": "false",
        "`other < tile` ? decays.tile_decay[other]": "false",
        "if (`16 * tile + row >= chunk.count` || at >= columns)": "false",
        "if (16 * tile + row >= chunk.count || `at >= columns`)": "false",
        # state_accumulator.cuh
        "if (`k < features`) normalizer[i / 4]": "true",
        "if (`k < features`) target_normalizer[k]": "true",
        "if (`k < features` && n < columns)": "true",
        "if (k < features && `n < columns`)": "true",
    },
    "chunk_delta": {
        # smem_stage.cuh
        "`row >= Height`) break;\n      const bool valid = row < rows && unit": "false",
        "const bool valid = `row < rows` && unit * kPerUnit < columns;": "true",
        "const bool valid = row < rows && `unit * kPerUnit < columns`;": "true",
        # chunk_tiles.cuh
        "if (`tile < Tiles`) decay_mask": "true",
        "if (`tile >= Tiles`) return;": "false",
        # delta_storage.cuh
        "count = int(`remaining < Shape::kTokens` ? remaining": "false",
        # delta_intra.cuh
        "if (`other > tile`) continue;\n      weigh<true>": "false",
        "if (`other < tile`)\n        storage.erases": "false",
        "if (`lane_id() < 8`) invert": "true",
        "if (`other <= tile`)\n          mma(scores": "other < tile",
        "earlier = `other < tile`;": "true",
        "`earlier` || key + i < query": "false",
        "query + (`Erases ? 0 : 1`);": "0",
        "if (`lane_id() < 16`) {": "true",
        "if (`tile == 0 && lane_id() == 16`)": "false",
        "first[row] = `row == column` ?": "false",
        # delta_columns.cuh
        "if (`other <= tile`)\n        mma(read": "other < tile",
        "if (`other < tile`)\n        mma(rest": "other + 1 < tile",
        "if (`token >= count` || at >= columns) continue;": "false",
        "if (token >= count || `at >= columns`) continue;": "false",
        "if (`source != nullptr`)\n      for_each": "true",
        "if (`k < features` && n < columns) visit": "true",
        "if (k < features && `n < columns`) visit": "true",
        # chunk_delta.cu
        "if (Decay && `token < count`) next_log": "true",
        "nullptr && `token < count`) next_beta.load": "true",
        "if (`threadIdx.x < Shape::kTokens`) {": "true",
        "factor = `has_beta` ? next": "true",
        "if (`chunks > 0`) loader.copy": "true",
        "if (`copied < chunks`) loader.copy": "true",
        "else if (`number >= 0`) {": "true",
    },
    "state_passing": {
        "if (`entry >= entries`) return;": "false",
        "if (`initial != nullptr`) sum": "true",
        "if (`last != nullptr`) *": "true",
        "params.reverse ? `params.segments - 1` : 0": "0",
        "params.reverse ? `-1` : 1": "1",
        "if (`start + i >= params.segments`) continue;\n      const": "false",
        "if (`start + i >= params.segments`) continue;\n      *": "false",
    },
    "recurrent": {
        "bool valid = `row < count` && column < channels": "true",
        "bool valid = row < count && `column < channels`": "true",
        "if (`entry < kSpan * Width`)\n        target": "true",
        "inside = `row < count` && channel < channels": "true",
        "inside = row < count && `channel < channels`": "true",
        "if (`entry < kSpan * Width`)\n        store": "true",
        "span.beta[row] = `has_beta` ? x": "true",
        "nullptr && `feature_of(i) < sizes.features`;": "true",
        "if (valid && `column < sizes.values`)": "true",
        "if (valid && `column + c < sizes.values`)": "true",
        "if (`feature_of(i) >= sizes.features`) continue;": "false",
        "if (`column < sizes.values`) *reinterpret": "true",
        "if (`column + c < sizes.values`) state": "true",
        "if (Whole || `feature_of(i) < features`)": "true",
        "if (`start + t >= sizes.tokens`) break;": "false",
        "== 0 && `start + t < sizes.tokens` &&": "true",
        "< sizes.tokens && `column + c < sizes.values`)": "true",
    },
    "copy": {
        "if (`at < params.units`) units[i]": "true",
        "if (`at < params.units`) params.target": "true",
        "first = `i64(blockIdx.x) * (kThreads * kUnits)` + threadIdx.x": "0",
    },
    "recurrent_global": {
        "if (`valid`)\n      head.state": "true",
        "if (Erase != NO_ERASE && `valid`)": "true",
        "written = `valid` ? beta * ": "true",
        "k < features && `valid`; k": "true",
        "if (warp == 0 && `valid`)\n": "true",
    },
    "decode": {
        "if (`row < count`) rows[i]": "true",
        "if (`row >= count`) continue;": "false",
        "if (`column + c < values`) value": "true",
        "count = `min(features - start, kFeatures)`": "features - start",
        "rows = `column < params.pitch` ? count": "true",
        "for (int k = thread; `k < count`; k += kThreads)": "k <= count",
        "if (`thread >= kColumns` || written >= values) return;": "false",
        "if (thread >= kColumns || `written >= values`) return;": "false",
    },
    "chunk_bwd_simt": {
        # chunk_bwd_simt_block.cuh
        "int(`params.sizes.tokens - start < kChunk` ? params.sizes": "false",
        "`thread < count` ? rows(params.log_decay)": "true",
        "if (Decay && `thread < kChunk`)": "true",
        "return `panel + k < features` && slice + lane < width;": "true",
        "return panel + k < features && `slice + lane < width`;": "true",
        "Normalize && `slice + lane == values`\n": "false",
        "load_state(state, `checkpoint(segment)`, panel": "checkpoint(0)",
        # simt_panels.cuh
        "if (`thread < kChunk`) {\n    Real until": "true",
        "if (`thread < kChunk`) {\n    Real sum": "true",
        "if (`query > thread`) sum": "query >= thread",
        # chunk_bwd_simt.cu
        "k < kPanel && `panel + k < features`; k += kChunk": "true",
        "masked = `key <= query` ? decay_mask": "true",
        "nullptr || `query >= count`;": "false",
        "if (`row < count` && slice + lane < values)": "true",
        "if (row < count && `slice + lane < values`)": "true",
        "= `-storage.factors[row]` * sum": "storage.factors[row]",
        "if (`row >= count` || panel + lane >= features) continue;": "false",
        "if (row >= count || `panel + lane >= features`) continue;": "false",
        "storage.shares[row][0] = `from_state[i]`": "0",
        "`from_start(kChunk - 1) * storage.dstate[k][lane] + sum`": "sum",
        "i = thread; `i <= kChunk`": "i < kChunk",
        "if (`thread < count`) {": "true",
        # common.cuh
        "return `feature < Real(1) ? feature : Real(1)`": "Real(1)",
    },
    "chunk_bwd": {
        # chunk_tiles.cuh
        "tile = `key_tile + 1`; tile < query_tile": "key_tile",
        "count(int(`remaining < Shape::kTokens` ? remaining": "false",
        # bwd_storage.cuh
        "`unit < kUnits`; unit += Shape::kThreads)\n      *(uint4": "0",
        "`unit < kUnits`; unit += Shape::kThreads)\n      cp_": "0",
        # grad_tile.cuh
        "if (`4 * pair < columns`) *(Words": "true",
        "`row(down) < chunk.count` ? columns - column : 0": "true",
        "bool valid = `row(down) < chunk.count`;": "true",
        "has_features(`slice * kFeatureBlocks < Shape::kFeatureBlocks`)": "true",
        "if (`other == tile` && key > group + 8 * down) block": "false",
        "&& `key > group + 8 * down`) block": "key >= group + 8 * down",
        "between = `other < tile` ? decays.between(": "false",
        "decay = `other < tile` ? between": "false",
        "* address = `other < tile` ? decays.to_end": "true",
        # decay_grad.cuh
        "for (int other = 0; `other < tile`; other++) sum": "other <= tile",
        "for (int j = 0; `j < token`; j++)\n      for (int slice": "j <= token",
        "for (int j = 16 * tile; `j < token`; j++) {": "j <= token",
        "other = `tile + 1`; other < Tiles": "tile",
        # chunk_bwd.cu
        "has_state = `warp < Shape::kStateWarps`;": "true",
        "tokens = `remaining < params.segment_tokens` ? remaining": "true",
        "`token < to.count`\n                    ? rows(params.log_decay": "true",
        "copy(0, `last == 0`);": "false",
        "copy(number + 1, `number + 1 == last`);": "false",
        "if (`number < last`) {": "true",
        "if (`number > 0`) copy(number - 1": "true",
        "if (`number > 0`) storage.state.load_global_async": "true",
        "params.all_gradients && `token < chunk.count`)": "true",
        "sum += `storage.state.normalizer[k]` *": "0.0f",
        "= `chunk_decay()` * sum;": "1.0f",
        "decay_add(`chunk_decay()`, added, row_sums);": "1.0f",
        "decay_total *= `chunk_decay()`;": "1.0f",
        "if (has_state && `!from_zero`)": "true",
        "backward_segment(`!params.all_gradients && segment == last`)": "false",
        "last = (`end < params.segments` ? end": "true",
    },
}

# Two threads that access the same entry, one of them without need.
RACES = {
    "chunk_fwd_simt": {
        "if (Normalize && `slice == 0`)": "true",
    },
    "chunk_fwd": {
        "staged(bytes + (kSplits ? 0 : int(`number % 2`) * kStaged": "0",
        "operands(bytes + (kSplits ? 1 : int(`number % 2`)) * kStaged": "0",
        "params.final_normalizer && `column == 0`\n": "true",
        "params.decay_total != nullptr && `column == 0` &&": "true",
        "params.decay_total != nullptr && column == 0 && `threadIdx.x == 0`": "true",
        "if (`lane_id() == 0`) max_abs": "true",
        "if (!Normalize || `column > 0` || pair > 0) continue;": "false",
        "if (!Normalize || column > 0 || `pair > 0`) continue;": "false",
        "if (target_normalizer != nullptr && `column == 0` && pair == 0)": "true",
        "if (target_normalizer != nullptr && column == 0 && `pair == 0`)": "true",
    },
    "chunk_delta": {
        # Buffers that are used in turn.
        "bytes + kStagedBytes + `number % 2` * kOperand": "0",
        "storage, `ahead % 2`);\n    }\n    if (copied": "0",
        "tokens),\n                                    `ahead % 2`, warp": "0",
        "state.process(Chunk(storage.rows, number, tokens), `number % 2`,": "0",
        # Warps that work for others.
        "if (`!shared || warp < Shape::kTiles`) rows": "true",
        "if (`!shared || warp >= Shape::kTiles`) rows": "true",
        "strip = storage.output + `column / 16 * storage.kStripBytes`;": "0",
    },
    "recurrent": {
        "spans[`start / kSpan % 2`]": "0",
        "if (`lane % kSharing == 0` &&": "true",
        # common.cuh
        "if (`threadIdx.x % 32 == 0`)\n    reports": "true",
    },
    "recurrent_global": {
        "sum_over_warps(`partial.output`,": "partial.erased",
        "if (`warp == 0` && valid)\n": "true",
    },
    "decode": {
        "if (`lane < kLanes<Real>`)": "true",
        "if (`lane == 0`) storage.weight": "true",
    },
    "chunk_bwd_simt": {
        "if (`key == 0`)": "true",
        "if (`lane == 0`) storage.weight_grads": "true",
        "if (`lane == 0`) storage.shares[row]": "true",
        "if (`lane == 0`) storage.shares[kChunk]": "true",
        "if (`lane == 0`) storage.partial": "true",
        "if (`thread == 0`)": "true",
    },
    "chunk_bwd": {
        "staged(bytes + (kSplits ? 0 : int(`number % 2`) * kStaged": "0",
        "operands(bytes + (kSplits ? 1 : int(`number % 2`)) * kStaged": "0",
        "operands(bytes + (kSplits ? `1` : int(number % 2)) * kStaged": "0",
        "if (`slice > 0` || pair > 0) continue;": "false",
        "if (slice > 0 || `pair > 0`) continue;": "false",
        "if (`pair == 0`) store_shared(&storage.row_sums": "true",
        "if (`pair == 0`) store_shared(&storage.decay_grad.to_state": "true",
        "if (`pair == 0`) store_shared(&row_sums": "true",
        "if (`group == 0`) store_shared(&column_sums": "true",
        "if (`lane_id() == 0`) storage.decay_grad.across": "true",
    },
}
