"""What to predict in lesson 00, ranks and messages."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Between, Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="00.1",
        question="`counter` is 100 in this notebook. Four ranks run `counter += dist.get_rank()`, each once. What is "
        "`counter` *here*, in the notebook, afterwards?",
        choices=(
            Choice(
                "106: each rank has added its number",
                106,
                "Ranks share memory",
                "They are processes, not threads: each has a copy of the variable, and what it changes there stays "
                "there.",
            ),
            Choice(
                "103: what the last rank made of it",
                103,
                "The last one writes back",
                "Nothing is written back. Only what the function returns travels to the notebook, as `run[3]`.",
            ),
            Choice(
                "100: nothing has happened to it", 100, why="The ranks got a copy, and only return values come back."
            ),
        ),
    ),
    Prediction(
        number="00.2",
        question="Four ranks. First all send their tensor to rank 0, which adds them up; then rank 0 sends the sum to "
        "all. How many messages are that, all together?",
        typed=True,
        unit="messages",
        choices=(
            Choice("6", 6, why="Three come in, three go out: 2(n - 1)."),
            Choice(
                "3",
                3,
                "One way is enough",
                "Three messages bring the parts to rank 0. The others still have to hear the sum: three more.",
            ),
            Choice(
                "8",
                8,
                "Rank 0 writes to itself",
                "Rank 0 has its own tensor already, and needs neither to send nor to receive it: 2(n - 1), not 2n.",
            ),
            Choice(
                "12",
                12,
                "Everybody talks to everybody",
                "That would be n(n - 1) messages, each rank adding up by itself. Here all of them go by rank 0.",
            ),
            Choice(
                "4",
                4,
                "A message for each rank",
                "Each of the *other* three sends one and receives one; rank 0 is at one end of all six.",
            ),
        ),
    ),
    Prediction(
        number="00.3",
        question="Round the ring, a tensor is cut into as many pieces as there are ranks: here 4. Over both halves, "
        "how much does *one* rank send, in tensors? (One whole tensor is 1.)",
        typed=True,
        unit="tensors",
        tolerance=0.01,
        choices=(
            Choice("1.5", 1.5, why="2(n - 1) messages of a piece each: 6 quarters. For 100 ranks it would be 1.98."),
            Choice(
                "6",
                6,
                "A message is a whole tensor",
                "Six messages is right, but each carries one piece: a quarter of the tensor.",
            ),
            Choice(
                "0.75",
                0.75,
                "The sum is there after one round trip",
                "After n - 1 rounds each rank has the full sum of *one* piece. The finished pieces go round once more.",
            ),
            Choice(
                "2",
                2,
                "Two whole rounds",
                "Nearly: that is the limit for many ranks. A piece makes n - 1 hops in each half, not n: 2(n - 1)/n.",
            ),
            Choice(
                "1",
                1,
                "Each piece is sent once",
                "Each piece passes twice: once on its way to being summed, and once when the sum is given out.",
            ),
            Choice(
                "3",
                3,
                "As at rank 0",
                "Rank 0 of the naive way sends three whole tensors. In the ring everybody sends quarters.",
            ),
        ),
    ),
    Prediction(
        number="00.4",
        question="The naive way and the ring add the same four tensors of float64 numbers. How far apart are their "
        "results, at most?",
        choices=(
            Choice(
                "Equal to the last bit",
                Between(0, 0),
                "A sum is a sum",
                "Every addition rounds, and the two ways add in different orders: (a + b) + c is not a + (b + c) in "
                "floating point.",
            ),
            Choice(
                "Not equal, but closer than 0.000000000001",
                Between(1e-18, 1e-12),
                why="Another order of additions, another last digit. That is why equal means: to 1e-10.",
            ),
            Choice(
                "Off in the third or fourth digit",
                Between(1e-12, 1e9),
                "Rounding piles up",
                "float64 has sixteen digits, and each number here is a sum of only four. Three roundings move the last "
                "one or two.",
            ),
        ),
    ),
    Prediction(
        number="00.5",
        question="A message of 4 bytes takes some time on your machine. How many times as long does one of 4,000 "
        "bytes take?",
        choices=(
            Choice(
                "About 1,000 times: it has 1,000 times the bytes",
                Between(300, 1e9),
                "Time is bytes over bandwidth",
                "That is only the second term. A message first pays its latency, however short it is, and here that is "
                "nearly all of it.",
            ),
            Choice(
                "About 10 to 100 times",
                Between(3, 300),
                "Something in between",
                "Both messages are far below the size at which bytes begin to count: the latency is the same for both.",
            ),
            Choice(
                "About as long: less than 3 times",
                Between(0, 3),
                why="Both cost the latency. 4,000 bytes take a microsecond on top of a hundred.",
            ),
        ),
    ),
)
