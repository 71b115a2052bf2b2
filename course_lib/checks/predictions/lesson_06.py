"""What to predict in lesson 06, pipeline parallelism."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Between, Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="06.1",
        question="GPipe with 4 stages and 8 micro-batches: all go forward one behind the other, then all back. Every "
        "action takes one unit. How many units does the whole take?",
        typed=True,
        unit="units",
        choices=(
            Choice("22", 22, why="2(m + p - 1): each stage works 16 units, and the pipeline fills and drains for 6."),
            Choice(
                "16",
                16,
                "All stages are always busy",
                "16 is the work of one stage. The last stage cannot begin before the first micro-batch has come down, "
                "and the first not end before the last one is back.",
            ),
            Choice(
                "11",
                11,
                "Only the way down",
                "That is the forward half, m + p - 1. All of them have to go back as well.",
            ),
            Choice(
                "64",
                64,
                "One action at a time",
                "So it was in lesson 05. Here stage 0 takes the next micro-batch while stage 1 works on the last.",
            ),
            Choice(
                "19",
                19,
                "It fills once",
                "The pipeline fills on the way down *and* on the way back: 3 units each.",
            ),
        ),
    ),
    Prediction(
        number="06.2",
        question="1F1B, 4 stages and 8 micro-batches: after the first few, every stage does one forward, one backward, "
        "in turn. How long does it take beside GPipe's 22, and how many micro-batches does stage 0 hold at most?",
        choices=(
            Choice(
                "Fewer than 22 units; 4",
                (Between(1, 21.9), 4),
                "Going back earlier means being done earlier",
                "The stages do the same work in another order. Filling and draining take as long: the bubble is the "
                "same.",
            ),
            Choice(
                "22 units; 4", (22, 4), why="The same makespan; stage s holds at most p - s, however many there are."
            ),
            Choice(
                "22 units; 8",
                (22, 8),
                "The same time, the same memory",
                "GPipe holds all 8 because it goes back last. 1F1B frees a micro-batch before it takes the next one.",
            ),
            Choice(
                "22 units; 1",
                (22, 1),
                "One forward, one backward: one in flight",
                "Stage 0 must fill the stages below it: its first micro-batch comes back only when three more are on "
                "the "
                "way. The *last* stage holds one.",
            ),
        ),
    ),
    Prediction(
        number="06.3",
        question="One single micro-batch on 4 stages. Its *time* is cut into 8 chunks, and stage s works on chunk t "
        "while stage s + 1 works on chunk t - 1. What part of the time is bubble?",
        choices=(
            Choice(
                "75%: with one micro-batch, one stage works at a time",
                0.75,
                "Pipelines need micro-batches",
                "They need *pieces*. A layer needs of the layer below only the steps that it has come to itself: "
                "chunks of "
                "time will do.",
            ),
            Choice(
                "27%, as with 8 micro-batches",
                Between(0.27, 0.28),
                why="(p - 1)/(c + p - 1): chunks take the place of micro-batches.",
            ),
            Choice(
                "12.5%: one part in 8",
                0.125,
                "The bubble is one over the pieces",
                "It is p - 1 = 3 slots, beside 8 of work: 3/11.",
            ),
            Choice(
                "0%: all stages work on it at once",
                0.0,
                "No waiting at all",
                "Stage 3 still has to wait for the first chunk to come down three stages, and it comes back up "
                "likewise.",
            ),
        ),
        tolerance=0.001,
    ),
    Prediction(
        number="06.4",
        question="The same single batch on 4 stages, its time cut into 16 chunks (paced, real ranks). How many times "
        "as fast as naive model parallelism?",
        choices=(
            Choice(
                "About 16 times: 16 chunks",
                Between(8, 100),
                "As many times as there are pieces",
                "There are four devices: more than four times is impossible. Pieces only fill the gaps.",
            ),
            Choice(
                "About 3 times",
                Between(1.8, 4.01),
                why="At best 4, the number of stages, less the bubble of 3 in 19 and the messages.",
            ),
            Choice(
                "As fast: there is only one micro-batch",
                Between(0, 1.5),
                "One batch cannot overlap with itself",
                "An LSTM's can, in time: layer 2 is at chunk t while layer 1 is at chunk t + 1.",
            ),
        ),
    ),
    Prediction(
        number="06.5",
        question="4 stages, 8 micro-batches, every action takes one unit. Now each stage holds two *virtual* stages of "
        "half the size, blocks 0 and 4, 1 and 5, 2 and 6, 3 and 7, and every micro-batch goes round twice. What part "
        "of the time is bubble? (Before: 27%.)",
        choices=(
            Choice(
                "43%: there are now 8 stages to fill",
                Between(0.42, 0.48),
                "A longer pipeline has a larger bubble",
                "It has eight stages, but a stage's turn is half as long, and the same four devices do all of it: what "
                "a device waits for is the first *half* of each stage above it.",
            ),
            Choice(
                "27%: the same work on the same devices",
                Between(0.27, 0.28),
                "Only micro-batches shrink the bubble",
                "What a stage waits for in the beginning is p - 1 turns, and a turn is half as long.",
            ),
            Choice(
                "16%",
                Between(0.15, 0.165),
                why="(p - 1)/(v m + p - 1) = 3/19: filling takes three turns of half the length.",
            ),
            Choice(
                "0%: somebody always has something to do",
                Between(0, 0.01),
                "Two stages on a device fill each other's gaps",
                "In the middle, yes. But the last device still waits for three turns in the beginning, and the first "
                "one at the end.",
            ),
        ),
    ),
    Prediction(
        number="06.6",
        question="1F1B on 4 stages, and each stage updates its weights as soon as a micro-batch has come back. How "
        "many "
        "updates lie between a micro-batch's forward and its backward pass, at most, on stages 0, 1, 2, 3?",
        choices=(
            Choice(
                "0, 0, 0, 0: its backward follows its forward",
                (0, 0, 0, 0),
                "One forward, one backward, of the same micro-batch",
                "Only on the last stage. On stage 0 the backward pass is of a micro-batch sent down three forwards "
                "ago.",
            ),
            Choice(
                "1, 1, 1, 1: one is always under way",
                (1, 1, 1, 1),
                "Everybody is one behind",
                "The further from the end, the longer the way down and back: stage 0 has more in flight than stage 2.",
            ),
            Choice("3, 2, 1, 0", (3, 2, 1, 0), why="As many as there are micro-batches in flight below: p - 1 - s."),
            Choice(
                "7, 7, 7, 7: all forwards come first",
                (7, 7, 7, 7),
                "As in GPipe",
                "GPipe runs all forwards first. 1F1B begins to go back as soon as it can.",
            ),
        ),
    ),
)
