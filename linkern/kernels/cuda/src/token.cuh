// What kernels that go token by token are given: the terms of linkern.core.recurrence.
//
//     S~ = Diag(exp(g)) S        u = v - S~^T a        S' = S~ + k u^T        o = S'^T q
#pragma once
#include "common.cuh"

enum Decay { NO_DECAY, BY_TOKEN, BY_FEATURE };
enum Erase { NO_ERASE, ERASE, ERASE_EARLY };  // early: what was there before the decay
enum Read { READ, READ_EARLY };               // early: before the token is written

template <class Io, class Real> struct Terms {
  Rows<const Io> query, key, value, erase;
  Rows<const Real> log_decay;  // (T, 1) or (T, K)
  Rows<Io> output;
  const Real* memory_before;  // (B H, K, V); null for zeros
  Real* memory;
  Sizes sizes;
  bool vectors;  // whether 16 bytes of a memory lie where they can be loaded at once
};

// The terms of one head, each at its first token.
template <class Io, class Real, int DecayBy, int Erased> struct Head {
  const Io *query, *key, *value, *erase = nullptr;
  const Real* log_decay = nullptr;
  Io* output;
  const Real* memory_before;
  Real* memory;

  DEVICE Head(const Terms<Io, Real>& of, i64 head) {
    const i64 in_batch = head / of.sizes.heads, in_head = head % of.sizes.heads;
    const i64 entries = i64(of.sizes.features) * of.sizes.values;
    query = of.query.of(in_batch, in_head);
    key = of.key.of(in_batch, in_head);
    value = of.value.of(in_batch, in_head);
    if (Erased != NO_ERASE) erase = of.erase.of(in_batch, in_head);
    if (DecayBy != NO_DECAY) log_decay = of.log_decay.of(in_batch, in_head);
    output = of.output.of(in_batch, in_head);
    memory = of.memory + head * entries;
    memory_before = of.memory_before ? of.memory_before + head * entries : nullptr;
  }
};
