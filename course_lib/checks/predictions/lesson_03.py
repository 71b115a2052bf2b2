"""What to predict in lesson 03, padding and masking."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Between, Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="03.1",
        question="20 sequences of 4 to 60 steps are padded to a rectangle, and `out[:, -1]` is read. For how many of "
        "them is that the state at their own end?",
        choices=(
            Choice(
                "For all 20: zeros change nothing",
                20,
                "Padding is silent",
                "A zero is an input like any other: biases and the old state go through the gates, and the state "
                "moves on.",
            ),
            Choice(
                "For about half",
                Between(5, 19),
                "Long ones are near enough",
                "Near is not there: every step behind a sequence's end changes its state.",
            ),
            Choice(
                "Only for those as long as the longest",
                Between(1, 4),
                why="The last column is the end of the longest. For all others it lies in the padding.",
            ),
        ),
    ),
    Prediction(
        number="03.2",
        question="A *bidirectional* LSTM reads a sequence that is padded behind. At the real steps, is the output "
        "unchanged: left to right; right to left; and both, if it is packed?",
        choices=(
            Choice(
                "Yes, yes, yes: padding comes behind, and the loss leaves it out",
                (True, True, True),
                "Masking is always enough",
                "A mask hides the padding from the loss, not from the LSTM. From the right, the padding comes *first*.",
            ),
            Choice(
                "Yes, no, yes",
                (True, False, True),
                why="Right to left starts in the padding, and arrives at the data with a state that is not zero.",
            ),
            Choice(
                "No, no, yes: padding disturbs both directions",
                (False, False, True),
                "Padding reaches back",
                "From left to right it comes behind all that counts, and cannot reach what is before it.",
            ),
            Choice(
                "Yes, no, no: packing only saves time",
                (True, False, False),
                "Packing is an optimisation",
                "It hands over the real steps and nothing else: right to left, the reading starts at the true end.",
            ),
        ),
    ),
    Prediction(
        number="03.3",
        question="Every rank takes the mean of its own losses, and DDP averages the gradients. When is that the "
        "gradient of the whole batch?",
        choices=(
            Choice(
                "Always: the mean of the means is the mean",
                (True, False),
                "The mean of means",
                "Only of equally large groups. A rank with few steps counts as much as one with many, so its steps "
                "weigh "
                "more.",
            ),
            Choice(
                "Only if all ranks count equally many steps",
                (True, True),
                why="Otherwise a short sentence's words weigh more than a long one's, depending on who sits beside "
                "whom.",
            ),
            Choice(
                "Never: DDP averages, and a sum is needed",
                (False, True),
                "Averages are always wrong",
                "With equal counts it is exact. It is dividing by one's *own* count that breaks, not the averaging.",
            ),
        ),
    ),
    Prediction(
        number="03.4",
        question="Sentences of the Python documentation, 100 to a batch, taken at random. How much of the rectangle is "
        "padding?",
        choices=(
            Choice(
                "Less than a fifth",
                Between(0, 0.2),
                "Lengths even out",
                "A mean evens out. The width of a batch is a *maximum*: one long sentence in a hundred sets it for "
                "all.",
            ),
            Choice(
                "About a third",
                Between(0.2, 0.5),
                "Half of the width on average",
                "That would be so if lengths were spread evenly up to the longest. Most sentences are short, few "
                "very long.",
            ),
            Choice(
                "More than half",
                Between(0.5, 1),
                why="The longest of a hundred sets the width, and lengths have a long tail.",
            ),
        ),
    ),
    Prediction(
        number="03.5",
        question="Rank 0 has four batches, rank 1 three, inside `join()`. The gradient of every batch is 1. What "
        "gradient does rank 0 see in its fourth?",
        typed=True,
        tolerance=0.001,
        choices=(
            Choice("0.5", 0.5, why="Rank 1 answers with zeros, and they are averaged in: (1 + 0) / 2."),
            Choice(
                "1",
                1,
                "Who has finished no longer counts",
                "It goes on answering the others' all-reduces, with zeros, and the mean is still over *two* ranks.",
            ),
            Choice(
                "0",
                0,
                "Zeros win",
                "The zeros of one rank are averaged with the other's 1; they do not replace it.",
            ),
            Choice(
                "2",
                2,
                "The last gradient comes again",
                "Rank 1 repeats nothing: it answers with zeros. And DDP takes means, not sums.",
            ),
        ),
    ),
)
