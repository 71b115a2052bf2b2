"""Answers to the exercises of lesson 01."""

from __future__ import annotations

import numpy
import torch
from torch import nn
from torch.autograd import grad

from course_lib.core.model import detach_states
from tests.checks.bank import right, wrong

# 01.1 One step back


def forwards(inputs, hidden, cell, weight_ih, weight_hh, bias_ih, bias_hh):
    """The four gates, and tanh of the new cell."""
    enter, forget, new, leave = (inputs @ weight_ih.T + bias_ih + hidden @ weight_hh.T + bias_hh).chunk(4, dim=-1)
    enter, forget, new, leave = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    return enter, forget, new, leave, (forget * cell + enter * new).tanh()


def backwards(given, grad_new_cell=None, bend=None, order=(0, 1, 2, 3)):
    """The answer as it should be, but for what is bent."""
    weights = {name: each for name, each in given.items() if not name.startswith("grad_")}
    enter, forget, new, leave, shown = forwards(**weights)
    if grad_new_cell is None:
        grad_new_cell = given["grad_cell"] + given["grad_hidden"] * leave * (1 - shown**2)
    parts = {
        "enter": grad_new_cell * new * enter * (1 - enter),
        "forget": grad_new_cell * given["cell"] * forget * (1 - forget),
        "new": grad_new_cell * enter * (1 - new**2),
        "leave": given["grad_hidden"] * shown * leave * (1 - leave),
    }
    if bend:
        name, part = bend(enter, forget, new, leave, shown, grad_new_cell)
        parts[name] = part
    parts = list(parts.values())
    sums = torch.cat([parts[place] for place in order], dim=-1)
    return {"sums": sums, "cell": grad_new_cell * forget} | back_to_the_rest(sums, **given)


def back_to_the_rest(sums, inputs, hidden, weight_ih, weight_hh, **_):
    return {
        "inputs": sums @ weight_ih,
        "hidden": sums @ weight_hh,
        "weight_ih": sums.T @ inputs,
        "weight_hh": sums.T @ hidden,
        "bias_ih": sums.sum(0),
        "bias_hh": sums.sum(0),
    }


def by_autograd(backward, inputs, hidden, cell, weight_ih, weight_hh, bias_ih, bias_hh, grad_hidden, grad_cell):
    leaves = {
        "inputs": inputs,
        "hidden": hidden,
        "cell": cell,
        "weight_ih": weight_ih,
        "weight_hh": weight_hh,
        "bias_ih": bias_ih,
        "bias_hh": bias_hh,
    }
    for leaf in leaves.values():
        leaf.requires_grad_()
    sums = inputs @ weight_ih.T + bias_ih + hidden @ weight_hh.T + bias_hh
    enter, forget, new, leave = sums.chunk(4, dim=-1)
    new_cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    loss = (leave.sigmoid() * new_cell.tanh() * grad_hidden).sum() + (new_cell * grad_cell).sum()
    return dict(zip(["sums", *leaves], backward(loss, [sums, *leaves.values()]), strict=True))


@wrong("01.1", says="You let autograd find the gradients")
def asks_autograd(**given):
    return by_autograd(torch.autograd.grad, **given)


@wrong("01.1", says="You let autograd find the gradients")
def asks_autograd_by_another_name(**given):
    return by_autograd(grad, **given)


@wrong("01.1", says="You let autograd find the gradients")
def calls_backward(**given):
    def backward(loss, of):
        of[0].retain_grad()
        loss.backward()
        return [each.grad for each in of]

    return by_autograd(backward, **given)


def loss_of(inputs, hidden, cell, weight_ih, weight_hh, bias_ih, bias_hh, more, grad_hidden, grad_cell):
    sums = inputs @ weight_ih.T + bias_ih + hidden @ weight_hh.T + bias_hh + more
    enter, forget, new, leave = sums.chunk(4, dim=-1)
    new_cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return (leave.sigmoid() * new_cell.tanh() * grad_hidden).sum() + (new_cell * grad_cell).sum()


