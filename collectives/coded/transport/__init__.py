"""Coded sums on real ranks: decided first, then moved.

In reading order:

* `word_kernels`, `node_words`: atomic operations on words of node memory.
* `round_memory`: the words and records of the rounds under way in a node.
* `gradient_layout`: arrays of a gradient as one vector.
* `vector_memory`: the vectors of the ranks of a node, and the sums.
* `ballots`: one value out of several that nodes propose; pure.
* `cell_messages`: small messages between nodes.
* `round_decision`: which ranks count in a round.
* `round_work`: what a rank computes, and when it stops.
* `gradient_exchange`: weighted vectors become one sum in every node.
* `round_wait`: how a rank waits, and what ends the wait.
* `rank_meeting`: all ranks come together before they call the communicator.
* `coded_agreement`: what the ranks agree on first.
* `step_parts`: the micro-batches of a step.
* `one_call`: one call at a time.
* `auto_scheme`: a scheme chosen from the times of the ranks.
* `recorder`: `Recorder`, which writes these times to a file.
* `coded_allreduce`: `CodedAllreduce`.
"""
