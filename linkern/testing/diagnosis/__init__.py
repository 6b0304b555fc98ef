"""Diagnosis: the cause of a failure, and the arithmetic of a target, by measurement.

`diagnose.examine` asks for behaviours first (`behaviour`: crashes, NaN, memory), then
measures influence maps, stage by stage. Of each result that is wrong, `localising`
finds the place (`index_sets`: the shortest conjunction of statements) and the factor
(`factors`: the shortest product of quantities), in the map or in another view of it
(`views`, and `erase_views` of delta rules). Where no product holds, entries are
compared with what the oracle computes of other calls: `replaced_inputs`, of which
`replacements`, `parts` and `between_chunks` are the candidates, `floors`,
`other_decays`, and `other_gradients` with `other_states`. What these leave is compared
with states that are read otherwise (`states_read`) and with other systems of a chunk
(`chunked_erases`). `sentences` says the result.

The words are the same in all modules. A *map* has *entries*, weights of a source in a
row, each with the exact number and its bound. A *place* is a set of entries, by a
conjunction of *atoms*; it has *missed* the wrong entries outside of it, and *spared*
the right ones inside. A *factor* makes the measured entries of the exact ones: its
*kind* says how, by a product of quantities or by a *rule* that computes them. Maps are
*telling* if their errors are far from rounding; *silent* entries are too small to say
anything.
"""