def one_number_at_a_time(slope, **given):
    """The gradient of every input, from the slope of the loss in every direction."""
    given["more"] = torch.zeros(len(given["inputs"]), len(given["bias_ih"]), dtype=torch.float64)
    found = {}
    for name in [name for name in given if not name.startswith("grad_")]:
        found[name] = torch.zeros_like(given[name])
        for place in range(given[name].numel()):
            direction = torch.zeros_like(given[name])
            direction.view(-1)[place] = 1.0
            found[name].view(-1)[place] = slope(
                lambda value, name=name: loss_of(**(given | {name: value})), given[name], direction
            )
    return found | {"sums": found["more"]}


@wrong("01.1", says="You let autograd find the gradients")
def by_forward_mode(**given):
    def slope(function, value, direction):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(value, direction)
            return torch.autograd.forward_ad.unpack_dual(function(dual)).tangent

    return one_number_at_a_time(slope, **given)


@wrong("01.1", says="You let autograd find the gradients")
def by_jvp(**given):
    return one_number_at_a_time(lambda f, value, direction: torch.func.jvp(f, (value,), (direction,))[1], **given)


@wrong("01.1", says="You let autograd find the gradients")
def by_vjp(**given):
    given["more"] = torch.zeros(len(given["inputs"]), len(given["bias_ih"]), dtype=torch.float64)
    found = {}
    for name in [name for name in given if not name.startswith("grad_")]:
        _, back = torch.func.vjp(lambda value, name=name: loss_of(**(given | {name: value})), given[name])
        (found[name],) = back(torch.tensor(1.0, dtype=torch.float64))
    return found | {"sums": found["more"]}


@wrong("01.1", says="`grad_cell`, is missing")
def forgets_grad_cell(**given):
    given["grad_cell"] = torch.zeros_like(given["grad_cell"])
    return backwards(given)


@wrong("01.1", says="The new cell has another use")
def through_the_cell_only(**given):
    return backwards(given, grad_new_cell=given["grad_cell"])


@wrong("01.1", says="as if its slope were 1")
def no_slope_of_tanh(**given):
    *_, leave, _ = forwards(**{name: each for name, each in given.items() if not name.startswith("grad_")})
    return backwards(given, grad_new_cell=given["grad_cell"] + given["grad_hidden"] * leave)


@wrong("01.1", says="you take 1 - tanh")
def does_not_square(**given):
    *_, leave, shown = forwards(**{name: each for name, each in given.items() if not name.startswith("grad_")})
    return backwards(given, grad_new_cell=given["grad_cell"] + given["grad_hidden"] * leave * (1 - shown))


@wrong("01.1", says="These are the gradients of the gates")
def stops_at_the_gates(inputs, hidden, cell, grad_hidden, grad_cell, **weights):
    enter, forget, new, leave, shown = forwards(inputs, hidden, cell, **weights)
    grad_new_cell = grad_cell + grad_hidden * leave * (1 - shown**2)
    sums = torch.cat([grad_new_cell * new, grad_new_cell * cell, grad_new_cell * enter, grad_hidden * shown], dim=-1)
    return {"sums": sums, "cell": grad_new_cell * forget} | back_to_the_rest(sums, inputs, hidden, **weights)


@wrong("01.1", says="but not in PyTorch's order")
def another_order(**given):
    return backwards(given, order=(0, 1, 3, 2))


@wrong("01.1", says='Only the *forget* part of the gradient of "sums" is wrong')
def forget_by_the_new_cell(**given):
    return backwards(given, bend=lambda i, f, g, o, t, whole: ("forget", whole * t.atanh() * f * (1 - f)))


@wrong("01.1", says='Only the *new* part of the gradient of "sums" is wrong')
def new_content_is_a_sigmoid(**given):
    return backwards(given, bend=lambda i, f, g, o, t, whole: ("new", whole * i * g * (1 - g)))


@wrong("01.1", says='Only the *leave* part of the gradient of "sums" is wrong')
def leave_without_tanh(**given):
    return backwards(given, bend=lambda i, f, g, o, t, whole: ("leave", given["grad_hidden"] * t.atanh() * o * (1 - o)))


