// Gradients of what is only added to the memory, on tensor cores.
//
// With P the seen pairs of a chunk, S the memory before it, R the cotangent of that after
// it, z and r their normalizers, Q and F the features, u the weights of the rows; and e, l
// and w what is left of S for each query, of each key behind the chunk, and of S there:
//
//     D  = dO / u  or  s dO        dQ = e (D S^T + d z^T) + A F
//     A  = between * (D V^T + d)   dF = l (V R^T + 1 r^T) + A^T Q
//     d  = -D . (e Q S + P V) / u  dV = l F R + P^T D
//     or 0                         R <- w R + (e Q)^T D,  r <- w r + (e Q)^T d
//
// A block of threads goes back through the segments of one head, or of a group of them. Where
// it comes into one it walks up once, from the memory that was kept before it, and leaves the
// memory before each chunk, as it is multiplied, in global memory, from where it soon comes
// back, mostly from the second cache. Nothing is subtracted or divided by a decay. So what passes is all
// inputs and gradients once, keys and values two times more, of which once on the way
// there, and K V numbers of each segment.
//
// Where heads are few, groups of segments first find what they add to R, from nothing; that
// is carried from each group to the one before it, and then all groups pull at once.
//
// The rows Q S + P V of the output need not be found again: D . (Q S + P V) is the sum of
// Q . D S^T and of all P_ij (D V^T)_ij, which are there anyway. D is never rounded: what
// is multiplied with dO is divided by u afterwards.
#include "puller.cuh"

