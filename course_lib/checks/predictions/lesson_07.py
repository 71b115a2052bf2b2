"""What to predict in lesson 07, hybrid parallelism."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Between, Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="07.1",
        question="Six ranks in a table: two rows, one for each replica, and three columns, one for each stage. Rank 4 "
        "is in the second row, in the middle. With whom does it sum its gradients?",
        choices=(
            Choice(
                "With 3 and 5: its replica",
                [3, 4, 5],
                "A replica trains together",
                "Ranks 3 and 5 hold *other layers*. With them it exchanges activations; their gradients are of other "
                "weights.",
            ),
            Choice("With 1: the same stage of the other replica", [1, 4], why="Only they hold the same weights."),
            Choice(
                "With all: data parallelism averages over everyone",
                [0, 1, 2, 3, 4, 5],
                "Everyone averages",
                "So it is when everyone holds the whole model. Here ranks of different stages have nothing to add up.",
            ),
        ),
    ),
    Prediction(
        number="07.2",
        question="Gradients are summed over *all* six ranks, as plain data parallelism does. The three stages have "
        "weights of different shapes. What happens here?",
        choices=(
            Choice(
                "It runs, with wrong numbers",
                None,
                "Wrong groups are silent",
                "They are where the shapes happen to agree (six layers on three stages). Here they differ, and the "
                "launcher compares the calls.",
            ),
            Choice(
                "The ranks wait for ever",
                "RanksStuck",
                "A mismatch is a hang",
                "All ranks do make a call, and equally often for a while: gloo does not wait, it receives the wrong "
                "bytes.",
            ),
            Choice(
                "An error that says who called what",
                "CollectivesDiffer",
                why="The launcher compares the ranks' records. On a cluster you would get C++'s last words, or "
                "nothing.",
            ),
        ),
    ),
    Prediction(
        number="07.3",
        question="FSDP on 4 ranks. Which part of the parameters does a rank store, between two steps?",
        choices=(
            Choice(
                "All of them: it runs the whole model",
                Between(0.9, 1.0),
                "Who runs it must have it",
                "It has to have a *block* while that block runs. The pieces are gathered before, and dropped behind.",
            ),
            Choice(
                "Half: weights are shared, gradients are not",
                Between(0.4, 0.6),
                "Only a part is sharded",
                "Parameters, gradients and the optimizer's numbers are all cut into four.",
            ),
            Choice(
                "A quarter",
                Between(0.2, 0.3),
                why="A piece of every parameter. The price is to gather them twice a step.",
            ),
        ),
    ),
    Prediction(
        number="07.4",
        question="8 layers of 1,024 units. FSDP moves parameters, a pipeline moves activations. Below how many tokens "
        "per replica and update does a pipeline's edge send less?",
        choices=(
            Choice(
                "Below about 1,000",
                Between(0, 10_000),
                "Activations are the big part",
                "In memory, often. But an edge carries *one* layer's activations, and FSDP all parameters, three "
                "times.",
            ),
            Choice(
                "Below about 100,000",
                Between(50_000, 200_000),
                why="3 x 67 million parameters, against 2 x 1,024 numbers for each token.",
            ),
            Choice(
                "Always: a model is larger than any batch",
                Between(10_000_000, 1e18),
                "Parameters always outweigh the batch",
                "The batch has no upper end: 100,000 tokens is an ordinary update on many GPUs.",
            ),
        ),
    ),
    Prediction(
        number="07.5",
        question="A large embedding and six LSTM layers on four ranks. Which mesh (replicas x stages) needs least "
        "memory on its fullest rank?",
        choices=(
            Choice(
                "4 x 1: each replica sees a quarter of the batch",
                "4 x 1",
                "Less data, less memory",
                "Fewer activations, yes. But every replica holds *all* the weights, and here they are most of it.",
            ),
            Choice(
                "2 x 2: something of both",
                "2 x 2",
                "The middle is best",
                "It halves the blocks of a rank where 1 x 4 quarters them, and each block comes with weights, "
                "gradients and activations.",
            ),
            Choice(
                "1 x 4",
                "1 x 4",
                why="Four stages hold the fewest blocks each; recomputation leaves them one piece's activations. That "
                "plan is far from the fastest.",
            ),
        ),
    ),
    Prediction(
        number="07.6",
        question="9.4 billion parameters on 1,024 GPUs, 8 to a node. Two stages are enough to fit. Which mesh "
        "(replicas x "
        "stages) does the planner find fastest?",
        choices=(
            Choice(
                "512 x 2: no more stages than needed",
                "512 x 2",
                "As few stages as fit",
                "Each replica then has 8 sequences, and computes slowly for their number; and each rank sums and "
                "updates half of the model.",
            ),
            Choice(
                "128 x 8: a replica in each node",
                "128 x 8",
                "A node is the natural unit",
                "A good second, 5% behind, and with the *replicas* inside the nodes. With a replica in each node, the "
                "sums cross the slow links: 39% behind.",
            ),
            Choice(
                "64 x 16",
                "64 x 16",
                why="A replica has 64 sequences to work on at a time, and each rank few weights to sum and to update: "
                "worth a longer pipeline.",
            ),
            Choice(
                "1024 x 1: one replica for each GPU",
                "1024 x 1",
                "Data parallelism is fastest if it runs",
                "It does not run: 151 GB on each GPU. Nor would it be fastest: each GPU would compute 4 sequences at a "
                "time.",
            ),
        ),
    ),
)
