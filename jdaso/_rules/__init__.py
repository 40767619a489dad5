"""The paper (arXiv 2104.05588), and where jdaso departs from it, as pure functions of arrays.

Rule 1: everything that decides when nodes exchange and how a result is used lives here.
Rule 2: no module here depends on MPI, a session, a callback or a clock. A function takes arrays
and settings and returns arrays; the same inputs give the same bits on every node.

=========================================  =================================================
in the paper                               in jdaso
=========================================  =================================================
III-B, warm-up, cycling, cool-down         `phases`: the settings; `decide`: what one update does
III-B, B and S lowered on a plateau        `plateau`; the loss that drives it: `loss`
III-B, equation 1, the weighted merge      `merge.paper`
III-B, S as the time of an exchange        `measured` (``delay="auto"``), and B likewise
(not in it) fragments, in turn             `phases`, `decide`; their pieces: `_payload.fragments`
(not in it) merge that keeps progress      `merge.corrected` (arXiv 2605.20866)
(not in it) optimizer between the nodes    `merge.outer` (arXiv 2311.08105)
(not in it) Adam as with the whole batch   `second_moments`, `_optimizers.shared_moments`
(not in it) Muon as with the whole batch   `update_lengths`, `_optimizers.update_lengths`
III, averages inside a node                `_exchange.within_node`, `_optimizers.local_mean`
(of HeAT) l, steps between them           `phases` (``local_every``); lowered: `plateau`
III, narrow wires                          `_payload.wire`
(not in it) error feedback of wires        `_engines.passes`, `_engines.versions` on the host;
                                           `_exchange.late_virtual` for virtual nodes
=========================================  =================================================

`state` holds what `decide`, `plateau` and `measured` carry from one update to the next.
"""