@wrong("01.1", says="means over the sequences")
def weights_by_mean(**given):
    made = backwards(given)
    return made | {name: made[name] / len(given["inputs"]) for name in made if name.startswith(("weight", "bias"))}


@wrong("01.1", says="Both are added to the same sum")
def half_a_bias_each(**given):
    made = backwards(given)
    return made | {name: made[name] / 2 for name in ("bias_ih", "bias_hh")}


@wrong("01.1", says="a row for each sequence")
def biases_in_rows(**given):
    made = backwards(given)
    return made | {"bias_ih": made["sums"], "bias_hh": made["sums"]}


@wrong("01.1", says="gradient of 'weight_ih' has shape")
def transposed_weights(**given):
    made = backwards(given)
    return made | {name: made[name].T for name in ("weight_ih", "weight_hh")}


@wrong("01.1", says="You change a tensor that you were given")
def adds_to_grad_cell(**given):
    *_, leave, shown = forwards(**{name: each for name, each in given.items() if not name.startswith("grad_")})
    given["grad_cell"] += given["grad_hidden"] * leave * (1 - shown**2)
    return backwards(given, grad_new_cell=given["grad_cell"])


@wrong("01.1", says="is the new cell, from the forward pass")
def goes_forwards(inputs, hidden, cell, grad_hidden, grad_cell, **weights):
    enter, forget, new, leave, shown = forwards(inputs, hidden, cell, **weights)
    sums = torch.cat([enter, forget, new, leave], dim=-1)
    return {"sums": sums, "cell": forget * cell + enter * new, "hidden": leave * shown}


@wrong("01.1", says="that tanh times the gate")
def takes_new_hidden_for_the_tanh(inputs, hidden, cell, weight_ih, weight_hh, bias_ih, bias_hh, grad_hidden, grad_cell):
    sums = inputs @ weight_ih.T + bias_ih + hidden @ weight_hh.T + bias_hh
    enter, forget, new, leave = sums.chunk(4, dim=-1)
    enter, forget, new, leave = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    squashed = (forget * cell + enter * new).tanh()
    new_hidden = leave * squashed
    grad = grad_cell + grad_hidden * leave * (1 - new_hidden**2)
    grad_sums = torch.cat(
        [
            grad * new * enter * (1 - enter),
            grad * cell * forget * (1 - forget),
            grad * enter * (1 - new**2),
            grad_hidden * squashed * leave * (1 - leave),
        ],
        dim=-1,
    )
    return {
        "sums": grad_sums,
        "cell": grad * forget,
        "inputs": grad_sums @ weight_ih,
        "hidden": grad_sums @ weight_hh,
        "weight_ih": grad_sums.T @ inputs,
        "weight_hh": grad_sums.T @ hidden,
        "bias_ih": grad_sums.sum(0),
        "bias_hh": grad_sums.sum(0),
    }


@wrong("01.1", says="or added twice")
def one_bias_twice(inputs, hidden, cell, weight_ih, weight_hh, bias_ih, bias_hh, grad_hidden, grad_cell):
    sums = torch.addmm(bias_ih, inputs, weight_ih.T) + torch.addmm(bias_ih, hidden, weight_hh.T)
    enter, forget, new, leave = sums.chunk(4, dim=-1)
    enter, forget, new, leave = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    squashed = (forget * cell + enter * new).tanh()
    grad = grad_cell + grad_hidden * leave * (1 - squashed**2)
    grad_sums = torch.cat(
        [
            grad * new * enter * (1 - enter),
            grad * cell * forget * (1 - forget),
            grad * enter * (1 - new**2),
            grad_hidden * squashed * leave * (1 - leave),
        ],
        dim=-1,
    )
    return {
        "sums": grad_sums,
        "cell": grad * forget,
        "inputs": grad_sums @ weight_ih,
        "hidden": grad_sums @ weight_hh,
        "weight_ih": grad_sums.T @ inputs,
        "weight_hh": grad_sums.T @ hidden,
        "bias_ih": grad_sums.sum(0),
        "bias_hh": grad_sums.sum(0),
    }