template <class Cut, int Map, bool Decay, bool Normalize> struct Walk {
  typedef typename Cut::Io Io;
  typedef typename Planes<Io>::Stored Stored;
  typedef ChunkRows<Cut> Chunk;
  const Backward<Stored>& of;
  Tiles<Cut>& tiles;
  const i64 walked, head, in_batch, in_head;  // groups of all heads are in one line
  const int warp = threadIdx.x / 32;
  const int features = of.sizes.features, values = of.sizes.values;
  const bool keeps = warp < Cut::kKeepers;
  i64 first = 0, tokens = 0;  // of the segment
  float log_decay = 0;        // of this thread's token of the chunk that is being copied
  float left = 1;             // of R behind the group

  DEVICE Walk(const Backward<Stored>& of, Tiles<Cut>& tiles, i64 walked)
      : of(of), tiles(tiles), walked(walked), head(walked / of.groups),
        in_batch(head / of.sizes.heads), in_head(head % of.sizes.heads) {}

  template <class T> DEVICE T* rows(const Rows<T>& all, i64 number) const {
    return all.of(in_batch, in_head) + (first + number * Cut::kTokens) * all.token;
  }
  DEVICE Chunk at(i64 number) const {
    return Chunk(tiles.rows, number, tokens - number * Cut::kTokens);
  }
  DEVICE unsigned char* inside(i64 number) const {
    const i64 chunks = of.segment / Cut::kTokens;
    return of.inside + (walked * chunks + number) * i64(sizeof(Snapshot<Cut>));
  }

  // Begins to copy the rows of a chunk, or only what is written of them.
  DEVICE void copy(i64 number, bool whole) {
    const Chunk to = at(number);
    to.landed_keys().copy(rows(of.key, number), of.key.token, to.count, features);
    to.landed_values().copy(rows(of.value, number), of.value.token, to.count, values);
    if (whole) {
      to.landed_queries().copy(rows(of.query, number), of.query.token, to.count, features);
      to.landed_cotangents().copy(rows(of.cotangent, number), of.cotangent.token, to.count,
                                  values);
    }
    commit_copies();
    if (!Decay) return;
    const int token = threadIdx.x;
    log_decay =
        token < to.count ? rows(of.log_decay, number)[token * of.log_decay.token] : 0.0f;
  }
  // Maps and splits what this thread has copied.
  DEVICE void land(const Chunk& chunk, bool whole) const {
    wait_for_copies<0>();
    const bool splits = Chunk::kSplits, changes = splits || Map != IDENTITY;
    const int count = chunk.count;
    if (changes) chunk.landed_keys().template prepare<Map>(chunk.keys(), count, features);
    if (splits)
      chunk.landed_values().template prepare<IDENTITY>(chunk.values(), count, values);
    if (whole && changes)
      chunk.landed_queries().template prepare<Map>(chunk.queries(), count, features);
    if (whole && splits)
      chunk.landed_cotangents().template prepare<IDENTITY>(chunk.cotangents(), count,
                                                           values);
    if (Decay && threadIdx.x / 32 * 32 < Cut::kTokens)
      tiles.decays.find(log_decay, threadIdx.x);
  }

  // Leaves the memory before each chunk of a segment, and finds that before the last one.
  // The rows of that chunk are being copied then.
  DEVICE void come_into(i64 segment) {
    first = segment * of.segment;
    const i64 rest = of.sizes.tokens - first;
    tokens = rest < of.segment ? rest : of.segment;
    const i64 last = (tokens - 1) / Cut::kTokens, state = head * of.segments + segment;
    const i64 entry = state * features * values, weight = state * features;
    Keeper<Cut, Decay, Normalize> memory(warp);
    if (keeps)
      memory.load(of.kept ? of.kept + entry : nullptr,
                  of.kept_normalizer ? of.kept_normalizer + weight : nullptr, features,
                  values, values);
    copy(0, last == 0);
    for (i64 number = 0;; number++) {
      const Chunk chunk = at(number);
      if (keeps) memory.publish(tiles.before.tile(), tiles.before.normalizer, 1.0f);
      if (number < last) {
        land(chunk, false);
        copy(number + 1, number + 1 == last);
      }
      __syncthreads();  // of the chunk, and of the memory before it
      if (number == last) break;
      tiles.before.leave(inside(number));
      if (keeps) memory.add(chunk, tiles.decays);
      __syncthreads();  // before they are overwritten
    }
  }

  // Pulls all gradients of the segment, from its last chunk on.
  DEVICE void go_back(bool from_nothing) {
    const auto &d_query = of.query_gradient, &d_key = of.key_gradient;
    const auto& d_value = of.value_gradient;
    const i64 entry = walked * features * values, weight = walked * features;
    float* const total = Normalize ? of.outside_normalizer + weight : nullptr;
    Keeper<Cut, Decay, Normalize> outside(warp);
    if (keeps && !from_nothing)
      outside.load(of.outside + entry, total, features, values, values);
    for (i64 number = (tokens - 1) / Cut::kTokens; number >= 0; number--) {
      const Chunk chunk = at(number);
      land(chunk, true);
      if (number > 0) copy(number - 1, true);
      if (keeps) outside.publish(tiles.behind.tile(), tiles.behind.normalizer, 1.0f);
      __syncthreads();  // of the chunk, and of the memories around it
      Pull<Cut, Map, Decay, Normalize> pull(tiles, chunk, warp);
      pull.pair_up();
      if (Decay && of.pulls) pass_whole(outside);
      if (Decay || Normalize) __syncthreads();  // of the sums along rows
      pull.ask(of.scale);
      if (of.pulls) pull.share_out();
      __syncthreads();  // of the pairs; before the memory is overwritten
      if (number > 0) tiles.before.come_back(inside(number - 1));
      if (of.pulls) {
        pull.pull_queries(rows(d_query, number), d_query.token, features);
        pull.pull_keys(rows(d_key, number), d_key.token, features);
        pull.pull_values(rows(d_value, number), d_value.token, values);
      }
      if (keeps) pass_back(outside, chunk);
      __syncthreads();  // before the chunk is overwritten; of what goes through it
      const int token = threadIdx.x;
      if (Decay && of.pulls && token < chunk.count)
        rows(of.log_decay_gradient, number)[token * of.log_decay_gradient.token] =
            tiles.through.of(token);
    }
    if (keeps) outside.store(of.outside + entry, total, features, values, values);
  }

  // What the memory behind the chunk has of the memory before it.
  DEVICE void pass_whole(const Keeper<Cut, Decay, Normalize>& outside) {
    float sum = 0;
    if (keeps) {
#pragma unroll
      for (int i = 0; i < Cut::kKeptTall * Cut::kKeptWide; i++) {
        const int k = i / Cut::kKeptWide, n = i % Cut::kKeptWide;
        const Side<Io> memory =
            tiles.before.tile().left(outside.row + 16 * k, outside.column + 16 * n);
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const Sums& sums = outside.memory[k][n];
          sum += memory.pair(r).first() * sums.entry(r % 2, r / 2, 0) +
                 memory.pair(r).second() * sums.entry(r % 2, r / 2, 1);
        }
      }
      if (Normalize && outside.column == 0 && outside.pair == 0)
#pragma unroll
        for (int i = 0; i < 2 * Cut::kKeptTall; i++) {
          const int k = outside.row + i / 2 * 16 + outside.group + i % 2 * 8;
          sum += tiles.before.normalizer[k] * outside.normalizer[i / 2][i % 2 * 2];
        }
    }
#pragma unroll
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
    if (own_lane() == 0) tiles.through.whole[warp] = whole() * sum;
  }
  DEVICE float whole() const {
    float left = 1;
    for (int tile = 0; Decay && tile < Cut::kTiles; tile++)
      left *= tiles.decays.whole[tile];
    return left;
  }

  // R <- w R + (e Q)^T D and r <- w r + (e Q)^T d
  DEVICE void pass_back(Keeper<Cut, Decay, Normalize>& outside, const Chunk& chunk) {
    constexpr int kTall = Cut::kKeptTall, kWide = Cut::kKeptWide;
    Sums added[kTall][kWide] = {};
    float totals[kTall][4] = {};
#pragma unroll 1
    for (int tile = 0; tile < Cut::kTiles; tile++) {
      Side<Io> sides[kTall];
#pragma unroll
      for (int k = 0; k < kTall; k++) {
        sides[k] = chunk.queries().transposed_left(16 * tile, outside.row + 16 * k);
        if (Normalize) {
          Side<Io> weights = sides[k];
          outside.forget(weights, tiles.asked_weight + 16 * tile, 1.0f);
          add_rows(totals[k], weights);
        }
        outside.forget(sides[k], tiles.asked + 16 * tile, 1.0f);
      }
#pragma unroll
      for (int n = 0; n < kWide; n++) {
        const Side<Io> side =
            chunk.cotangents().right(16 * tile, outside.column + 16 * n);
#pragma unroll
        for (int k = 0; k < kTall; k++) multiply_add(added[k][n], sides[k], side);
      }
    }
    outside.keep(whole(), added, totals);
    left *= whole();
  }
};

template <class Cut, int Map, bool Decay, bool Normalize>
__global__ void __launch_bounds__(Cut::kThreads, 1)
    walk_back(Backward<typename Planes<typename Cut::Io>::Stored> of) {
  SHARED_MEMORY(bytes);
  Tiles<Cut>& tiles = *reinterpret_cast<Tiles<Cut>*>(bytes);
  Walk<Cut, Map, Decay, Normalize> walk(of, tiles, i64(blockIdx.x));
  const i64 first = walk.walked % of.groups * of.group, behind = first + of.group;
  const i64 last = (behind < of.segments ? behind : of.segments) - 1;
  if (!of.pulls && first == 0) return;  // nobody asks what it adds
  for (i64 segment = last; segment >= first; segment--) {
    walk.come_into(segment);
    walk.go_back(!of.pulls && segment == last);
  }
  if (!of.pulls && threadIdx.x == 0) of.left[walk.walked] = walk.left;
}
