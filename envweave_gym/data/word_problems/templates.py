"""The templates of synthetic word problems: each draws numbers, writes a solution and formulates the question."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from envweave_gym.data.word_problems.draft import Draft, Number, format_number

Template = Callable[[Draft], tuple[str, Number]]
"""Function that writes the steps of a solution into a draft, and returns the question and the result."""


def _half_as_many(draft: Draft) -> tuple[str, Number]:
    (name, he, _), things = (
        draft.person(),
        draft.pick("candles", "stickers", "postcards", "key rings", "magnets"),
    )
    sold, price = draft.number(20, 180, 2), draft.number(2, 9)
    first, second = draft.pick(("April", "May"), ("June", "July"), ("October", "November"))
    half = draft.step(f"{name} sold # {things} in {second}.", sold, "/", 2)
    both = draft.step(f"In the two months {he} sold # {things}.", sold, "+", half)
    paid = draft.step("They brought in $#.", both, "*", price)
    return (
        f"{name} sold {sold} {things} in {first} and half as many in {second}. Each of them cost "
        f"${price}. How many dollars did {he} take in over the two months?",
        paid,
    )


def _part_of_an_hour(draft: Draft) -> tuple[str, Number]:
    (name, he, his), work = (
        draft.person(),
        draft.pick("babysitting", "tutoring", "mowing lawns", "walking dogs"),
    )
    wage, minutes, days = draft.number(6, 36, 6), draft.number(20, 110, 10), draft.number(2, 9)
    a_minute = draft.step(f"{name} earns $# a minute.", wage, "/", 60)
    a_day = draft.step(f"So {he} earns $# a day.", a_minute, "*", minutes)
    total = draft.step(f"In {days} days that is $#.", a_day, "*", days)
    return (
        f"{name} earns ${wage} an hour for {work}. On each of {days} days {he} worked {minutes} minutes. "
        f"How many dollars were {his} earnings?",
        total,
    )


def _change(draft: Draft) -> tuple[str, Number]:
    (name, he, _), (one, other) = (
        draft.person(),
        draft.pick(("pens", "nibs"), ("rolls", "buns"), ("limes", "figs")),
    )
    many, few = draft.number(4, 12), draft.number(2, 9)
    dear, cheap = Fraction(draft.number(4, 11), 4), Fraction(draft.number(2, 9), 10)
    for_one = draft.step(f"The {one} cost $#.", many, "*", dear)
    for_other = draft.step(f"The {other} cost $#.", few, "*", cheap)
    both = draft.step("Together that is $#.", for_one, "+", for_other)
    change = draft.step(f"{name} gets back $#.", 50, "-", both)
    return (
        f"{name} buys {many} {one} at ${float(dear):.2f} each and {few} {other} at ${float(cheap):.2f} "
        f"each, and pays with a $50 bill. How many dollars does {he} get back?",
        change,
    )


def _savings(draft: Draft) -> tuple[str, Number]:
    (name, he, his), thing = draft.person(), draft.pick("bicycle", "tent", "guitar", "camera", "skateboard")
    price, gift, times = draft.number(160, 400, 20), draft.number(6, 19), draft.pick(2, 3)
    part = draft.pick(2, 4, 5)
    saved = draft.step(f"{name} has $# already.", price, "/", part)
    more = draft.step(f"{his.capitalize()} grandparents gave $#.", gift, "*", times)
    missing = draft.step(f"{he.capitalize()} still needs $#.", price, "-", saved, "-", gift, "-", more)
    return (
        f"{name} saves for a {thing} that costs ${price}, and has one {_ORDINALS[part]} of the money. "
        f"{his.capitalize()} parents give ${gift}, and {his} grandparents {_TIMES[times]} as much as the "
        f"parents. How many more dollars does {name} need?",
        missing,
    )


_ORDINALS = {2: "half", 3: "third", 4: "quarter", 5: "fifth"}
_TIMES = {2: "twice", 3: "three times", 4: "four times"}


def _pages(draft: Draft) -> tuple[str, Number]:
    name, he, _ = draft.person()
    a_day, days, rest, nights = (draft.number(low, high) for low, high in ((8, 40), (3, 9), (30, 90), (2, 6)))
    total = a_day * days + rest * nights
    read = draft.step(f"{name} has read # pages.", a_day, "*", days)
    left = draft.step("There are # pages left.", total, "-", read)
    each = draft.step(f"So {he} must read # pages each night.", left, "/", nights)
    return (
        f"{name} reads a book of {total} pages. For {days} days {he} has read {a_day} pages a day. How "
        f"many pages must {he} read each night to finish it in {nights} more nights?",
        each,
    )


def _part_of_a_school(draft: Draft) -> tuple[str, Number]:
    name, below, club = draft.person()[0], draft.pick(4, 5, 8), draft.pick("chess", "drama", "robotics")
    above, each = draft.number(1, below - 1), draft.number(6, 60, 2)
    pupils = below * each
    girls = draft.step("# of the pupils are girls.", pupils, "*", above, "/", below)
    boys = draft.step("That leaves # boys.", pupils, "-", girls)
    members = draft.step(f"# boys are in the {club} club.", boys, "/", 2)
    return (
        f"Of the {pupils} pupils of {name}'s school {above}/{below} are girls. Half of the boys, and {each} "
        f"girls, are in the {club} club. How many pupils are in the {club} club?",
        draft.step(f"So the {club} club has # members.", members, "+", each),
    )


def _discount(draft: Draft) -> tuple[str, Number]:
    (name, he, _), thing = draft.person(), draft.pick("coat", "desk", "lamp", "suitcase", "pair of boots")
    price, percent, shipping = draft.number(40, 300, 20), draft.number(5, 60, 5), draft.number(3, 15)
    off = draft.step("The discount is $#.", price, "*", percent, "/", 100)
    lower = draft.step(f"The {thing} then costs $#.", price, "-", off)
    return (
        f"A {thing} costs ${price}. {name} gets {percent}% off, and pays ${shipping} for shipping on top "
        f"of the lower price. How many dollars does {he} pay in all?",
        draft.step(f"With shipping {name} pays $#.", lower, "+", shipping),
    )


def _two_legs(draft: Draft) -> tuple[str, Number]:
    (name, he, _), vehicle = draft.person(), draft.pick("a van", "a bus", "a truck", "a train")
    slow, fast = draft.number(30, 50, 5), draft.number(55, 90, 5)
    first, second = Fraction(draft.number(3, 9), 2), draft.number(2, 6)
    one = draft.step("The first part is # miles long.", slow, "*", first)
    other = draft.step("The second part is # miles long.", fast, "*", second)
    return (
        f"{name} drives {vehicle} at {slow} miles an hour for {format_number(first)} hours, and then at {fast} "
        f"miles an hour for {second} hours. How many miles does {he} drive?",
        draft.step(f"In all {he} drives # miles.", one, "+", other),
    )


def _recipe(draft: Draft) -> tuple[str, Number]:
    (name, he, _), cake = draft.person(), draft.pick("muffins", "pancakes", "cookies", "scones")
    pieces, cups, batches = draft.number(8, 24, 4), Fraction(draft.number(3, 11), 4), draft.number(3, 9)
    bag = draft.number(25, 36)
    wanted = pieces * batches
    times = draft.step(f"That is # batches of {cake}.", wanted, "/", pieces)
    flour = draft.step("They take # cups of flour.", cups, "*", times)
    return (
        f"A recipe for {pieces} {cake} takes {format_number(cups)} cups of flour. {name} bakes {wanted} {cake} "
        f"from a bag that holds {bag} cups of flour. How many cups are left in the bag?",
        draft.step(f"So {he} has # cups left.", bag, "-", flour),
    )


def _legs_on_a_farm(draft: Draft) -> tuple[str, Number]:
    (name, _, _), (bird, beast) = (
        draft.person(),
        draft.pick(("hens", "goats"), ("ducks", "cows"), ("geese", "sheep")),
    )
    birds, more = draft.number(6, 60), draft.number(3, 20)
    beasts = draft.step(f"There are # {beast}.", birds, "+", more)
    two = draft.step(f"The {bird} have # legs.", birds, "*", 2)
    four = draft.step(f"The {beast} have # legs.", beasts, "*", 4)
    return (
        f"{name} keeps {birds} {bird}, and {more} more {beast} than {bird}. How many legs do all of "
        "these animals have?",
        draft.step("All animals have # legs.", two, "+", four),
    )


def _orchard(draft: Draft) -> tuple[str, Number]:
    (name, he, his), fruit = draft.person(), draft.pick("apples", "pears", "plums", "peaches")
    rows, trees, each, percent = (draft.number(*of) for of in ((3, 12), (5, 15, 5), (20, 80, 20), (5, 30, 5)))
    all_trees = draft.step("There are # trees.", rows, "*", trees)
    ripe = draft.step(f"They carry # {fruit}.", all_trees, "*", each)
    lost = draft.step(f"The storm took # {fruit}.", ripe, "*", percent, "/", 100)
    return (
        f"In {name}'s orchard stand {rows} rows of {trees} trees, each with {each} {fruit}. A storm "
        f"takes {percent}% of {his} {fruit}. How many {fruit} does {he} still have?",
        draft.step(f"So # {fruit} are left.", ripe, "-", lost),
    )


def _ages(draft: Draft) -> tuple[str, Number]:
    (name, _, his), relative = draft.person(), draft.pick("aunt", "uncle", "neighbour", "coach")
    age, times, older, years = (
        draft.number(6, 16),
        draft.pick(2, 3, 4),
        draft.number(2, 9),
        draft.number(3, 15),
    )
    product = draft.step(f"{_TIMES[times].capitalize()} the age of {name} is # years.", age, "*", times)
    now = draft.step(f"So the {relative} is # years old.", product, "+", older)
    return (
        f"{name} is {age} years old. {his.capitalize()} {relative} is {older} years older than "
        f"{_TIMES[times]} that. How old will the {relative} be in {years} years?",
        draft.step(f"In {years} years the {relative} will be # years old.", now, "+", years),
    )


def _workers(draft: Draft) -> tuple[str, Number]:
    name, (place, things) = draft.person()[0], draft.pick(("bakery", "loaves"), ("workshop", "chairs"))
    workers, each, hours, broken = (draft.number(*of) for of in ((3, 14), (4, 20), (5, 10), (5, 40)))
    an_hour = draft.step(f"In an hour they make # {things}.", workers, "*", each)
    a_day = draft.step(f"In a day they make # {things}.", an_hour, "*", hours)
    return (
        f"In {name}'s {place} {workers} people make {each} {things} an hour each. They work {hours} hours a "
        f"day, and {broken} of the {things} cannot be sold. How many can be sold each day?",
        draft.step(f"So # {things} can be sold.", a_day, "-", broken),
    )


def _tank(draft: Draft) -> tuple[str, Number]:
    vessel = draft.pick("tank", "pool", "barrel", "cistern")
    inflow, leak, start = draft.number(12, 40), draft.number(2, 9), draft.number(20, 90, 10)
    hours = draft.number(4, 24)
    net = draft.step("Each hour # gallons more are in it.", inflow, "-", leak)
    gained = draft.step(f"After {hours} hours that is # gallons more.", net, "*", hours)
    return (
        f"A {vessel} holds {start} gallons of water. Each hour {inflow} gallons flow in and {leak} "
        f"gallons leak out. How many gallons are in the {vessel} after {hours} hours?",
        draft.step(f"Then the {vessel} holds # gallons.", start, "+", gained),
    )


def _bake_sale(draft: Draft) -> tuple[str, Number]:
    (name, he, _), things = draft.person(), draft.pick("brownies", "tarts", "rolls", "buns")
    dozens, eaten, pack = draft.number(3, 12), draft.number(1, 3) * 12, draft.pick(3, 4, 6)
    price = Fraction(draft.number(3, 19), 2)
    baked = draft.step(f"{name} bakes # {things}.", dozens + eaten // 12, "*", 12)
    left = draft.step(f"After the party # {things} are left.", baked, "-", eaten)
    packs = draft.step("They fill # bags.", left, "/", pack)
    return (
        f"{name} bakes {dozens + eaten // 12} dozen {things}. At a party {eaten} of them are eaten. The "
        f"rest {he} sells in bags of {pack} for ${float(price):.2f} a bag. How many dollars does {he} "
        "get?",
        draft.step(f"For these {he} gets $#.", packs, "*", price),
    )


def _cold_night(draft: Draft) -> tuple[str, Number]:
    town = draft.pick("Oslo", "Quebec", "Harbin", "Fargo", "Tromso")
    noon, drop, hours, rise = (
        draft.number(-4, 14),
        draft.number(2, 6),
        draft.number(3, 9),
        draft.number(1, 15),
    )
    fallen = draft.step("By night it falls # degrees.", drop, "*", hours)
    night = draft.step("So at night it is # degrees.", noon, "-", fallen)
    return (
        f"At noon it is {noon} degrees in {town}. Then the temperature falls {drop} degrees an hour for "
        f"{hours} hours, and by morning it rises {rise} degrees again. How many degrees is it in the "
        "morning?",
        draft.step("In the morning it is # degrees.", night, "+", rise),
    )


def _shared_bill(draft: Draft) -> tuple[str, Number]:
    (name, _, _), friends = draft.person(), draft.number(2, 6)
    each, percent = draft.number(8, 60), draft.pick(10, 15, 20, 25)
    people = draft.step("# people share the bill.", friends, "+", 1)
    bill = each * int(people) * 2
    tip = draft.step("The tip is $#.", bill, "*", percent, "/", 100)
    paid = draft.step("With the tip it is $#.", bill, "+", tip)
    return (
        f"{name} and {friends} friends have dinner for ${bill}. They add a tip of {percent}% and share "
        f"all of it equally. How many dollars does {name} pay?",
        draft.step("So each pays $#.", paid, "/", people),
    )


def _fuel(draft: Draft) -> tuple[str, Number]:
    (name, he, _), place = draft.person(), draft.pick("the coast", "the mountains", "a lake", "the capital")
    a_gallon, gallons, price = draft.number(20, 40, 5), draft.number(3, 12), Fraction(draft.number(5, 9), 2)
    way = Fraction(a_gallon * gallons, 2)
    both = draft.step(f"Both ways {he} drives # miles.", way, "*", 2)
    used = draft.step("That takes # gallons.", both, "/", a_gallon)
    return (
        f"It is {format_number(way)} miles to {place}, and {name}'s car goes {a_gallon} miles on a gallon. Gas "
        f"is ${float(price):.2f} a gallon. How many dollars is the gas for the way there and back?",
        draft.step("The gas is $#.", used, "*", price),
    )


def _library(draft: Draft) -> tuple[str, Number]:
    shelves, books = draft.number(6, 30), draft.number(20, 60, 2)
    lent, back, new = draft.number(15, 90), draft.number(5, 14), draft.number(10, 80)
    held = draft.step("The shelves hold # books.", shelves, "*", books)
    left = draft.step("After lending there are # books.", held, "-", lent)
    here = draft.step("With those that come back there are # books.", left, "+", back)
    return (
        f"A library has {shelves} shelves with {books} books each. It lends {lent} of them, {back} come "
        f"back, and {new} new ones are bought. How many books are there now?",
        draft.step("With the new ones there are # books.", here, "+", new),
    )


TEMPLATES: tuple[Template, ...] = (
    *(
        _half_as_many,
        _part_of_an_hour,
        _change,
        _savings,
        _pages,
        _part_of_a_school,
        _discount,
        _two_legs,
        _recipe,
    ),
    *(
        _legs_on_a_farm,
        _orchard,
        _ages,
        _workers,
        _tank,
        _bake_sale,
        _cold_night,
        _shared_bill,
        _fuel,
        _library,
    ),
)