@right("01.1")
def with_a_total_and_more(**given):
    made = backwards({name: each.float() for name, each in given.items()})
    return made | {"new_cell": given["cell"], "note": "in float32"}


@right("01.1")
def one_sequence_at_a_time(**given):
    per_sequence = ("inputs", "hidden", "cell", "grad_hidden", "grad_cell")
    rows = [
        backwards(given | {name: given[name][row : row + 1] for name in per_sequence})
        for row in range(len(given["inputs"]))
    ]
    return {
        name: torch.cat([row[name] for row in rows])
        if name in (*per_sequence, "sums")
        else sum(row[name] for row in rows)
        for name in rows[0]
    }


@right("01.1")
def with_einsum_and_slopes_of_outputs(inputs, hidden, cell, grad_hidden, grad_cell, **weights):
    units = hidden.shape[1]
    enter, forget, new, leave, shown = forwards(inputs, hidden, cell, **weights)
    whole = grad_cell + grad_hidden * leave / (shown.atanh().cosh() ** 2)
    sums = torch.empty(len(inputs), 4 * units, dtype=inputs.dtype)
    sums[:, :units] = whole * new * (enter - enter.square())
    sums[:, units : 2 * units] = whole * cell * (forget - forget.square())
    sums[:, 2 * units : 3 * units] = whole * enter * (1 - new) * (1 + new)
    sums[:, 3 * units :] = grad_hidden * shown * (leave - leave.square())
    return {
        "sums": sums,
        "cell": whole * forget,
        "inputs": torch.einsum("sg,gf->sf", sums, weights["weight_ih"]),
        "hidden": torch.einsum("sg,gh->sh", sums, weights["weight_hh"]),
        "weight_ih": torch.einsum("sg,sf->gf", sums, inputs),
        "weight_hh": torch.einsum("sg,sh->gh", sums, hidden),
        "bias_ih": torch.einsum("sg->g", sums),
        "bias_hh": sums.mean(0) * len(sums),
    }


# 01.2 Carry the state


def trains(model, optimizer, windows, begin=detach_states, zero=True, step=True, returns=None):
    """The answer as it should be; each keyword bends one thing."""
    losses, states = [], {}
    for inputs, targets in windows:
        outputs, states = model(inputs, begin(states))
        loss = (outputs - targets).square().mean()
        if zero:
            optimizer.zero_grad()
        loss.backward()
        if step:
            optimizer.step()
        losses.append(loss.item())
    return returns(losses, states) if returns else (losses, states)


@wrong("01.2", says="Every window begins in a state of zeros")
def begins_anew(model, optimizer, windows):
    return trains(model, optimizer, windows, begin=lambda _: {})


@wrong("01.2", says="Every window begins in a state of zeros")
def hands_in_zeros(model, optimizer, windows):
    def zeros(states):
        return {place: tuple(torch.zeros_like(each) for each in state) for place, state in states.items()}

    return trains(model, optimizer, windows, begin=zeros)


@wrong("01.2", says="You carry h but begin each window with c set to zeros")
def carries_h_alone(model, optimizer, windows):
    def h_alone(states):
        return {place: (h.detach(), torch.zeros_like(c)) for place, (h, c) in states.items()}

    return trains(model, optimizer, windows, begin=h_alone)


@wrong("01.2", says="You carry c but begin each window with h set to zeros")
def carries_c_alone(model, optimizer, windows):
    def c_alone(states):
        return {place: (torch.zeros_like(h), c.detach()) for place, (h, c) in states.items()}

    return trains(model, optimizer, windows, begin=c_alone)


@wrong("01.2", says="whose activations are gone")
def keeps_the_history(model, optimizer, windows):
    return trains(model, optimizer, windows, begin=lambda states: states)


@wrong("01.2", says="whose activations are gone")
def detaches_h_alone(model, optimizer, windows):
    def h_detached(states):
        return {place: (h.detach(), c) for place, (h, c) in states.items()}

    return trains(model, optimizer, windows, begin=h_detached)


