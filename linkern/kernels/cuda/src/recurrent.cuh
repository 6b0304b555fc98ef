// Parameters of the recurrent kernels: the terms of linkern.core.recurrence.
//
//     S~ = Diag(exp(g)) S        u = v - S~^T a        S' = S~ + k u^T        o = S'^T q
#pragma once
#include "common.cuh"

enum DecayKind { NO_DECAY, BY_TOKEN, BY_FEATURE };
enum EraseKind { NO_ERASE, ERASE, ERASE_EARLY };  // early: S in place of S~ in u
enum ReadKind { READ, READ_EARLY };               // early: S in place of S' in o

template <class Io, class Real> struct RecurrentParams {
  Rows<const Io> query, key, value, erase;
  Rows<const Real> log_decay;  // (T, 1) or (T, K)
  Rows<Io> output;
  const Real* initial_state;  // (B H, K, V); null for zeros
  Real* final_state;
  Sizes sizes;
  bool vectors;  // whether states are aligned for 16-byte loads and stores
};

// Pointers to the first token and to the states of one head.
template <class Io, class Real, int Decay, int Erase> struct HeadRows {
  const Io *query, *key, *value, *erase = nullptr;
  const Real* log_decay = nullptr;
  Io* output;
  const Real* initial_state;
  Real* state;

  DEVICE HeadRows(const RecurrentParams<Io, Real>& params, i64 head) {
    const i64 in_batch = head / params.sizes.heads, in_head = head % params.sizes.heads;
    const i64 entries = i64(params.sizes.features) * params.sizes.values;
    query = params.query.at_head(in_batch, in_head);
    key = params.key.at_head(in_batch, in_head);
    value = params.value.at_head(in_batch, in_head);
    if (Erase != NO_ERASE) erase = params.erase.at_head(in_batch, in_head);
    if (Decay != NO_DECAY) log_decay = params.log_decay.at_head(in_batch, in_head);
    output = params.output.at_head(in_batch, in_head);
    state = params.final_state + head * entries;
    initial_state = params.initial_state ? params.initial_state + head * entries : nullptr;
  }
};
