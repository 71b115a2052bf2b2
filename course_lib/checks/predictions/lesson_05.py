"""What to predict in lesson 05, model parallelism."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Between, Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="05.1",
        question="50,000 words, 8 LSTM layers of 4,096 units: 1.5 billion parameters, in float32, trained with Adam on "
        "64 sequences of 32 words. How much memory does a training step need?",
        choices=(
            Choice(
                "About 6 GiB: 4 bytes for each parameter",
                Between(4, 9),
                "The model is its weights",
                "That is enough to *run* it. Training keeps a gradient and two of Adam's numbers beside each weight.",
            ),
            Choice(
                "About 12 GiB: a weight and a gradient for each",
                Between(9, 15),
                "The optimizer is free",
                "SGD's is. Adam keeps two running means for each parameter: 16 bytes per parameter in all, not 8.",
            ),
            Choice(
                "About 24 GiB",
                Between(20, 30),
                why="16 bytes per parameter: weight, gradient and Adam's two. The activations of this batch add "
                "little.",
            ),
            Choice(
                "More than 60 GiB: the activations are most of it",
                Between(60, 1e9),
                "Activations always dominate",
                "They grow with the batch and with the width; the weights with its square. At 4,096 units the "
                "weights win.",
            ),
        ),
    ),
    Prediction(
        number="05.2",
        question="Rank 1 forgets to send the gradient back, and rank 0 does not wait for it. Sixty updates. What do "
        "you see?",
        choices=(
            Choice(
                "An error: rank 0 has parameters without a gradient",
                None,
                "A missing gradient is an error",
                "Optimizers skip parameters whose `grad` is None, and say nothing. A frozen layer looks just the same.",
            ),
            Choice(
                "No error; the loss stays where it is",
                (0, False),
                "Half a model cannot learn",
                "Rank 1's half does learn: it makes the best of a first half that stays random.",
            ),
            Choice(
                "No error; the loss falls; nothing on rank 0 has moved",
                (0, True),
                why="The loss looks like that of a slow problem. Only a comparison with one process finds it out.",
            ),
            Choice(
                "No error; the loss falls; all parameters move",
                (5, True),
                "Autograd crosses the edge by itself",
                "It knows nothing of messages. What was received is a leaf, and there the gradient stops, unless you "
                "send it.",
            ),
        ),
    ),
    Prediction(
        number="05.3",
        question="Layer `i` on device `i % 4`, for 8 layers. How often do the activations change devices on their way "
        "forward?",
        typed=True,
        unit="times",
        choices=(
            Choice("7", 7, why="Between any two neighbours: every layer's output goes to another device."),
            Choice(
                "3",
                3,
                "Four devices, three borders",
                "That holds for *consecutive* blocks. Dealt in turn, every layer is a border.",
            ),
            Choice(
                "4",
                4,
                "Once for each device",
                "Each device is visited twice, and between any two of the eight layers lies a hop.",
            ),
            Choice(
                "8",
                8,
                "Once for each layer",
                "Nearly: 8 layers have 7 places between them. The last one's output stays where it is.",
            ),
        ),
    ),
    Prediction(
        number="05.4",
        question="Four ranks with a device each hold a quarter of the model. How many times as fast as one device is a "
        "training step?",
        choices=(
            Choice(
                "About 4 times: four devices compute",
                Between(3, 4.5),
                "Four devices, four times the speed",
                "Stage 1 needs what stage 0 puts out, and has nothing to do until then: they take turns.",
            ),
            Choice(
                "About 2 times: the halves of the step overlap",
                Between(1.3, 3),
                "Forward and backward overlap",
                "The backward pass begins when the forward pass has reached the end. Nothing of one batch overlaps.",
            ),
            Choice(
                "As fast as one, or a little slower",
                Between(0, 1.3),
                why="One of four works at a time, and messages come on top. It buys memory, and no time.",
            ),
        ),
    ),
    Prediction(
        number="05.5",
        question="Cut *inside the cell*, over two ranks: 6 layers, 12 steps, forward and backward. How many messages "
        "does an update take? (Cut between blocks it takes 2.)",
        choices=(
            Choice(
                "12: one forward and one backward for each layer",
                12,
                "As in a transformer",
                "A transformer's layer treats all steps in one product. An LSTM needs all of h before its next step: "
                "the "
                "ranks talk at *every* step.",
            ),
            Choice(
                "72: one for each step of each layer",
                72,
                "The backward pass is silent",
                "It talks as often: each rank's gates have a part of the gradient of every h.",
            ),
            Choice(
                "150: about two for each step of each layer",
                150,
                why="(2 x steps + 1) x layers, none of which can hide behind work.",
            ),
            Choice(
                "2: the cell's halves meet once",
                2,
                "A cut is a cut",
                "Between blocks, activations of all steps go in one message. Inside the cell, each step needs the "
                "last.",
            ),
        ),
    ),
)
