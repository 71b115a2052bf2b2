"""What to predict in lesson 08, when ranks hang."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="08.1",
        question="Four ranks, a timeout of one second; rank 1 does not come to the all-reduce. Who raises, and does "
        "the "
        "error say who is missing?",
        choices=(
            Choice(
                "Rank 1 raises: it is the one that is late",
                (False, True),
                "The guilty one gets the error",
                "Rank 1 is not in the call, so no clock of that call runs for it. It goes on, unaware.",
            ),
            Choice(
                "The others raise, and name rank 1",
                (True, True),
                "The library knows who is missing",
                "A rank knows only the neighbour that it waits for a message of, and says that time is up. (A "
                "`monitored_barrier` asks.)",
            ),
            Choice(
                "The others raise, and nobody says who is missing",
                (True, False),
                why="The traceback comes from an innocent rank. Ask who did *not* print one.",
            ),
        ),
    ),
    Prediction(
        number="08.2",
        question="Every gradient is 1, so every sum over four ranks should be 4. After each of four updates rank 0, "
        "alone, "
        "all-reduces an error of 100. What sums does rank 1 see?",
        choices=(
            Choice(
                "4, then nothing: all hang at rank 0's first extra call",
                "[4.0]",
                "An extra call hangs at once",
                "It meets the others' *next* all-reduce, of the same shape. Nobody waits, until rank 0 has one call "
                "left over.",
            ),
            Choice(
                "4, 4, 4, 4: only rank 0 hangs in its own call",
                "[4.0, 4.0, 4.0, 4.0]",
                "A call belongs to its line",
                "A collective has no name: it is *the next one*. Rank 0's error meets the others' gradients.",
            ),
            Choice(
                "4, 103, 4, 103",
                "[4.0, 103.0, 4.0, 103.0]",
                why="100 + 3 x 1, every second time. Three ranks finish with garbage; the hang comes at the very end.",
            ),
            Choice(
                "4, 104, 104, 104",
                "[4.0, 104.0, 104.0, 104.0]",
                "The error is added on top",
                "In the call in which rank 0 brings 100, it does not bring its gradient: 100 + 3. That comes in the "
                "next one.",
            ),
        ),
    ),
    Prediction(
        number="08.3",
        question="Two ranks swap tensors, and each sends before it receives. What happens with 4 bytes, and with 40 "
        "MB? "
        "(gloo, as here.)",
        choices=(
            Choice(
                "4 bytes get through; 40 MB hang",
                ["Run", "RanksStuck"],
                "Small messages are buffered",
                "Where a transport has a buffer, they are; gloo's `send` waits for its receiver however small the "
                "message. "
                "Nobody promises the buffer.",
            ),
            Choice(
                "Both get through: a send does not wait",
                ["Run", "Run"],
                "Sending is handing over",
                "`dist.send` may wait until somebody receives, and here nobody has come to the receive.",
            ),
            Choice(
                "Both hang", ["RanksStuck", "RanksStuck"], why="A send may wait for its receive. Here it always does."
            ),
        ),
    ),
    Prediction(
        number="08.4",
        question="A job resumes: the model is wrapped in DDP, *then* rank 0 loads the checkpoint. One update. Do the "
        "ranks' weights agree?",
        choices=(
            Choice(
                "Yes: DDP keeps the ranks equal",
                True,
                "DDP synchronises weights",
                "It sends them once, when the model is wrapped. After that it averages *gradients*, and trusts that "
                "the "
                "weights are equal.",
            ),
            Choice("No, and nothing says so", False, why="Rank 0 trains the checkpoint, the others a random model."),
            Choice(
                "There is an error: DDP checks",
                None,
                "Somebody would notice",
                "It compares shapes when it wraps, and no values, ever. Nothing warns.",
            ),
        ),
    ),
    Prediction(
        number="08.5",
        question="Two replicas of two stages. By mistake gradients are summed over *everyone*. Do the replicas still "
        "agree with each other?",
        choices=(
            Choice(
                "No: comparing the replicas finds it",
                False,
                "A wrong sum shows as a difference",
                "All ranks take part in the same sum, so all get the same wrong number. There is no difference to "
                "find.",
            ),
            Choice(
                "Yes: no comparison between ranks will find it",
                True,
                why="They agree, on a wrong number. Only a comparison with one process finds that.",
            ),
        ),
    ),
    Prediction(
        number="08.6",
        question="Rank 2 is four times as slow in its forward pass; all ranks all-reduce after each update. Whose "
        "row in "
        "the timeline has *hardly any* communication?",
        choices=(
            Choice(
                "Rank 2's, the slow one's",
                2,
                why="It comes last, and finds the others waiting. Their green is waiting.",
            ),
            Choice(
                "The others': they are quick at it",
                "the others",
                "The slow one is slow in everything",
                "An all-reduce begins when the last rank has come. The quick ones come early, and wait in it.",
            ),
            Choice(
                "All alike: an all-reduce takes as long for everyone",
                "all alike",
                "A collective takes the same time everywhere",
                "It *ends* at the same time for everyone. It begins when a rank comes to it.",
            ),
        ),
    ),
)