@wrong("01.2", says="`retain_graph=True` is PyTorch's advice")
def retains_the_graph(model, optimizer, windows):
    losses, states = [], {}
    for inputs, targets in windows:
        outputs, states = model(inputs, states)
        loss = (outputs - targets).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)
    return losses, states


@wrong("01.2", says="still has the first window's gradient in it")
def never_zeroes(model, optimizer, windows):
    return trains(model, optimizer, windows, zero=False)


@wrong("01.2", says="no update was made")
def never_steps(model, optimizer, windows):
    return trains(model, optimizer, windows, step=False)


@wrong("01.2", says="the update comes only after the last window")
def updates_at_the_end(model, optimizer, windows):
    made = trains(model, optimizer, windows, zero=False, step=False)
    optimizer.step()
    return made


@wrong("01.2", says="the update comes only after the last window")
def in_one_piece(model, optimizer, windows):
    outputs, states = model(torch.cat([inputs for inputs, _ in windows]))
    errors = (outputs - torch.cat([targets for _, targets in windows])).square()
    losses = [error.mean() for error in errors.chunk(len(windows))]
    optimizer.zero_grad()
    sum(losses).backward()
    optimizer.step()
    return losses, states


@wrong("01.2", says="not those in which the last window ended")
def returns_the_first_states(model, optimizer, windows):
    first = model(windows[0][0])[1]
    return trains(model, optimizer, windows, returns=lambda losses, _: (losses, first))


@wrong("01.2", says="as it was before the update", never="one number for each window, in order.")
def losses_after_the_updates(model, optimizer, windows):
    states, losses = {}, []
    for inputs, targets in windows:
        optimizer.zero_grad()
        outputs, ended = model(inputs, states)
        (outputs - targets).square().mean().backward()
        optimizer.step()
        losses.append((model(inputs, states)[0] - targets).square().mean().item())
        states = detach_states(ended)
    return losses, states


@wrong("01.2", says="run each window again after its update")
def carries_a_second_pass(model, optimizer, windows):
    states, losses = {}, []
    for inputs, targets in windows:
        optimizer.zero_grad()
        (model(inputs, states)[0] - targets).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            outputs, states = model(inputs, states)
            losses.append((outputs - targets).square().mean().item())
    return losses, states


@wrong("01.2", says="not between the two")
def zeroes_before_the_step(model, optimizer, windows):
    states, losses = {}, []
    for inputs, targets in windows:
        outputs, states = model(inputs, detach_states(states))
        loss = (outputs - targets).square().mean()
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        losses.append(loss.item())
    return losses, states


@wrong("01.2", says="The updates are those of plain SGD")
def updates_by_hand(model, optimizer, windows):
    states, losses = {}, []
    for inputs, targets in windows:
        model.zero_grad()
        outputs, states = model(inputs, detach_states(states))
        loss = (outputs - targets).square().mean()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= optimizer.param_groups[0]["lr"] * parameter.grad
    return losses, states


@wrong("01.2", says="one number for each window")
def returns_the_mean_loss(model, optimizer, windows):
    return trains(model, optimizer, windows, returns=lambda losses, states: (sum(losses) / len(losses), states))


@wrong("01.2", says="You must return two things")
def returns_losses_only(model, optimizer, windows):
    return trains(model, optimizer, windows, returns=lambda losses, _: losses)


