"""The plan that is simulated, executed unchanged on real ranks of torch.distributed.

engine      a plan on the ranks of a pool                 workload    what one step computes
rank        one rank's row of the plan                    ops         the ops, with real stages
channels    who sends what to whom in which order         mail        a rank's ends of its channels
ranks, launch, faults, torchrun, board of each rank       clock, record, memory, bytes: what is written down
"""
