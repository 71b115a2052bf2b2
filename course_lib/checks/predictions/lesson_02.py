"""What to predict in lesson 02, data parallelism."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Between, Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="02.1",
        question="A batch of 16 sequences is cut into four shards of four. How far is the mean of the four shards' "
        "gradients from the gradient of the batch?",
        choices=(
            Choice(
                "Far: an LSTM's hidden state ties the examples together",
                Between(1e-3, 1e9),
                "State couples the examples",
                "The hidden state of a sequence lives and dies with that sequence. Nothing passes from one to another.",
            ),
            Choice(
                "Close, as an estimate is: each shard sees a sample",
                Between(1e-9, 1e-3),
                "A shard's gradient is an estimate",
                "One shard's is. All four together have seen every sequence once: the mean of equal shards *is* the "
                "mean.",
            ),
            Choice(
                "Not at all, but for the last digits",
                Between(0, 1e-10),
                why="A mean over 16 is the mean of four means over 4. Only the order of additions differs.",
            ),
        ),
    ),
    Prediction(
        number="02.2",
        question="With 4 ranks, `SumNotMean` forgets to divide: the gradient is four times too large. Adam's learning "
        "rate is 0.01. How far are the *parameters* from the right ones after the first update?",
        choices=(
            Choice(
                "By about 0.03: three steps too far",
                Between(0.005, 1e9),
                "Four times the gradient, four times the step",
                "So it is with SGD. Adam divides the gradient by its own size, and a factor of four cancels.",
            ),
            Choice(
                "By less than 0.001: hardly at all",
                Between(1e-9, 1e-3),
                why="Adam divides by the gradient's size. That hides the mistake, until you clip, or change to SGD.",
            ),
            Choice(
                "By nothing: Adam makes them exactly equal",
                Between(0, 1e-10),
                "Adam is blind to scale",
                "Nearly. It adds a small epsilon to the size, and where gradients are tiny that shows: the proof "
                "sees it.",
            ),
        ),
    ),
    Prediction(
        number="02.3",
        question="Ten examples, four ranks, PyTorch's `DistributedSampler`. How many examples do the ranks read in an "
        "epoch, all together?",
        typed=True,
        unit="examples",
        choices=(
            Choice("12", 12, why="Every rank gets equally many: three. Two examples come twice."),
            Choice(
                "10",
                10,
                "Every example once",
                "Ten cannot be shared out equally among four. So that no rank waits, it repeats two of them.",
            ),
            Choice(
                "8",
                8,
                "What does not divide is dropped",
                "That is `drop_last=True`. By default it repeats instead of dropping.",
            ),
            Choice(
                "40",
                40,
                "Every rank reads everything",
                "So it would be with the same loader on every rank. The sampler's whole purpose is to share them out.",
            ),
        ),
    ),
    Prediction(
        number="02.4",
        question="Each rank's batch grows from 1 to 256 sequences. How many times as many bytes are all-reduced in an "
        "update?",
        typed=True,
        unit="times as many",
        tolerance=0.001,
        choices=(
            Choice("1", 1, why="What travels is the gradient, and it is as large as the model."),
            Choice(
                "256",
                256,
                "More examples, more gradient",
                "All examples of a rank add to *one* gradient, which is as large as the model, whatever the batch.",
            ),
            Choice(
                "16",
                16,
                "It grows with the root of the batch",
                "The *noise* of a gradient changes with the root of the batch. Its size in bytes does not change at "
                "all.",
            ),
        ),
    ),
    Prediction(
        number="02.5",
        question="Two ranks train on a text with carried state, but its columns are dealt out anew for every window. "
        "Which update is the first to be wrong?",
        choices=(
            Choice(
                "None: every column is still read by somebody",
                None,
                "Every example once is enough",
                "Every window is read once, but by a rank that holds the *state* of other columns.",
            ),
            Choice(
                "The first",
                1,
                "Wrong from the start",
                "In the first window there is no state yet: zeros on every rank, for every column.",
            ),
            Choice(
                "The second",
                2,
                why="From there on each rank goes on from a stranger's state. Nothing crashes.",
            ),
        ),
    ),
    Prediction(
        number="02.6",
        question="One pass over the same text, with plain SGD at the same learning rate: by one rank with 8 sequences, "
        "or by four ranks with 8 each. How is the loss of the four afterwards, on text that nobody has read?",
        choices=(
            Choice(
                "The same: they have read the same text",
                Between(-0.05, 0.05),
                "Examples read are what counts",
                "They have read as much, but made a quarter of the updates, at the same rate.",
            ),
            Choice(
                "Higher",
                Between(0.1, 9.0),
                why="A quarter of the updates, at the same rate. With the batch, the rate must go up, too.",
            ),
            Choice(
                "Lower: a larger batch gives a better gradient",
                Between(-9.0, -0.05),
                "A better gradient makes up for fewer steps",
                "Its noise is smaller. But the rate is the same, and there are a quarter of the steps.",
            ),
        ),
    ),
)
