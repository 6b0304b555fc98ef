"""Diagnosis: the cause of a failure, and the arithmetic of a target, by measurement.

`diagnose.examine` asks for `behaviours` first (side effects, NaN, lost bits), then
measures influence maps, stage by stage. Of each result that is wrong, `localising`
finds the place (`index_sets`: the shortest conjunction of statements) and the factor
(`factors`: the shortest product of quantities), in the map or in another view of it
(`views`, and `erase_views` of delta rules). Where no product holds, entries are
compared with those of `alternatives`, other calls of the oracle: an input or a part of
the equation is replaced, in all of a call (`replacements`, `parts`) or from one chunk
to the next (`between_chunks`), a gradient lacks a term (`other_gradients`), a state is
read otherwise (`states_read`), the system of a chunk is another (`chunked_erases`).
`sentences` says the result.

The words are the same in all modules. A *map* has *entries*, weights of a source in a
row, each with the exact number and its bound. A *place* is a set of entries, by a
conjunction of *atoms*; it has *missed* the wrong entries outside of it, and *spared*
the right ones inside. A *factor* makes the measured entries of the exact ones: its
*kind* says how, by a product of quantities or by a *rule* that computes them. Maps are
*telling* if their errors are far from rounding; *silent* entries are too small to say
anything.
"""