@wrong("01.2", says="run each window again after its update", never="Losses and weights are right")
def reads_each_window_again_without_a_graph(model, optimizer, windows):
    losses, states = [], {}
    for inputs, targets in windows:
        outputs, _ = model(inputs, states)
        loss = (outputs - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            _, states = model(inputs, states)
        losses.append(loss.item())
    return losses, states


def carried_by(model, optimizer, windows, keep=detach_states, limit=float("inf")):
    losses, states = [], {}
    for inputs, targets in windows:
        outputs, ended = model(inputs, keep(states))
        loss = nn.functional.mse_loss(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        losses.append(loss.item())
        states = detach_states(ended)
    return losses, states


@wrong("01.2", says="You clip the gradient")
def clips_as_the_lesson_does(model, optimizer, windows):
    return carried_by(model, optimizer, windows, limit=1.0)


@wrong("01.2", says="the last layer alone")
def carries_the_last_layer(model, optimizer, windows):
    return carried_by(
        model, optimizer, windows, keep=lambda states: {max(states): states[max(states)]} if states else {}
    )


@right("01.2")
def detaches_in_place(model, optimizer, windows):
    states, losses = {}, torch.zeros(len(windows), dtype=torch.float64)
    for number, (inputs, targets) in enumerate(windows):
        outputs, states = model(inputs, states)
        nn.functional.mse_loss(outputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[number] = nn.functional.mse_loss(outputs.detach(), targets)
        states = {place: [each.detach_() for each in state] for place, state in states.items()}
    return losses, states


@right("01.2")
def by_a_closure(model, optimizer, windows):
    losses, states = [], {}
    for inputs, targets in windows:
        after = {}

        def closure(inputs=inputs, targets=targets, begin=states, after=after):
            optimizer.zero_grad()
            outputs, ended = model(inputs, begin)
            after.update(detach_states(ended))
            loss = (outputs - targets).pow(2).mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure))
        states = after
    return tuple(losses), states


@right("01.2")
def by_gradients_of_its_own(model, optimizer, windows):
    parameters, losses, states = list(model.parameters()), [], {}
    for inputs, targets in windows:
        begin = {place: (h.data.clone(), c.data.clone()) for place, (h, c) in states.items()}
        outputs, states = model(inputs, begin)
        loss = (outputs - targets).square().sum() / targets.numel()
        for parameter, gradient in zip(parameters, grad(loss, parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()
        losses.append(float(loss))
    return losses, states


@right("01.2")
def with_a_closure(model, optimizer, windows):
    # The optimizer calls the closure, once for each window.
    losses, states = [], {}
    for inputs, targets in windows:
        begins, ends = states, {}

        def closure(inputs=inputs, targets=targets, begins=begins, ends=ends):
            optimizer.zero_grad()
            outputs, ended = model(inputs, begins)
            ends.update({layer: tuple(part.detach().clone() for part in pair) for layer, pair in ended.items()})
            loss = torch.nn.functional.mse_loss(outputs, targets)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
        states = ends
    return losses, states


# 01.3 Bytes before it runs


def counts(features, hidden, layers, steps, sequences, bytes_each, gates=4, biases=2, units=7, adam=2, front=None):
    """The answer as it should be; each keyword bends one thing."""
    widths = [front or features] + [hidden] * (layers - 1)
    parameters = bytes_each * sum(gates * hidden * (width + hidden + biases) for width in widths)
    activations = bytes_each * units * hidden * layers * steps * sequences
    return {
        "parameters": parameters,
        "gradients": parameters,
        "optimizer": adam * parameters,
        "activations": activations,
    }


@wrong("01.3", says="a plain recurrent layer")
def one_gate(**sizes):
    return counts(**sizes, gates=1)


@wrong("01.3", says="The new content has a set, too")
def three_gates(**sizes):
    return counts(**sizes, gates=3)


@wrong("01.3", says="two biases for each gate")
def a_single_bias(**sizes):
    return counts(**sizes, biases=1, adam=1)


@wrong("01.3", says="The biases are missing")
def no_bias(**sizes):
    lstm = nn.LSTM(sizes["features"], sizes["hidden"], sizes["layers"], bias=False)
    parameters = sizes["bytes_each"] * sum(each.numel() for each in lstm.parameters())
    made = counts(**sizes)
    return made | {"parameters": parameters, "gradients": parameters, "optimizer": 2 * parameters}


@wrong("01.3", says="The first one reads the *features*")
def all_layers_alike(**sizes):
    return counts(**sizes, front=sizes["hidden"])


@wrong("01.3", says="Only the first one reads them")
def features_everywhere(features, hidden, layers, steps, sequences, bytes_each):
    parameters = bytes_each * layers * 4 * (hidden * features + hidden**2 + 2 * hidden)
    made = counts(features, hidden, layers, steps, sequences, bytes_each)
    return made | {"parameters": parameters, "gradients": parameters, "optimizer": 2 * parameters}


@wrong("01.3", says="the parameters of the first layer only")
def one_layer_of_parameters(**sizes):
    made = counts(**sizes)
    return counts(**sizes | {"layers": 1}) | {"activations": made["activations"]}


@wrong("01.3", says="Adam keeps two numbers per parameter: the mean")
def one_number_for_adam(**sizes):
    return counts(**sizes, adam=1)


@wrong("01.3", says="which are counted already")
def three_numbers_for_adam(**sizes):
    return counts(**sizes, adam=3, units=6)


@wrong("01.3", says="one number, the output,")
def keeps_h_alone(**sizes):
    return counts(**sizes, units=1)


@wrong("01.3", says="five numbers")
def gates_and_cell(**sizes):
    return counts(**sizes, units=5)


@wrong("01.3", says="The activations of one step")
def forgets_the_steps(**sizes):
    return counts(**sizes | {"steps": 1})


@wrong("01.3", says="The activations of one layer")
def one_layer_of_activations(**sizes):
    made = counts(**sizes)
    return made | {"activations": made["activations"] // sizes["layers"]}


@wrong("01.3", says="You count Adam's steps", never="The activations of one layer")
def with_adams_steps(**sizes):
    counted = in_a_closed_form(**sizes)
    return counted | {"optimizer": counted["optimizer"] + 16 * sizes["layers"]}


@wrong("01.3", says="The batch itself is in your count", never="eight numbers")
def with_the_batch(**sizes):
    counted, batch = in_a_closed_form(**sizes), sizes["features"] * sizes["steps"] * sizes["sequences"]
    return counted | {"activations": counted["activations"] + batch * sizes["bytes_each"]}


@wrong("01.3", says="The activations of one sequence")
def one_sequence(**sizes):
    return counts(**sizes | {"sequences": 1})


@wrong("01.3", says="whatever `bytes_each` says")
def always_four_bytes(**sizes):
    return counts(**sizes | {"bytes_each": 4})


@wrong("01.3", says="Adam's numbers have 4 bytes")
def four_bytes_for_adam(**sizes):
    return counts(**sizes) | {"optimizer": counts(**sizes | {"bytes_each": 4})["optimizer"]}


@wrong("01.3", says="You count numbers, but the exercise asks for bytes")
def numbers(**sizes):
    return counts(**sizes | {"bytes_each": 1})


@wrong("01.3", says="one gradient for each parameter")
def gradients_for_every_sequence(**sizes):
    made = counts(**sizes)
    return made | {"gradients": made["gradients"] * sizes["sequences"]}


@wrong("01.3", says="a dict with")
def only_the_total(**sizes):
    return sum(counts(**sizes).values())


@right("01.3")
def asks_pytorch(features, hidden, layers, steps, sequences, bytes_each):
    lstm = nn.LSTM(features, hidden, layers)
    parameters = sum(each.nbytes for each in lstm.parameters()) / 4 * bytes_each
    activations = float(7 * hidden * layers * steps * sequences * bytes_each)
    return {"parameters": parameters, "gradients": parameters, "optimizer": 2 * parameters, "activations": activations}


@right("01.3")
def with_a_total(**sizes):
    made = counts(**sizes)
    return {"total": sum(made.values())} | made


@right("01.3")
def in_a_closed_form(features, hidden, layers, steps, sequences, bytes_each):
    parameters = bytes_each * 4 * hidden * (features + hidden * (2 * layers - 1) + 2 * layers)
    activations = torch.tensor([7, hidden, layers, steps, sequences, bytes_each]).prod()
    made = {"activations": activations, "optimizer": parameters * 2}
    made["parameters"] = made["gradients"] = torch.tensor(parameters)
    return made


@right("01.3")
def in_numpy(features, hidden, layers, steps, sequences, bytes_each):
    widths = numpy.array([features] + [hidden] * (layers - 1))
    size = (4 * hidden * (widths + hidden + 2)).sum() * bytes_each
    activations = numpy.float32(7 * hidden * layers * steps * sequences * bytes_each)
    return {"parameters": size, "gradients": size, "optimizer": 2 * size, "activations": activations}
