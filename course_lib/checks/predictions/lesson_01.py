"""What to predict in lesson 01, one device."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Between, Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="01.1",
        question="The sequences become twice as long; the model stays as it is. What doubles: the activations, the "
        "gradients, the parameters?",
        choices=(
            Choice(
                "All three: an unrolled LSTM has a copy of its weights for every step",
                (Between(1.8, 2.2), Between(1.8, 2.2), Between(1.8, 2.2)),
                "Unrolling copies the weights",
                "The drawing has a box for every step; the memory has one set of weights, used again and again.",
            ),
            Choice(
                "Activations and gradients: every step makes a gradient",
                (Between(1.8, 2.2), Between(1.8, 2.2), Between(0.9, 1.1)),
                "A gradient for every step",
                "Every step adds *to the same* gradient tensor, which is as large as the parameters, whatever the "
                "length.",
            ),
            Choice(
                "Only the activations",
                (Between(1.8, 2.2), Between(0.9, 1.1), Between(0.9, 1.1)),
                why="Each step leaves numbers for the backward pass; weights and their gradients know nothing of "
                "steps.",
            ),
            Choice(
                "None of them: steps are run one after another",
                (Between(0.9, 1.1), Between(0.9, 1.1), Between(0.9, 1.1)),
                "One step at a time needs one step's memory",
                "True of the forward pass alone. The backward pass needs what *every* step left behind.",
            ),
        ),
    ),
    Prediction(
        number="01.2",
        question="The hidden size doubles, from 128 to 256. By how much do the parameters grow?",
        typed=True,
        unit="times as many",
        tolerance=0.15,
        choices=(
            Choice("4", 4, why="The matrices are H x H: both sides double."),
            Choice(
                "2",
                2,
                "As the state grows, so do the weights",
                "The state has H numbers, but each of them is computed from all H others: the matrices have H squared.",
            ),
            Choice(
                "8",
                8,
                "Four gates, each twice as large, twice",
                "There are four gates before and after. What grows are the two sides of each matrix: 2 x 2.",
            ),
            Choice(
                "16",
                16,
                "Each of the four gates grows fourfold",
                "Each one does, and so their sum does: four times as many in all, not four times four.",
            ),
        ),
    ),
    Prediction(
        number="01.3",
        question="64 sequences of up to 20 steps. One number changes: at step 6 of sequence 10. Which outputs of the "
        "LSTM change?",
        choices=(
            Choice(
                "Sequence 10, step 6 only",
                (1, 6, 6),
                "A step answers to its own input",
                "The state carries step 6 into every later step of the sequence: that is what it is for.",
            ),
            Choice(
                "Sequence 10, all steps",
                (1, 0, 19),
                "The LSTM sees the whole sequence",
                "It reads from left to right. What has been put out before step 6 cannot know what is to come.",
            ),
            Choice(
                "Sequence 10, from step 6 to the end",
                (1, 6, 19),
                why="Time is a chain, and only forward; another sequence never meets this one.",
            ),
            Choice(
                "All sequences, from step 6 to the end",
                (64, 6, 19),
                "A batch is computed together",
                "Together, but not mixed: each sequence has a state of its own. (Batch normalisation would mix them.)",
            ),
        ),
    ),
    Prediction(
        number="01.4",
        question="A text is run in five windows, the state is carried from each to the next, and *detached* in "
        "between. Compared with the text in one piece: are the outputs the same? Is the gradient?",
        choices=(
            Choice(
                "Both are the same",
                (True, True),
                "detach is bookkeeping",
                "It keeps the numbers and cuts their history: the gradient no longer flows from one window into the "
                "one "
                "before it.",
            ),
            Choice(
                "The outputs are, the gradient is not",
                (True, False),
                why="The numbers of the state go on; the gradient stops at the window's edge. That is the truncation.",
            ),
            Choice(
                "Neither: detaching resets the state",
                (False, False),
                "A detached state is lost",
                "`detach` is not zero. The next window begins with the very numbers in which the last one ended.",
            ),
        ),
    ),
    Prediction(
        number="01.5",
        question="Windows of four characters, equally many updates. *Carried*: each begins in the state in which the "
        "one before it ended. *Reset*: each begins with zeros. *Shuffled*: carried, but in random order. From lowest "
        "to highest loss:",
        choices=(
            Choice(
                "carried, reset, shuffled",
                ("carried", "reset", "shuffled"),
                why="State is memory beyond the window, if it is the right one; a stranger's is worse than none.",
            ),
            Choice(
                "carried, shuffled, reset",
                ("carried", "shuffled", "reset"),
                "Any state is better than none",
                "A state from elsewhere in the text says things that are not so. The model must learn to distrust it.",
            ),
            Choice(
                "shuffled, carried, reset",
                ("shuffled", "carried", "reset"),
                "Shuffling always helps",
                "It does where examples are independent. Here each window goes on from the one before: order is part "
                "of "
                "the data.",
            ),
            Choice(
                "reset, carried, shuffled",
                ("reset", "carried", "shuffled"),
                "A clean start is safest",
                "Four characters say little about the fifth. What came before the window says a good deal more.",
            ),
        ),
    ),
    Prediction(
        number="01.6",
        question="A text is run forward in ten chunks, and nothing but the state at each cut is kept. On the way back, "
        "each chunk is computed again when its turn comes. How much memory does that take at most, compared with the "
        "text in one piece?",
        choices=(
            Choice(
                "As much: the backward pass needs every activation",
                Between(0.8, 1.2),
                "Needed means needed at the same time",
                "It needs every one, but one chunk's after the other's: what the last chunk needed is gone before the "
                "one before it is computed again.",
            ),
            Choice(
                "About a half",
                Between(0.3, 0.8),
                "Only one of the two passes can save",
                "The forward pass leaves next to nothing behind, and the backward pass holds one chunk at a time: "
                "neither has half.",
            ),
            Choice(
                "About a tenth",
                Between(0.06, 0.3),
                why="One chunk of ten at a time, and beside it the states at the cuts, which are small.",
            ),
            Choice(
                "Next to nothing: only the states at the cuts",
                Between(0, 0.06),
                "What was dropped stays away",
                "It comes back on the way back: the chunk whose turn it is has all of its activations, a tenth of the "
                "whole.",
            ),
        ),
    ),
)
