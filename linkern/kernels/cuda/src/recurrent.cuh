// Parameters of the recurrent kernels: the terms of linkern.core.recurrence.
//
//     S~ = Diag(exp(g)) S     u = b (v - S~^T a)     S' = S~ + k u^T     o = s S'^T q
#pragma once
#include "common.cuh"

enum DecayKind { NO_DECAY, BY_TOKEN, BY_FEATURE };
enum EraseKind { NO_ERASE, ERASE, ERASE_EARLY };  // early: S in place of S~ in u
enum ReadKind { READ, READ_EARLY };               // early: S in place of S' in o

template <class Io, class Real> struct RecurrentParams {
  Rows<const Io> query, key, value, erase;
  GateRows log_decay, beta;  // (T, 1) or (T, K), and (T, 1); a null beta is 1
  Rows<Io> output;
  const Real* initial_state;  // (B H, K, V); null for zeros
  Real* final_state;
  u32* broken;  // rules that gates broke, for each warp; null if they were checked
  Sizes sizes;
  Real scale;
  bool vectors;  // whether states are aligned for 16-byte loads and stores
};

// Pointers to the first token and to the states of one head.
template <class Io, class Real, int Decay, int Erase> struct HeadRows {
  const Io *query, *key, *value, *erase = nullptr;
  Gates<Io, Real> log_decay, beta;
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
    if (Decay != NO_DECAY)
      log_decay = Gates<Io, Real>(params.log_decay, in_batch, in_head, 0);
    if (params.beta.data) beta = Gates<Io, Real>(params.beta, in_batch, in_head, 0);
    output = params.output.at_head(in_batch, in_head);
    state = params.final_state + head * entries;
    initial_state = params.initial_state ? params.initial_state + head * entries : nullptr;
  }
};
