"""What to predict in lesson 04, accumulation."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Between, Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="04.1",
        question="A batch of 256 sequences is run as 8 micro-batches of 32. How many times smaller do the gradients "
        "and the activations become?",
        choices=(
            Choice(
                "Both about 8 times",
                (Between(4, 16), Between(4, 16)),
                "A gradient per example",
                "All examples add to one gradient, as large as the model. It does not know how many there were.",
            ),
            Choice(
                "Neither: all must be kept until the update",
                (Between(0.9, 1.1), Between(0.9, 1.1)),
                "The update needs everything at once",
                "It needs the *sum* of the gradients. A micro-batch's activations are free when its backward pass is "
                "done.",
            ),
            Choice(
                "The gradients stay, the activations shrink about 8 times",
                (Between(0.9, 1.1), Between(4, 16)),
                why="Only one micro-batch's activations are there at a time; gradients add up in the same tensors.",
            ),
        ),
    ),
    Prediction(
        number="04.2",
        question="Twelve sequences of 1 to 40 words in four micro-batches; each one's mean loss is divided by 4. How "
        "far is the sum of their gradients from that of the whole batch?",
        choices=(
            Choice(
                "Equal: a quarter of each mean makes the mean",
                Between(0, 1e-9),
                "The mean of means",
                "So it is with equal lengths. Here a micro-batch with 6 words counts as much as one with 40.",
            ),
            Choice(
                "Off by less than 1%",
                Between(1e-9, 0.01),
                "It evens out",
                "Nothing evens out within an update: words of short sequences weigh several times what the others do.",
            ),
            Choice(
                "Off by more than 10%",
                Between(0.1, 100),
                why="Lesson 03 again, over time instead of over ranks. The remedy is the same: sums, divided once.",
            ),
        ),
    ),
    Prediction(
        number="04.3",
        question="Four micro-batches under DDP. `no_sync()` is put around the first three *backward* passes, and the "
        "forward passes stay outside. How often are the gradients sent?",
        typed=True,
        unit="times",
        choices=(
            Choice("4", 4, why="Whether to send is decided in the forward pass, and all four of them were outside."),
            Choice(
                "1",
                1,
                "Sending happens in the backward pass, so that is where it is switched off",
                "It does happen there, but DDP prepares for it in the forward pass, and does not ask again.",
            ),
            Choice(
                "0",
                0,
                "no_sync is for good",
                "It lasts as long as its `with` block. And here it has no effect at all: the forward passes are "
                "outside.",
            ),
            Choice(
                "3",
                3,
                "It sends in the others",
                "That would be the wrong way round; the last one sends in any case. But the three others send too.",
            ),
        ),
    ),
    Prediction(
        number="04.4",
        question="`LastGradientOnly` averages, in the last backward pass, the gradient that a tensor hook is handed. "
        "Is it the same as one process with 1 micro-batch? With 3?",
        choices=(
            Choice(
                "Yes; yes: by then the gradient has been accumulated",
                (True, True),
                "The hook sees what has been added up",
                "A tensor hook is handed *this pass's* gradient. What earlier passes left in `.grad` it never sees.",
            ),
            Choice(
                "Yes; no",
                (True, False),
                why="With one micro-batch its gradient is all there is, so a test with one passes.",
            ),
            Choice(
                "No; no: a hook comes too early",
                (False, False),
                "Hooks and averaging do not go together",
                "They do: DDP itself is built of hooks. With one micro-batch this one is right.",
            ),
        ),
    ),
    Prediction(
        number="04.5",
        question="A loop that is often written: an update after every 4 micro-batches, a scheduler that halves the "
        "rate after 10 steps, called once per *micro-batch*. After 10 micro-batches: what is the rate, and how many "
        "of them have not moved the weights?",
        choices=(
            Choice(
                "1.0, and none",
                (1.0, 0),
                "The framework keeps count",
                "Nobody does. The scheduler counts its calls, and the last two micro-batches wait for two that never "
                "come.",
            ),
            Choice(
                "1.0, and two",
                (1.0, 2),
                "A scheduler counts updates",
                "It counts how often `step()` was called: ten times, after two updates.",
            ),
            Choice(
                "0.5, and none",
                (0.5, 0),
                "The tail is included",
                "10 is not a multiple of 4: the last two are in `.grad` when the loop ends, and no update takes them.",
            ),
            Choice("0.5, and two", (0.5, 2), why="Two updates made, ten counted, and a tail of two left in `.grad`."),
        ),
    ),
)
